"""A whole number for the entire batch, or one for each row of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_tensor
from clearhead._common.kinds import Filed
from clearhead._common.torch_internals import can_be_read, is_transformed
from clearhead._text import shown
from clearhead.errors import ArgumentTypeError, DeviceError, MaskError

MOST_TOKENS = 1 << 60
"""Above any length there is, and a sum of a few still fits into int64."""


@dataclass(frozen=True, eq=False)
class PerRow(Filed, kind="per_row"):
    """One int, or one per row of the batch as an int64 tensor of shape (batch,), as `value`.

    `name` is the user's argument, for errors.
    """

    value: int | Tensor
    name: str
    follows: bool
    """True if it was given as plain numbers, which go to whatever device asks for them."""

    @classmethod
    def read(cls, value: int | Sequence[int] | Tensor, name: str) -> "PerRow":
        """Return the integer or the integers of a user's argument `name`, clamped to ±MOST_TOKENS.

        A tensor of no dimension becomes an int, unless torch.func transforms it, any other a copy of int64, and a
        sequence a tensor on the CPU.

        Raises:
            ArgumentTypeError: code `mask.not-whole`, for anything but whole numbers.
            MaskError: code `mask.per-row`, for a tensor of more than one dimension.
        """
        number = as_int(value)
        if number is not None:
            return cls(bounded(number), name, follows=True)
        if isinstance(value, Tensor):
            check_tensor(name, value)
            if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
                raise ArgumentTypeError(
                    "mask.not-whole",
                    f"{name} must hold whole numbers (tokens); got a tensor of {value.dtype}.",
                )
            if value.ndim > 1:
                raise MaskError(
                    "mask.per-row",
                    f"{name} must be one number or one per row of the batch, of shape (batch,); "
                    f"got shape {tuple(value.shape)}.",
                )
            if value.ndim == 0 and not is_transformed(value):
                return cls(bounded(int(value)), name, follows=True)
            kept = value.reshape(-1).to(torch.int64).clamp(-MOST_TOKENS, MOST_TOKENS)
            return cls(kept, name, follows=False)
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise ArgumentTypeError(
                "mask.not-whole",
                f"{name} must be a whole number (tokens), or one per row of the batch; "
                f"got {type(value).__name__}.",
            )
        numbers = [bounded(number) for each in value if (number := as_int(each)) is not None]
        if len(numbers) < len(value):
            raise ArgumentTypeError(
                "mask.not-whole", f"{name} must hold whole numbers (tokens); got {shown(value)}."
            )
        # On the CPU whatever the default device is: they go to the device of the query.
        return cls(torch.tensor(numbers, dtype=torch.int64, device="cpu"), name, follows=True)

    @property
    def batch(self) -> int | None:
        """The number of rows, or None for one integer that all rows share."""
        return self.value.shape[0] if isinstance(self.value, Tensor) else None

    @property
    def device(self) -> torch.device | None:
        """The device of the integers if they were given as a tensor.

        None if they were plain numbers, which go to any device.
        """
        return self.value.device if isinstance(self.value, Tensor) and not self.follows else None

    def limits(self) -> tuple[int, int] | None:
        """Return the smallest and the largest integer; None for an empty tensor or one that cannot be read."""
        if not isinstance(self.value, Tensor):
            return self.value, self.value
        if self.value.numel() == 0 or not can_be_read(self.value):
            return None
        return int(self.value.min()), int(self.value.max())

    def check_device(self, device: torch.device) -> None:
        """Raise DeviceError, code `mask.device`, if the integers were given as a tensor on another device."""
        if self.device is not None and self.device != device:
            raise DeviceError(
                "mask.device",
                f"the mask must be on the query's device; its {self.name} is on {self.device}, "
                f"the query on {device}.",
            )

    def on(self, device: torch.device, *shape: int) -> int | Tensor:
        """Return the single integer, or a tensor of the integers with shape `shape` on the device."""
        if not isinstance(self.value, Tensor):
            return self.value
        return self.value.to(device).view(shape)

    def describe(self) -> str:
        """Return the integer or the list as text; above 8 rows, or if they cannot be read, `<9 numbers>`."""
        if not isinstance(self.value, Tensor):
            return str(self.value)
        if self.value.numel() > 8 or not can_be_read(self.value):
            return f"<{self.value.numel()} numbers>"
        return str(self.value.tolist())


def bounded(tokens: int) -> int:
    """Return the number clamped to ±MOST_TOKENS, so that sums with positions do not overflow; a SymInt unchanged."""
    if isinstance(tokens, torch.SymInt):
        return tokens
    return max(-MOST_TOKENS, min(tokens, MOST_TOKENS))
