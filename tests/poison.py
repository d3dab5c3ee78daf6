"""Uninitialised memory, made to tell: a kernel that reads what it never wrote gives NaN."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors


def poisoned(create: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`create`, except that floating memory asked for by clearhead comes filled with NaN."""

    @functools.wraps(create)
    def create_poisoned(*args: object, **kwargs: object) -> Tensor:
        tensor = create(*args, **kwargs)
        # The compiler cannot trace a look at the stack.
        if torch.compiler.is_compiling():
            return tensor
        caller = sys._getframe(1).f_globals.get("__name__", "")
        ours = caller.partition(".")[0] == "clearhead"
        if ours and (tensor.is_floating_point() or tensor.is_complex()):
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return create_poisoned


@contextmanager
def poison() -> Iterator[None]:
    """All of PyTorch's ways to uninitialised memory, poisoned for calls from clearhead."""
    # `with torch.device(…)` remembers which functions make tensors: the real ones.
    _device_constructors()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (Tensor, "new_empty"),
        ]:
            patch.setattr(owner, name, poisoned(getattr(owner, name)))
        yield
