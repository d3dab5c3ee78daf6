"""Laws that are asked of calls."""

from typing import Any

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import broken, by_samples


class Squeezed:
    """Code that forgets that a batch may be of one sample; what it is asked for is what a subject says."""

    dtype = torch.float64

    def fresh(self) -> Any:
        return self.run

    def run(self, x: Tensor) -> Tensor:
        return x.squeeze(0).cumsum(-2).view_as(x) + (len(x) == 1)


def test_the_last_sample_is_the_one_that_is_called_alone() -> None:
    subject: Any = Squeezed()
    x = torch.rand(3, 5, 4, dtype=torch.float64)
    wrong = broken("alone", by_samples(subject, (x,), subject.run(x)))
    assert wrong is not None
    assert wrong.at == "samples 2"
