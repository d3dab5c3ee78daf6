"""The memory that a computation asks for, tensor by tensor, and the garbage that it leaves."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest tensor that comes into being: `largest`.

    A view counts as what it looks at, so that one that is merely expanded costs nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return result


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all tensors that have come into being and are there yet: `most` at one time, and `now`."""

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    @property
    def now(self) -> int:
        """Bytes of those that are there."""
        self._there = {at: each for at, each in self._there.items() if not each[0].expired()}
        return sum(size for _, size in self._there.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                known = StorageWeakRef(storage), storage.nbytes()
                self._there.setdefault(storage._cdata, known)
        self.most = max(self.most, self.now)
        return result


def held_bytes(value: object) -> int:
    """Bytes of all tensors that an object and its attributes hold."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, tuple | list):
        return sum(held_bytes(each) for each in value)
    return sum(held_bytes(each) for each in getattr(value, "__dict__", {}).values())


def numbers(*shape: int) -> int:
    """Bytes of a tensor of int64 of that shape."""
    return 8 * int(torch.Size(shape).numel())


@contextmanager
def new_garbage() -> Iterator[None]:
    """Let `gc.collect` look at what is made in the block only: to go through all modules takes a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
