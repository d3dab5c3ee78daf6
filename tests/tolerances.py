"""How wrong a result may be: measured each time, never set by hand.

The plain computation, done in the working precision, is wrong by some amount. A kernel in the same
precision may be wrong by a few times as much, and by the rounding of the largest number it returns.
"""

import torch
from torch import Tensor


def assert_no_worse(
    actual: Tensor, reference64: Tensor, plain: Tensor, factor: float = 3.0, what: str = ""
) -> None:
    """Hold `actual` to the accuracy of `plain`: both are approximations of `reference64`.

    Passes if and only if NaN and the infinities stand where they stand in the reference, and
    elsewhere, with `eps` that of the dtype of `actual`::

        max|actual − reference64|
            ≤ factor · max|plain − reference64| + 2 · eps · max(1, max|reference64|)

    Raises:
        AssertionError: `actual` is worse. The message tells where, and by how much.
        ValueError: the comparison itself makes no sense, by shapes, by dtypes, or because `plain`
            is not finite where it should be.
    """
    name = what or "the result"
    if reference64.dtype != torch.float64:
        raise ValueError(f"{name}: reference64 must be float64, and is {reference64.dtype}.")
    if plain.dtype != actual.dtype:
        raise ValueError(f"{name}: plain is {plain.dtype}, actual is {actual.dtype}.")
    if plain.shape != reference64.shape:
        raise ValueError(
            f"{name}: plain is {tuple(plain.shape)}, reference64 {tuple(reference64.shape)}."
        )
    if actual.shape != reference64.shape:
        raise AssertionError(
            f"{name} has shape {tuple(actual.shape)}, expected {tuple(reference64.shape)}."
        )
    eps = torch.finfo(actual.dtype).eps
    dtype = actual.dtype
    actual, truth, plain = (x.detach().cpu().double() for x in (actual, reference64, plain))

    finite = truth.isfinite()
    same = torch.where(
        finite, actual.isfinite(), (actual == truth) | (actual.isnan() & truth.isnan())
    )
    if not same.all():
        raise AssertionError(
            f"{name}: {int((~same).sum())} of {same.numel()} numbers are NaN or infinite where "
            f"they should not be, or the reverse.\n{first(~same, actual, truth)}"
        )
    if not plain[finite].isfinite().all():
        raise ValueError(
            f"{name}: plain is not finite where reference64 is, so it measures nothing."
        )
    if not finite.any():
        return

    error = (actual - truth).abs().where(finite, 0.0)
    plain_error = (plain - truth)[finite].abs().max().item()
    largest = truth[finite].abs().max().item()
    allowed = factor * plain_error + 2 * eps * max(1.0, largest)
    worst = error.max().item()
    if worst > allowed:
        raise AssertionError(
            f"{name} ({str(dtype).removeprefix('torch.')}) is wrong by {worst:.3g}; allowed is "
            f"{allowed:.3g} = {factor:g} × {plain_error:.3g} (error of the plain computation) "
            f"+ rounding.\n{int((error > allowed).sum())} of {error.numel()} numbers are beyond "
            f"it.\n"
            f"{first(error == worst, actual, truth)}"
        )


def first(where: Tensor, actual: Tensor, truth: Tensor) -> str:
    index = tuple(where.nonzero()[0].tolist())
    return f"  at {list(index)}: {actual[index].item():.9g}, expected {truth[index].item():.9g}"
