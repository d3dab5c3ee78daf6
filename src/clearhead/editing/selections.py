"""Positions of queries or keys, as a user chooses them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError


@dataclass(frozen=True, eq=False)
class Selection:
    """Positions of tokens, counted from the beginning of the sequence, negative ones from its end.

    Attributes:
        name: of the argument, for messages.
        given: a slice, an int64 tensor (count,), or a bool tensor, (len,) or (batch, len).
        first: the position that the shortest sequence has of those that are chosen; None for one that is
            read from a bool tensor, and for no position.
    """

    name: str
    given: slice | Tensor
    first: int | None

    @property
    def tokens(self) -> int:
        """The length of the shortest sequence that has one of the positions; 0 if any has."""
        if self.first is None:
            return 0
        return self.first + 1 if self.first >= 0 else -self.first

    def at(self, positions: Tensor, batch: int, end: Tensor | int) -> Tensor:
        """Return a bool tensor, True at the chosen positions, (batch or 1, count).

        Args:
            positions: int64, (count,) or (batch, count).
            batch: samples of the call.
            end: the position behind the last token, from which negative ones count; (batch or 1, count
                or 1) where rows differ.

        Raises:
            EditError: code `edit.batch`, for a choice that is made for another batch.

        Example:
            >>> selection("key", slice(2, None)).at(torch.arange(4), batch=1, end=4)
            tensor([[False, False,  True,  True]])
            >>> selection("key", -1).at(torch.arange(4), batch=1, end=torch.tensor([[4], [3]]))
            tensor([[False, False, False,  True],
                    [False, False,  True, False]])
        """
        positions = torch.atleast_2d(positions)
        if isinstance(self.given, slice):
            return self._within(self.given, positions, end)
        given = self.given.to(positions.device)
        if given.dtype != torch.bool:
            chosen = torch.isin(positions, given[given >= 0])
            for back in given[given < 0]:
                chosen = chosen | (positions == end + back)
            return chosen
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
        place = positions.clamp(0, given.shape[1] - 1).expand(rows, -1)
        inside = (positions >= 0) & (positions < given.shape[1])
        return given.expand(rows, -1).gather(1, place) & inside

    def _within(self, given: slice, positions: Tensor, end: Tensor | int) -> Tensor:
        """Return a bool tensor like `positions`, True inside a slice; its negative bounds count from `end`."""
        start, stop, step = given.start or 0, given.stop, given.step or 1
        if start < 0:
            start = (torch.as_tensor(end, device=positions.device) + start).clamp(min=0)
        if stop is not None and stop < 0:
            stop = end + stop
        chosen = (positions >= start) & ((positions - start) % step == 0)
        return chosen if stop is None else chosen & (positions < stop)


def selection(name: str, given: object) -> Selection | None:
    """Return chosen positions as a `Selection`; None, which means all positions, stays None.

    Args:
        name: of the argument.
        given: a position, a slice or range, positions, or a bool tensor, (len,) or (batch, len),
            that is True at what is chosen. Negative positions count from the end.

    Raises:
        ArgumentTypeError: code `edit.selection`, for anything else.
        ArgumentError: code `edit.position`, for a slice that goes backwards.

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
        if (
            as_ints([given.start or 0, given.stop or 0, 1 if given.step is None else given.step])
            is None
        ):
            raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
        if given.step is not None and given.step < 1:
            raise ArgumentError(
                "edit.position", f"{name} must be a slice that goes forwards; got {shown(given)}."
            )
        return Selection(name, given, max(0, given.start or 0))
    if as_int(given) is not None:
        given = [given]
    numbers = as_ints(given) if isinstance(given, Sequence) else None
    if numbers is None:
        raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
    # Beyond any length there is.
    places = torch.tensor([max(-FAR, min(each, FAR)) for each in numbers], dtype=torch.int64)
    first = min(numbers, key=lambda each: each if each >= 0 else -each - 1, default=None)
    return Selection(name, places, first)


FAR = 1 << 60
"""A position that no text has."""


def heads_text(heads: tuple[int, ...] | slice) -> str:
    """Return heads as they are written in code.

    Example:
        >>> heads_text(slice(2, None)), heads_text((0, -1))
        ('heads[2:]', 'heads[0, -1]')
    """
    if isinstance(heads, slice):
        limits = ["" if each is None else str(each) for each in (heads.start, heads.stop)]
        step = "" if heads.step is None else f":{heads.step}"
        return f"heads[{':'.join(limits)}{step}]"
    return f"heads{list(heads)}"
