"""Assertions: a result as accurate as the plain computation, and a subject that `check` finds no mistake in."""

import sys
from typing import Any

import torch
from torch import Tensor

from clearhead._common.accuracy import Tolerance, measured
from clearhead._common.hints import with_hints
from clearhead.checking import check
from clearhead.errors import ArgumentError, ArgumentTypeError, DtypeError, ShapeError

# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True


def difference(what: str, actual: Tensor, reference64: Tensor, tolerance: Tolerance) -> str | None:
    """Return how a result exceeds the tolerance, or has NaN or infinity in other places; None if it does neither.

    The text has `what`, the name of the result, the size of the difference and its place. Places of NaN are compared
    first. The two tensors have the same shape, on any devices; empty ones do not differ.
    """
    truth, dtype = reference64.detach().cpu(), actual.dtype
    actual = actual.detach().cpu().double()
    finite = truth.isfinite()
    same = torch.where(
        finite, actual.isfinite(), (actual == truth) | (actual.isnan() & truth.isnan())
    )
    error = (actual - truth).abs().where(finite, 0.0)
    worst = error.max().item() if error.numel() else 0.0
    if not same.all():
        wrong = ~same
        words = (
            f": {int(wrong.sum())} of {same.numel()} numbers are NaN or infinite where they should "
            "not be, or the reverse."
        )
    elif worst > tolerance.allowed:
        wrong = error == worst
        words = (
            f" ({str(dtype).removeprefix('torch.')}) is wrong by {worst:.3g}; allowed is {tolerance}.\n"
            f"{int((error > tolerance.allowed).sum())} of {error.numel()} numbers are beyond it."
        )
    else:
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    numbers = f"{actual[index].item():.9g}, expected {truth[index].item():.9g}"
    return f"{what}{words}\n  at {list(index)}: {numbers}"


@with_hints
def assert_no_worse(
    actual: Tensor, reference64: Tensor, plain: Tensor, factor: float = 3.0, what: str = ""
) -> None:
    """Raise AssertionError if `actual` is less accurate than `plain` allows; both approximate `reference64`.

    Passes if and only if NaN and the infinities stand where they stand in the reference, and
    elsewhere, with `eps` that of the dtype of `actual`::

        max|actual − reference64|
            ≤ factor · max|plain − reference64| + 2 · eps · max(1, max|reference64|)

    Args:
        actual: the tested result, any shape.
        reference64: the truth, float64, of the same shape.
        plain: the plain computation in the dtype of `actual`, of the same shape.
        factor: the multiple of the error of `plain` that is allowed.
        what: the name of `actual` in the message.

    Raises:
        AssertionError: `actual` is worse. The message tells where, and by how much.
        DtypeError, ShapeError, ArgumentError: the comparison itself makes no sense, by dtypes, by
            shapes, or because `plain` is not finite where it should be.

    Example:
        >>> scores = torch.randn(7, 13)
        >>> exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        >>> mine = exponentials / exponentials.sum(-1, keepdim=True)
        >>> truth, plain = scores.double().softmax(-1), scores.softmax(-1)
        >>> ch.testing.assert_no_worse(mine, truth, plain)
        >>> ch.testing.assert_no_worse(mine.half().float(), truth, plain, what="the softmax")
        Traceback (most recent call last):
        ...
        AssertionError: the softmax (float32) is wrong by ...; allowed is ...
    """
    name = what or "the result"
    if reference64.dtype != torch.float64:
        raise DtypeError(
            "tolerance.reference",
            f"{name}: reference64 must be float64, and is {reference64.dtype}.",
        )
    if plain.dtype != actual.dtype:
        raise DtypeError(
            "tolerance.dtype", f"{name}: plain is {plain.dtype}, actual is {actual.dtype}."
        )
    if plain.shape != reference64.shape:
        raise ShapeError(
            "tolerance.shape",
            f"{name}: plain is {tuple(plain.shape)}, reference64 {tuple(reference64.shape)}.",
        )
    if actual.shape != reference64.shape:
        raise AssertionError(
            f"{name} has shape {tuple(actual.shape)}, expected {tuple(reference64.shape)}."
        )
    if not plain.cpu()[reference64.cpu().isfinite()].isfinite().all():
        raise ArgumentError(
            "tolerance.plain",
            f"{name}: plain is not finite where reference64 is, so it measures nothing.",
        )
    found = difference(
        name, actual, reference64, measured(reference64, plain, actual.dtype, factor)
    )
    if found is not None:
        raise AssertionError(found)


@with_hints
def assert_attention(
    subject: Any, *, seed: int | None = None, allow_unverified: bool = False, **arguments: Any
) -> None:
    """Raise AssertionError with the report of `check` as its text, unless it is right.

    Args:
        subject: as for `check`.
        seed: of the inputs; None is that of `pytest --clearhead-seed`, or 0.
        allow_unverified: do not fail for anything that is not judged; a mistake fails all the same.
        arguments: as for `check`.

    Raises:
        AssertionError: a mistake was found, or something that is declared could not be verified; the
            text is the report.
        ArgumentTypeError: code `seed.type`, for a seed that is no whole number.
        ClearheadError: what `check` raises.

    Example:
        >>> ch.testing.assert_attention(ch.attend, takes="qkv")
        >>> ch.testing.assert_attention(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, takes="qkv")
        Traceback (most recent call last):
        ...
        AssertionError: <lambda>, seed 0
        ✗ scale.missing   the scores are not scaled...
    """
    drawn_by = chosen(seed)
    report = check(subject, seed=drawn_by, **arguments)
    if report.findings or (report.unverified and not allow_unverified):
        raise AssertionError(f"{report.name}, seed {drawn_by}\n{report}") from None


def chosen(seed: int | None) -> int:
    """Return the seed if it is not None, else that of `pytest --clearhead-seed`, else 0.

    Raises:
        ArgumentTypeError: code `seed.type`, for a seed that is no whole number (a bool is none).
    """
    if seed is None:
        # Without pytest nobody has loaded the plugin.
        plugin = sys.modules.get("clearhead.testing.pytest_plugin")
        return 0 if plugin is None else plugin.seed()
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ArgumentTypeError(
            "seed.type",
            "seed must be a whole number, or None for that of --clearhead-seed; got "
            f"{type(seed).__name__}.",
        )
    return seed
