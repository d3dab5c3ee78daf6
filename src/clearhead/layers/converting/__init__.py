"""Attention layers of other libraries as layers of ours, and back.

    pairs          a tensor of theirs, and the one of ours with the same numbers
    reader         projections, sizes, parts and mask of a module, and the reasons against it
    fitting        the layer is built, or written into the module that was read
    probing        a copy of the module is run and compared, for what weights do not tell
    families       the table of kinds: names of projections, how they are packed, and what else is read
    torch_layer    PyTorch's nn.MultiheadAttention
    latent         multi-head latent attention: DeepSeek V2 and V3
    norms          norms of query and key
    configuration  rotary positions and windows, from a model's configuration
    adapters       a layer of ours behind the call of the module that it was made of
    comparing      the attentions of a model beside the layers, in a call of the model
    models         every attention of a model in place, and back
    convert        clearhead.convert

Nothing of another library is imported: a module is known by the names of what it holds.

`convert` (`layers/converting/`) reads a module by a `ModuleReader`: the sizes of a layer, its parts, and for
each tensor of ours a `TensorPair` with a view of theirs in our shape. The same pairs are read from in one
direction and written to in the other, so the two cannot differ. What no pair was made of is left over, which
is an error. Weights do not tell what a forward does, so it is run. A copy of a class of one's own, with other
weights, runs on a few tokens, and twice on up to 257, beside the layer that was read, which shows its mask. A copy of
an attention of transformers runs with the positions that the class beside it makes, and what names do not tell (the
layout of rotations, and whether a layer rotates, how much of a head, and bends its scores) is what makes our layer
equal to it; layers that are alike in all but their weights are run once. Its mask is its model's: it is read where
the module says it (`is_causal`, a window), and asked for where it does not and the file of its class makes causal
masks: one class may serve texts, whose future the model hides, and pictures. ALiBi is handed on by the models of BLOOM,
Falcon and MPT, whose attentions are known by name. What was hung on the instance, a hook or another forward, is in
neither account, and is refused.

A whole model (`models.py`) keeps its code, so each layer stands behind the call of the module that it
replaces: an `Adapter`, of a class that is also the module's, since models ask for it. For transformers
positions, masks and caches are the model's, read as `watch` reads them
(`integrations/transformers_adapter.py`, fetched by name); projections, norms and what is compared are the
layer's. A call of the model with a hook on each attention compares both on what the model really gives.
Weights are shared where the numbers are the same, so `undo` has little to write. `layers/drop_in.py` is
PyTorch's module as a subclass, which reads the same parameters at each call.
"""
