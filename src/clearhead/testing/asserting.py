"""`check` as an assertion."""

from typing import Any

from clearhead._common.hints import with_hints
from clearhead.checking import check
from clearhead.testing.seeds import chosen

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
        arguments: as for `check`; takes= must be among them.

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
