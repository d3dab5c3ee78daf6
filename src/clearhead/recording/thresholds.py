"""Thresholds of what a recording shows, each with its reason."""

import torch

# A movement, of the largest number, that counts as one: float64 code keeps 1e-16 of its numbers,
# and moves by 1e-8 where a weight is as small as the tokens' spread allows; float32 rounds at 1e-7.
MOVES = {torch.float64: 1e-8, torch.float32: 1e-5}
# A score so far below that of its row that its weight cannot be felt: exp(−60) is 1e-26.
HIDDEN = 60.0
# Sums of weights, which are about one, in any precision that a softmax is computed in.
SUMS = 1e-4
