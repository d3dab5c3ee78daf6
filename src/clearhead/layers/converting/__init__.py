"""Attention layers of other libraries as layers of ours, and back.

    tensor_pairs      a tensor of theirs, and the one of ours with the same numbers
    reader            projections, sizes, parts and mask of a module, and the reasons against it
    families          the table of kinds: names of projections, how they are packed, and what else is read
    torch_layer       PyTorch's nn.MultiheadAttention
    latent            multi-head latent attention: DeepSeek V2 and V3
    norm_reading      norms of query and key
    configuration     rotary positions and windows, from a model's configuration
    fitting           the layer is built
    probing           a copy of the module is run and compared, for what weights do not tell
    adapters          a layer of ours behind the call of the module that it was made of
    model_comparison  the attentions of a model next to the layers, in a call of the model
    model_conversion  every attention of a model in place, and back
    convert           clearhead.convert

Nothing of another library is imported: a module is known by the names of what it holds.

`convert` (`layers/converting/`) reads a module by a `ModuleReader`: the sizes of a layer, its parts, and for each
tensor of ours a `TensorPair` with a view of theirs in our shape. `undo` of a model writes to the same pairs, so the
two directions cannot differ. If a tensor has no pair, the module is refused.

Weights do not tell what a forward computes, so a copy of the module with other weights is run. One of transformers
runs on 5 and 17 tokens, with the positions that the class next to it makes. The layer has to equal it for one of a few
guesses: the layout of rotary positions or none, how much of a head rotates, and whether scores are capped. A class of
the user's runs on 5 tokens, and twice on up to 257; the guesses are no mask and a causal mask. Layers of transformers
that are alike in all but their weights are run once. Their mask is the model's: it is read where the module says it
(`is_causal`, a window), and has to be given where it does not and the file of its class makes causal masks. A hook or
a forward of the instance is refused.

A whole model (`model_conversion.py`) keeps its code, so each layer stands behind the call of the module that it
replaces: an `Adapter`, of a class that is also the module's, since models ask for it. For transformers
positions, masks and caches are the model's, read as `watch` reads them
(`integrations/transformers_adapter.py`, fetched by name); projections, norms and what is compared are the
layer's. A call of the model with a hook on each attention compares both on what the model really gives.
Weights are shared where the numbers are the same, so `undo` has little to write. PyTorch's module in a model is
left: it gets its masks, its values and its dropout in ways that a layer of ours does not have.
"""
