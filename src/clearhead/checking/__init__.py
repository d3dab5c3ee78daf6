"""An attention goes in, the name of the mistake comes out.

`check` goes one way: a `Subject` (found, made, copied, called) gives `Evidence`, `Evidence` gives verdicts,
verdicts give a `Report`. Nothing that comes later changes what came before.

`checking/evidence/` measures, and judges nothing; each part is measured when it is first asked for, and kept.
A `DispatchMode` (`recording/`) sees every operation of the copy, whatever the layers are called. Next to each
storage lies a shadow of tags: for each number, the element of the last product, or of the input, that it
stands for. Two products whose sides both depend on the input make an attention (`observed.py`); what was done
to the scores in between is followed number by number (`weighing.py`): scaled, hidden, filled, added to,
dropped, normalised over an axis. Tokens are changed one after the other, and the operands of the same
products taken again: so each row of query, key and value has its token (`provenance.py`), which gives samples
and heads their place in any layout (`arranging.py`).

A call of the user's own (`inputs=`, `own_call.py`) is run once, with a hook on every module. Each module in which two
products make an attention is a subject, called with other tokens and with the other arguments that it had; axes of
them of the sizes of the call are cut to those of the tokens.

A part of attention (`takes="scores"`) is completed by the other parts of the definition (`subject/completing.py`), and
the whole is checked.

A whole model (`takes="ids"`) is one of these subjects too: it is called behind its token embedding, where
vectors go in in the place of ids (`subject/embedding.py`), and each of its layers is a group of heads. Its
cache is a decoder of its own.

With query, key, value and context in hand a subject is held against a `Recipe` (`checking/hypotheses/`): the
definition as a row of stages. An edit replaces one of them by a mistake (`edits.py`, one table). The definition is
tried first, under every mask that what is undeclared leaves open; then each edit, and then each pair of edits of
different stages (`matching.py`). The nearest script that gives the subject's numbers on all calls, whose sizes are
distinct, is the mistake; what is equal is decided by the error of the plain computation, as in `testing`. A scale and
a number that is added to scores are measured and tried as an edit too. NaN equals NaN, so where most of the output is
NaN nothing is concluded from it. Where no script fits, as for another axis or function in place of the softmax, the
stages that were recorded are compared with the declared ones (`judging/reading.py`); for a function the weights that
the identity as value shows. A layer is held against the same recipe as a whole (`evidence/projecting.py`): query, key
and value as their projections give them, and the contexts as the next operation reads them, so that the split into
heads, their rotation, their groups and their merge are edits as well. Where a norm or a gate stands in between, the
query and key that are multiplied are taken, and the value as it was projected. What a context has more than weights
times values is measured as multiples of key, value and context, and tried as an edit; a query that is added is a
residual. A layer that is the definition so is right, whatever was recorded inside: blocks whose softmax is rescaled
later are attention. Where no product is seen, the parameters are found by their names.

Where no mistake has a name, the laws are asked (`judging/laws.py`): of calls alone, the same
again, sample by sample, at any length; that an output moves with its own token, and every projection moves the
output; of what was recorded, that scores alone make weights. A broken law is a finding, so that what nobody thought
of is not called right. The law of length (`evidence/lengths.py`, `judging/lengths.py`) holds parts against the whole
by calls alone, and what is the definition with few tokens, inside and as a whole layer, under the recorder with many;
the lengths follow from operations on fresh copies, parameters and weights.

A behaviour (`judging/behaviours.py`) is a call that is changed (again, after other calls, one sample alone,
with other strides, in 16 bits, in training, with a NaN behind the mask, longer, with a cache), whose outputs,
gradients or dependencies are compared. `evidence/cases.py` is the one place where such calls are made, their errors
caught and their outputs compared.

A scan (`checking/scanning/`) asks the same of a package without declarations. Sources are read, not
imported: a definition that multiplies and normalises, in its own lines or through the names in them, is worth
trying (`sources.py`). It is made with sizes by their names, and called as its parameters suggest: foreign
signatures are read in `subject/signatures.py` alone; it attends if weights that were normalised stand between
two products (`trial.py`). What was guessed is no promise: where another order of axes or inputs explains a
mistake, that order was meant. A mechanism that nobody declared is not judged, and weights that are 0
throughout are filled first. One process tries them one after the other and writes each row as it is there
(`cli/check_process.py`); where it ends or hangs, the next one goes on behind the definition that it fell over.

`rules.py` is one table, asked in `judge.py`: each rule has codes, a topic, a question whose answer is a verdict
(`Found`, `Clear`, `Unknown`) and what it excludes. The order is that of the tuple. A topic is
verified where its rules are clear; a report is right where all topics that belong to any attention, or were declared,
are verified. An exception inside a rule means that it cannot be read, never more. Every sentence is in `words.toml`,
every threshold with its reason in `thresholds.py`.

A function is copied too (`copying.py`), with the modules that it calls: `copy.deepcopy` leaves a function as
it is, and a lambda in an attribute, as in minGPT, would run the original's layers in their own mode. What is
taken is cloned, since fairseq scales the query in place; what a call leaves behind, a cache or weights, is
detached: a copy holds no graph of an earlier call.

Three things look like mistakes and are not. A scale that is missing may be in the weights of a projection,
which shows in their size. A sliding window that is not declared is a window. A mask among the saved buffers
is the custom of most tutorials. These are reported.

Attention that ranks share (`checking/ranks/`) is called on processes that are forked for it, or on every rank of the
caller's group. Outputs and gradients are compared with the definition on one process, and the report says which
tokens differ on which rank. A process that hangs is asked for its stack by a signal, which faulthandler answers
also inside a collective.

An error is a finding where equal widths mend it: the class is made again, with the arguments that the sizes
or the instance show (`constructing.py`). An input that raises, by `raise` or `assert`, is accepted as refused
(`refusals.py`).

The rates of the banks in `tests/checking/bank` are held by tests; a part of the bank is set aside and held by
none.

Gradients are held against differences of the output, at three steps: at a kink of a ReLU the small ones
agree, with float32 inside the large one does. What disagrees is asked once more at a place nearby; if the
differences do not agree with each other, nothing is said. Once there is a finding, `recording/lines.py`
repeats a call to note the line of each operation, and `judging/places.py` chooses one by topic.

In a lesson the outcome decides (`checking/source_edits/`): the definition with the learner's own matrices, on other
lengths, batches and pieces, with its gradients and in training. A program with the same outcome is right, however it
is written. Otherwise the rest of `check` names the mistake, and generic edits of the program are made and graded; of
those that make it right, a short one that ends close to the solution is reported with its line.
"""

from clearhead.checking.checking import check
from clearhead.checking.contract import Contract
from clearhead.checking.report import Finding, Report

__all__ = ["Contract", "Finding", "Report", "check"]
