"""Attention layers of other libraries as layers of ours, and back; one family of them a file.

    pairs          a tensor of theirs, and the one of ours with the same numbers
    reader         projections, sizes, parts and mask of a module, and the reasons against it
    fitting        the layer is built, or written into the module that was read
    probing        a copy of the module is run and compared, for what weights do not tell
    torch_layer    PyTorch's nn.MultiheadAttention
    packed         one projection for query, key and value: GPT-2, Phi-3, GPT-NeoX, BLOOM, Falcon, MPT
    latent         multi-head latent attention: DeepSeek V2 and V3
    separate       one each: Llama, BART, BERT, T5, diffusion models
    norms          norms of query and key
    configuration  rotary positions and windows, from a model's configuration
    tutorials      the classes of the tutorials, with heads in one matrix or in a list
    adapters       a layer of ours behind the call of the module that it was made of
    comparing      the attentions of a model beside the layers, in a call of the model
    models         every attention of a model in place, and back
    convert        clearhead.convert

Nothing of another library is imported: a module is known by the names of what it holds.
"""
