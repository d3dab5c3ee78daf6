"""Attention layers of other libraries as layers of ours, and back; one family of them a file.

    pairs          a tensor of theirs, and the one of ours with the same numbers
    reader         what is found in a module: which of its tensors is which of ours, and what is not
    fitting        the layer of what was read, and whether a layer fits into it
    probing        what weights do not tell: a copy of the module is run and compared
    torch_layer    PyTorch's nn.MultiheadAttention
    packed         one projection for query, key and value: GPT-2, Phi-3, GPT-NeoX
    separate       one each: Llama and its kin, BART, BERT, T5, diffusion models
    norms          norms of query and key
    configuration  rotary positions and windows, from a model's configuration
    tutorials      the classes of the tutorials, with heads in one matrix or in a list
    convert        clearhead.convert

Nothing of another library is imported: a module is known by the names of what it holds.
"""
