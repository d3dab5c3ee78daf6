"""`check` as an assertion, and the seed that tests draw by."""

import sys
from typing import Any

from clearhead._common.hints import with_hints
from clearhead.checking import check
from clearhead.errors import ArgumentTypeError

# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True


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
