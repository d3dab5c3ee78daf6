import torch

from clearhead.ladder import context_by_loops
from tests.ladder.refusal import refused


def test_refusals() -> None:
    with refused(ValueError, None, "zip() argument 2 is shorter than argument 1"):
        context_by_loops(torch.zeros(3, 5), torch.zeros(4, 7))
