"""Two kernels of Triton, of which only a pass over a GPU's tensors imports anything.

`rows` goes over the keys of some queries with running sums, as flash attention does, and finds every number of a
query, its largest weights and its context in one launch. `columns` goes over the queries of some keys, with the
largest score and the largest weight of each query from `rows`: what a key receives is one program's sum, so that
nothing is added atomically and two runs give the same bits. `matrix/triton_pass.py` launches them.
"""
