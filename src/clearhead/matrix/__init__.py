"""The matrix of attention weights, which is never in memory, and its numbers.

Holds query, key and what goes with them; computes rows or rectangles when indexed, from the stages. A
rectangle with few keys and many queries uses the logsumexp of all queries, which the fused kernel gives in
O(tokens) memory, and then only the dot products of the rectangle.

The value that the weights are multiplied by lies next to the problem, where it is known: no weight depends on
it. ‖value · W‖ scales the columns, so `Norms` scale chunks of a sweep, or results of products; rows divided
by their sums are the softmax of score + ln norm, an `AttentionMatrix` with one more bias, so that nothing
that reads weights need know of them.

A `Summary` merges with that of the chunk that comes next, or of other samples: rows are put together, and
what is a sum over rows is added, as ranks do. It refuses what would not be the summary of one matrix.

Reductions come from a sweep: the scores of some hundred rows go into one buffer, their softmax into another,
and each `Reduction` takes what it needs of a `Chunk` while both are near. Two ways were measured: this, and the
identities over fused calls (the entropy with the key as the value, the distance with the position, column sums
as the transposed problem). For one number they take the same time, about that of one fused call; the sweep
gives all of them and the context for two to three such calls, where every identity is a call of its own. Three
things make it fast. Hidden scores are −1e30 instead of −∞, so that weight · score is 0 for them and no pass
over the pairs is needed to say so. Only the ragged edges of a chunk are masked, since the spans tell which
columns everybody sees. And the k largest weights are looked for in the k segments with the largest maxima, and
these in the same way; a segment is every n-th key, because maxima over rows of a matrix are faster than along them.
What is not finite, or so large that a score could come near −1e30, goes by the stages instead, chunk by chunk.
Exponentials that the sums divide afterwards, so that no weight is ever normalised, were tried: PyTorch's softmax
takes 0.7 of the time of its exp alone, and that way took 1.03 to 1.4 times as long in all. Distances are summed in
the memory of the scores when nobody needs them any more.

A long sweep on the CPU is shared by heads: each thread of ours takes some, with one thread of PyTorch's. Some
forty operations a chunk are as many parallel regions otherwise, and each waits for its last thread to get
a core: next to other busy processes that was twenty times what they compute. Limits of a thread alone are
OpenMP's and MKL's own, so that nobody else's calls notice; where PyTorch is built on others, or something
belongs to the calling thread (a mode, a transformation), PyTorch's threads share each operation.

The numbers that are drawn of a head are computed here, for every renderer: `HeadView` returns its weights or a
coarser map, with the hidden cells, its numbers and the averages of a glance; `matrix/links.py` its links,
`matrix/map_tiles.py` the part of a map that a user zooms into, and the stages of one weight.
`drawing` letters and colours them.

`A.mT @ x` is differentiable with no backward of its own: ⟨Pᵀx, g⟩ = ⟨x, Pg⟩, so its gradients are those of
attention with g as the value.
"""
