"""What is recorded: anything that can be called again on copies."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn


class Callee(Protocol):
    """A callable that is copied before each call, so that no call changes the next one."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its inputs."""
        ...

    @property
    def bare(self) -> Callable[..., Tensor]:
        """The call without any copy."""
        ...

    def spare(self) -> "Callee":
        """Return a copy that may be changed by a call."""
        ...

    def parts(self) -> Iterable[nn.Module]:
        """Yield its modules."""
        ...
