"""Expect a refusal, with its text."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jaxtyping import TypeCheckError

from clearhead.errors import ClearheadError


@contextmanager
def refused(kind: type[Exception], code: str | None, message: str) -> Iterator[None]:
    """Expect the error, its code, and a part of its message; an error of PyTorch's has no code.

    Where the shapes are checked at run time, that check may come first.
    """
    with pytest.raises((kind, TypeCheckError)) as caught:
        yield
    if isinstance(caught.value, TypeCheckError):
        return
    assert type(caught.value) is kind
    assert (caught.value.code if isinstance(caught.value, ClearheadError) else None) == code
    assert message in str(caught.value)
