"""How a refusal is tested."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jaxtyping import TypeCheckError

from clearhead.errors import ClearheadError


@contextmanager
def refused(kind: type[ClearheadError], code: str, message: str) -> Iterator[None]:
    """Expect the error, its code, and a part of its message.

    Where the shapes are checked at run time, that check may come first.
    """
    with pytest.raises((kind, TypeCheckError)) as caught:
        yield
    if isinstance(caught.value, ClearheadError):
        assert type(caught.value) is kind
        assert caught.value.code == code
        assert message in str(caught.value)
