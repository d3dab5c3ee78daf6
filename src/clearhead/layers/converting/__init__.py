"""Attention layers of other libraries as layers of ours, and back; one family of them a file.

    places       where one tensor goes
    reading      what is found in a module: which of its tensors is which of ours, and what is not
    fitting      the layer of what was read, and whether a layer fits into it
    probing      what weights do not tell: a copy of the module is run and compared
    packed_torch PyTorch's nn.MultiheadAttention
    packed       GPT-2 and its kin: one matrix for query, key and value
    separate     a matrix each: Llama and its kin, BART, BERT, T5, diffusion models
    positions    rotary positions and windows, from a model's configuration
    tutorials    the classes of the tutorials, with heads in one matrix or in a list
    convert      clearhead.convert

Nothing of another library is imported: a module is known by the names of what it holds.
"""
