"""Every threshold of `check`, with its reason.

Whether two results are the same is no threshold: the definition is computed from inputs that are
rounded to the precision at hand, and what that loses is allowed (`clearhead._common.accuracy`).
"""

import torch

# How many times what rounding the inputs loses may be lost. Code in float64 may compute its softmax
# in float32, and its sums in another order; no mistake of the bank is as near.
FACTOR = 10.0
# A first, cheap look at whether a result can be meant: the largest difference, of the largest
# number, beyond which no rounding in 16 bits leads.
FAR = 0.1
# The least that a result may be off, of its largest number, where it was computed in float32.
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 1e-2}
# What is right but for this share of its largest number computes in 16 bits somewhere.
HALF_INSIDE = 2e-2
# NaN is equal to NaN: where less than this share is finite, everything that gives NaN would do.
MOSTLY = 0.5

# A movement next to which rounding in float64 is nothing, however small a weight is.
FELT = 1e-14
# Equal calls differ by no more than the order of sums on several threads.
SAME = {torch.float64: 1e-9, torch.float32: 1e-5}
# A row of a query that sees nothing, in float32, is off by less from zeros, or from the mean of the values.
EMPTY = 1e-4
# A gradient is compared with differences of the output; a share of it, since a step of 1e-5 has an
# error of about that of a square root of the rounding.
GRADIENT = 2e-2
# Outputs and gradients of ranks are compared with those of the definition: float32 inside keeps 1e-5 of
# the largest number, and no mistake is a factor as near to one.
SUMMED = 1e-4
# Steps of such differences: a large one where float32 rounds inside, small ones next to a kink.
STEPS = (1e-3, 1e-5, 1e-6)
# A step that passes any kink: next to it a weight is nothing.
LEAP = 1e3
# How far a parameter is moved to be asked next to a kink: beyond all steps, and next to nothing for a weight.
NEARBY = 1e-2
# A direction whose gradient is below this share of the largest says nothing.
GRADIENT_FLOOR = 1e-3

# A measured weight, on a key that is read, is more.
UNREAD = 1e-12
# A scale is as told by an exact ratio of numbers; a slope through the logarithms of measured
# weights, some of them small, is exact to this share.
SLOPE = 1e-3

# exp of this score does not fit float16, exp(90) not float32, and the definition has no trouble.
LARGE = {torch.float16: 15.0, torch.bfloat16: 90.0, torch.float32: 90.0, torch.float64: 90.0}
# A computation in 16 bits may lose this share of the largest number, or four times what the plain
# one loses.
LOST = {torch.float16: 0.05, torch.bfloat16: 0.25, torch.float32: 1e-4, torch.float64: 1e-8}
LOST_FACTOR = 4.0

# Query weights that are nearer to 1/√head_dim of the key's than to equal: 0.4 of the way, in
# logarithms, hold the scale folded in. Fewer numbers than this tell no spread.
FOLDED = 0.4
FOLDED_NUMBERS = 64

# The spread of drawn inputs: weights are far from uniform, and none vanishes.
SPREAD_HEADS = 1.3
SPREAD_TOKENS = 2.0
# What is off by less with many tokens, of the largest number, is rounding: angles of a rotation in float32 lose
# 1e-4 at a thousand tokens, and what is another mechanism from some length on is off by far more.
LAW_ROUNDING = 1e-3
# Of this, with which weights are about equal, so that each of a thousand tokens is felt.
NARROW = 0.05
# The law of length is asked at these numbers of tokens: across the edges of blocks of 16, 64, 256, 512 and 1024.
LAW_LENGTHS = (1, 2, 7, 16, 17, 64, 65, 257, 1025)
# What is recorded, or handed over twice, is so up to this many.
LAW_RECORDED = 257
# Number of tokens beyond the declared maximum with which causality is tested again.
BEYOND = 8
# Tokens times parameters up to which it is asked.
LAW_NUMBERS = 50_000_000
# Operations of a call, which a loop over tokens makes many, up to which it is.
LAW_STEPS = 1100
# Weights of a sample, of all heads and layers, up to which it is.
LAW_PAIRS = 8_000_000
# Buffers of more tokens than this are not run through whole.
LONGEST = 600
# A module with more parameters than this is not copied and run in float64.
PARAMETERS = 1_000_000_000
# Sizes of numbers that nobody draws: those of memory that was never written to go to 1e±38.
HUGE, TINY = 1e8, 1e-25
# A scan makes whatever has defaults; a model that takes seconds to make is checked alone.
SCANNED_PARAMETERS = 30_000_000
