"""The record of what a model attends to while it runs on its own kernel.

While a model is watched, the functions that it attends by are replaced by ones that read the call and then
run the original with the same arguments; `watching/hooks/` has one file for each path: our own kernels,
PyTorch's function, nn.MultiheadAttention (which works its weights out by itself when they are asked for, and
has two fast paths in C++), and the interface of transformers, through which every implementation passes. Each
reads a call as a `Problem` and reports it at one place, `tap`; a re-entrant call is the same attention and is
reported once.

Two simpler methods were tried and rejected: a `TorchFunctionMode`, and hooks on the modules of the model. Both
turn PyTorch's fast paths off, so that the model no longer computes what it computes unwatched. Which module
is running is known from hooks on all modules at once, which the fast paths do not ask about.

Each step of installing the hooks writes down what undoes it before it is made (`_common/undoing.py`, as
conversion and check do), so an interrupt at any moment leaves nothing that could not be undone
(`hooks/installing.py`); the hooks know their users weakly, and go with the last. Searching every name of
every loaded module takes 40 ms, so a namespace is searched again only if it has more or fewer names than
before; those of the model's own code always are (`hooks/patching.py`).

A record is not assumed to be complete (`watching/missing.py`): the softmaxes that a model takes
itself are noticed, and the modules that ran and are named as attentions are counted against those that were
seen.

The number of a layer is that of the model's modules that attend, also of those not kept
(`finding.path_of_layer`). A layer of ours says which of its queries are real next to a cache; elsewhere the
keys do.

What is kept (`watching/recording.py`) is O(tokens). A mask that a model made as a tensor is read back: if it is
exactly causal, padding, or both, that is kept instead. The keys of a cache grow in one tensor, of which calls
see a part; calls that continue each other are returned as the one matrix that they are rows of
(`watching/stitching.py`). The keys that two calls share decide it (`watching/continuing.py`): a step of a
window begins with the last keys of the step before, and a beam with those of some row of it. With
`keep="summary"` a call is swept before it runs, and neither query nor key is kept. With `keep="total"` such a
summary is added to sums over queries and their counts (`matrix/totals.py`), which add up over batches, and over
records that are merged; one sum for each call of a run, as a module may be several layers.

Averages leave padding out (`matrix/real_queries.py`): a query whose own key no query may see. Where keys do
not tell, because the queries are of another text or keys stand behind the tokens, the problem says which
queries are real. Some heads of a layer are a part of its matrix, as those of a rank are (`Problem.part`), so
their numbers go with the matrix, its summary and its totals into figures, pages and tables.

With `keep="gradients"` the hooks hand over the context of a call as well (`tap.change_of`), as it goes back
into the model, so that a gradient can be taken with respect to it; query, key and value are not copied, since
the graph holds them, and their versions tell whether the model wrote to them. A weight's gradient is gᵢ · vⱼ
(`matrix/rollout.py`), and a row of the relevance goes from layer to layer as a vector, by a
reduction that forms relu(weights ∘ gradients) chunk by chunk. What has no context of its heads, PyTorch's
layer that computes its weights, or whose context is none of weights · value, an ablated head, is refused
when the gradient is asked for: the model must give its own output bit for bit, on its own kernel. A call is read with
its graph for a function as well, which runs without gradients unless it turns them on; what it returns holds the
rest of the graph, and the record holds none.

The alternative for transformers is to be its implementation (`integrations/attention.py`). It shares the
reading of a call with `watch`. A mask goes through the model as a `Described`, a tensor by shape and dtype
that holds a description instead of numbers; it becomes numbers when something computes with it, except by adding
it, since True would count as 1.

A file (`watching/files.py`, `encoding.py`) holds an allow-list of kinds, each with its fields that are not
None. Tensors that begin at the same place of memory are written once, so a cache that grew for a thousand
steps is one tensor in the file too. It is read by one open descriptor, since safetensors opens a path twice
and a save may come between, and written by `_common/writing.py`, which locks what it writes, so that what a
killed save left can be distinguished from one in progress.

With contexts a call's z is copied as it goes back into the model; where none is available it is computed
(`watching/continuing.py`). Of keys a number each is kept, a sum of their bits by drawn factors, which
shows which call continues which. The hooks say whether a call hands out a context, and whether it is ablated
(`tap.Gives`).
"""
