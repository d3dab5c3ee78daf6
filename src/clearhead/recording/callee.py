"""What is recorded: anything that can be called again on copies."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn


class Callee(Protocol):
    """A callable that is copied before each call, so that no call changes the next one."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype to which floating inputs of `bare` are cast."""
        ...

    @property
    def bare(self) -> Callable[..., Tensor]:
        """The function itself: called on tensors, without a copy of the modules or of the inputs."""
        ...

    def spare(self) -> "Callee":
        """Return a copy whose modules a call may change."""
        ...

    def parts(self) -> Iterable[nn.Module]:
        """Yield every `nn.Module` in it."""
        ...
