"""Attention over tokens that ranks share: one method of communication per file.

Tokens that ranks share are one object, a `Sharding`: the positions of every rank. Layouts are data, so
nothing else knows of them. `attention/sharded/` has three methods. In `by_gather` a rank has all keys in the
order of the text, and its problem is some rows of the whole one: `masks/selected.py` takes them from any
mask, spans included, so that every kernel runs as it is. In `by_ring` the columns are selected too; the spans
of some columns are found by a binary search, which is also how a block is known to be hidden whole. Blocks
are merged by `blockwise.context_and_logsumexp`, and each is recomputed in the backward pass, with the
gradient of its logsumexp. In `by_heads` the mask is the whole one.

Gradients of keys are exchanged, and summed by the rank that holds them, upcast and in the order of the ranks:
a reduction inside the process group would do it in any order. Dropout is refused, since every rank would draw
its own.

`Problem.part` says how a problem is part of the whole matrix. The statistics read positions from it, and
what is a sum over queries is summed over the ranks at the end of a sweep (`Reduction.share`). In a ring the
sweep goes over the keys of one rank after another (`MatrixPart.rounds`): a first round gives the logsumexp of
all keys, and a weight is its share of its block times the share of the block, so that each reduction only
says how numbers of some keys and of others go together. Layers hand their parts one token more, the last of
the text, as some go by its length.

`Sharding.agree` runs every check on all ranks and compares what came out, checksums of masks, biases and
sinks included, before anything large is sent: gloo ends the process where sizes differ, and a rank that
raises alone hangs the others.
"""
