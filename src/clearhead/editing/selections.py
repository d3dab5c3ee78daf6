"""Chosen positions of queries or keys, as a user names them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._common.text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError


@dataclass(frozen=True, eq=False)
class Selection:
    """Positions of tokens, counted from the beginning of the sequence.

    Attributes:
        name: of the argument, for messages.
        given: a slice, an int64 tensor (count,), or a bool tensor, (len,) or (batch, len).
        first: the smallest position that is chosen; None for one that is read from a bool tensor.
    """

    name: str
    given: slice | Tensor
    first: int | None

    def at(self, positions: Tensor, batch: int) -> Tensor:
        """Return True at the chosen ones of some positions, (batch or 1, count).

        Args:
            positions: int64, (count,) or (batch, count).
            batch: samples of the call.

        Raises:
            EditError: code `edit.batch`, for a choice that is made for another batch.

        Example:
            >>> selection("key", slice(2, None)).at(torch.arange(4), batch=1)
            tensor([[False, False,  True,  True]])
        """
        positions = torch.atleast_2d(positions)
        if isinstance(self.given, slice):
            start, stop, step = self.given.start or 0, self.given.stop, self.given.step or 1
            chosen = (positions >= start) & ((positions - start) % step == 0)
            return chosen if stop is None else chosen & (positions < stop)
        given = self.given.to(positions.device)
        if given.dtype != torch.bool:
            return torch.isin(positions, given)
        given = torch.atleast_2d(given)
        if given.shape[0] not in (1, batch):
            raise EditError(
                "edit.batch",
                f"{self.name} chooses tokens of {given.shape[0]} samples; the call has a batch of "
                f"{batch}. Of beams, repeat each row: {self.name}.repeat_interleave(num_beams, 0).",
            )
        if not given.shape[1]:
            return torch.zeros_like(positions, dtype=torch.bool)
        rows = max(given.shape[0], positions.shape[0])
        place = positions.clamp(max=given.shape[1] - 1).expand(rows, -1)
        inside = positions < given.shape[1]
        return given.expand(rows, -1).gather(1, place) & inside


def selection(name: str, given: object) -> Selection | None:
    """Return a choice of positions; None, which is all of them, stays None.

    Args:
        name: of the argument.
        given: a position, a slice or range, positions, or a bool tensor, (len,) or (batch, len),
            that is True at what is chosen.

    Raises:
        ArgumentTypeError: code `edit.selection`, for anything else.
        ArgumentError: code `edit.position`, for a negative position: while a text grows its end is
            not known.

    Example:
        >>> selection("key", [0, 3]).first, selection("key", None) is None
        (0, True)
    """
    if given is None:
        return None
    expected = (
        f"{name} must be a position, a slice, positions, a bool tensor of shape (len,) or (batch, "
        "len), or None for all"
    )
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        if given.ndim not in (1, 2):
            raise ArgumentTypeError("edit.selection", f"{expected}; got {tuple(given.shape)}.")
        return Selection(name, given.detach().clone(), None)
    if isinstance(given, Tensor) and not given.is_floating_point() and given.ndim <= 1:
        given = given.tolist()
    if isinstance(given, slice):
        limits = [given.start or 0, given.stop or 0, given.step or 1]
        if as_ints(limits) is None:
            raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
        if min(limits) < 0:
            raise _negative(name, given)
        return Selection(name, given, given.start or 0)
    if as_int(given) is not None:
        given = [given]
    numbers = as_ints(given) if isinstance(given, Sequence) else None
    if numbers is None:
        raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
    if numbers and min(numbers) < 0:
        raise _negative(name, given)
    # Beyond any length there is.
    places = torch.tensor([min(each, 1 << 60) for each in numbers], dtype=torch.int64)
    return Selection(name, places, min(numbers, default=None))


def _negative(name: str, given: object) -> ArgumentError:
    return ArgumentError(
        "edit.position",
        f"{name} must hold positions counted from the beginning of the sequence, 0 or more; got "
        f"{shown(given)}. The end of a text that grows is not known.",
    )
