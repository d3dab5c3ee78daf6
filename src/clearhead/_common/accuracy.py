"""The error that a result may have, measured each time and never set by hand.

The plain computation, done in the working precision, is wrong by some amount. A kernel in the same
precision may be wrong by a few times as much, and by the rounding of the largest number it returns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """The largest error that a result may have, and the errors that it is derived from.

    Attributes:
        factor: the multiple of the error of the plain computation that is allowed.
        plain_error: the largest absolute error of the plain computation.
        eps: distance of 1 from the next number of the dtype of the result.
        largest: the largest absolute value of the truth.
    """

    factor: float
    plain_error: float
    eps: float
    largest: float

    @property
    def allowed(self) -> float:
        """The largest absolute error that passes: `factor` × `plain_error`, plus 2 × `eps` × max(1, `largest`)."""
        return self.factor * self.plain_error + 2 * self.eps * max(1.0, self.largest)

    def __str__(self) -> str:
        """Return the allowed error as text, with the sum that it comes from."""
        return (
            f"{self.allowed:.3g} = {self.factor:g} × {self.plain_error:.3g} (error of the plain "
            "computation) + rounding"
        )


def measured(
    reference64: Tensor, plain: Tensor, dtype: torch.dtype, factor: float = 3.0
) -> Tolerance:
    """Return the tolerance for a result of this dtype, from the error of `plain`, the plain computation.

    `factor` times the error of `plain` is allowed, and rounding. `reference64` is the truth; only its finite values
    count, and without any the tolerance is rounding alone. In float64 there is no better truth: `plain` is then
    float32, and its error is scaled by the ratio of the rounding errors.
    """
    eps = torch.finfo(dtype).eps
    truth, approximate = reference64.detach().cpu(), plain.detach().cpu().double()
    finite = truth.isfinite()
    if not finite.any():
        return Tolerance(factor, 0.0, eps, 0.0)
    plain_error = (approximate - truth)[finite].abs().max().item()
    if dtype == torch.float64 and plain.dtype == torch.float32:
        plain_error *= eps / torch.finfo(torch.float32).eps
    return Tolerance(factor, plain_error, eps, truth[finite].abs().max().item())
