"""One kernel per file. Each has its own refusals; none imports another.

`auto` takes the first kernel of `planning.KERNELS` that refuses nothing and does not defer: a kernel may say
that a later one is faster for a problem, as a measurement has shown. A kernel asked for by name runs or
raises with every reason; there is no fallback, and no `except` in the choice.

fused lowers a mask to pieces: calls that together cover every query once. No mask and plain causal are one
call, and so is what sees one run of keys, on that slice. Below `WORTH_SPANS` pairs spans take longer than
they save, and the mask is one tensor. If every sample's mask is rectangles and triangles (causal with
padding is: a triangle, and a rectangle below it; so are documents), each is a call on slices, without a mask. Many
documents, and those with gradients, go by length: those of like length are the samples of one call, padded to the
longest. Where a mask repeats, as the middle of a window does and documents of one length do, its tiles are the samples
of one call: those of a window overlap in memory, so that nothing is copied, and one part of the mask serves all. A call
is a parallel region, which next to other busy processes is most of what it costs. Anything else
goes in tiles of queries, each with the keys that it can see at all and its part of the mask, so that no mask
of queries × keys is ever whole. A value of another width than the key is padded to it, since PyTorch's fused
kernels want one width. Few queries of many keys are two products around a softmax (`_by_scores.py`).

Where a kernel makes many short calls, without gradients, threads of our own share the heads, each with one of
PyTorch's threads: a parallel region for each call waits for a core that others keep busy. What has a part for each
head, and masks with many numbers to make once a thread, are not split.

On a GPU the host is not to wait. There a mask is lowered if it holds no tensor of the device, since the host then knows
its spans by itself; and what may not be finite is cleared before anything is computed. The marks that a query sees are
counted between two sums of all marks so far. Without a mask and with the causal flag the kernel runs as it is.

*Sinks* need the logsumexp: the output is multiplied by sigmoid(logsumexp − sink). PyTorch's CPU kernel gives
the logsumexp but no gradient for it. `FlashWithLogsumexp` adds one with the kernel's own backward: a value
column of ones whose gradient is that of the logsumexp, and whose context is declared to be 0.

*ALiBi* can ride on one more dimension of the dot product, with the causal flag. It is exact on paper; in
float32 the score of neighbouring tokens becomes the difference of two numbers of size slope · position, and
loses as many digits: at 4 096 tokens it was wrong by 6e-5 where the plain computation is by 7e-7, at 16 384
tokens by 3e-4 (four heads of width 64, against float64). So a bias is added tile by tile instead. Where it and the mask
are numbers of the distance alone, as alibi and relative are, nobody makes the tile: with its queries from the last to
the first each row is the row above it, one key on, and all of them are a view of one number a distance.

blockwise takes so few scores that tiles would not pay all at once. Else it goes by tiles: some neighbouring queries
and the keys that one of them sees, found from the spans of the mask (`masks/tiles.py`), so that empty tiles cost
nothing, and only the ragged edges of the others are masked. Softcap, bias, sinks and dropout are applied to a tile at
a time. The backward pass recomputes the weights from the logsumexp. It keeps that as a sum of two, the largest score
and the rest, since one float32 would round what the exponential then magnifies; and it repeats the very products of
the forward pass, because another order of summation would round otherwise. Dropout draws whole numbers from a seed
that is kept, part by part, in both passes alike. With gradients it runs masks of few pairs (windows, documents),
where `fused` defers: a gradient of all keys for every tile of the mask takes twice as long.

flex is FlexAttention, which compiles a mask into its kernel. `block_mask` counts the blocks from the spans,
as `blocks()` does, instead of asking tokens² pairs; a query's runs of keys are what the compiled code
compares with. It takes no part in `auto`, since a first call compiles for seconds. PyTorch compiles its
backward pass for CUDA only, so tests hold the uncompiled form to the definition, on the CPU.

eager is the definition. It goes in tiles of queries as well, so that without gradients its memory is bounded.
"""
