"""`check` as an assertion."""

from typing import Any

from clearhead.conformance import check


def assert_attention(subject: Any, **arguments: Any) -> None:
    """Raise AssertionError with the report of `check` as its text, if a mistake is found.

    Args:
        subject: as for `check`.
        arguments: as for `check`; takes= must be among them.

    Raises:
        AssertionError: a mistake was found; the text is the report.
        ClearheadError: what `check` raises.

    Example:
        >>> ch.testing.assert_attention(ch.attend, takes="qkv")
        >>> ch.testing.assert_attention(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, takes="qkv")
        Traceback (most recent call last):
        ...
        AssertionError: <lambda>
        ✗ scale.missing   the scores are not scaled...
    """
    # pytest shows the raised text, without this frame.
    __tracebackhide__ = True
    report = check(subject, **arguments)
    if not report.ok:
        raise AssertionError(f"{report.name}\n{report}")
