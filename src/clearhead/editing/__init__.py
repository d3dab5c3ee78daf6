"""Edits of what a model attends to, under its own kernel.

`edit` shares the hooks of `watch`: a call is read as a `Problem`, the model's kernel runs it with its own
arguments, and what is edited replaces its context in some heads and rows before the model goes on. So nothing
depends on the arguments of a kernel: heads and queries that no edit names keep their numbers bit for bit,
sinks, softcaps and grouped heads are what they were, and a fused or a flash kernel is edited like the eager
one. What is hidden or scaled is computed by the kernel that `attend` takes, with masks that stay
descriptions; heads with the same operations are computed at once. Handing the model's kernel another mask
instead was weighed: each implementation takes another kind, some none, a bool mask per head is tokens², and
untouched heads would no longer be equal bit for bit. Only queries that lose something get the recomputed
context (`editing/rescoring.py`); what it drops is drawn from a stream of its own. Each operation counts what
it changed (`operation.py`), and what attended and cannot be edited is `missing`, as in `watch`.

Nothing is hung on the model: an edit follows what runs by the hooks on all modules (`editing/entering.py`), and
belongs to the context that entered it (`editing/entering.py`). A `with` alone owns its use, and the hooks
know it weakly, so that nothing outlives the block. Autograd's threads get the caller's edits by PyTorch's
thread-local store. The fast paths of PyTorch's layers give no context of a head, so what says whether they
are on says no while an edited model runs.

Positions are those of the sequence (`editing/call_positions.py`): the length of a KV cache is read, since with a
window or a static cache the number of keys does not show it. Where positions are unknown, what needs them
is refused.

Operations on z are `OfContext` (`editing/context_operations.py`); a query takes the context of its position,
and another length is refused at the latest when the block ends. In `effects` every patch is a replaced z, since
upstream of it is the corrupt run, so two runs give all of them (`editing/activation_patching.py`). Several edits of a
short text are one run, on copies of the inputs; a copy without an edit must have the output of a run alone
(`editing/measuring.py`). A run begins at the edited block where the output of the blocks before it
can be given again (`editing/replaying.py`).
`paths` freezes by the same replaced z, and next to attention the outputs of all modules with weights in its
blocks and no norm (`editing/paths.py`): a norm acts on what a head adds, and has to be computed.
"""
