"""Padding: whether each row alone gives what it gives in its padded batch, and who moves whom."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import called, converted, written
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.edits import edits
from clearhead.checking.hypotheses.matching import Explanation, distance, explain
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.signatures import mask_of_tokens, of_call
from clearhead.checking.subject.subject import prepare
from clearhead.recording.attempt import attempt
from clearhead.recording.lines import lines_of


class Padded(NamedTuple):
    """Measurements of a padded batch.

    Attributes:
        alone: the largest relative difference to each row alone; inf if NaN differ.
        by_padding: True if real outputs change with padding.
        queries_zero: True if all outputs of padding are zero.
    """

    alone: float
    by_padding: bool
    queries_zero: bool


def measure(
    run: Callable[[Tensor, Tensor], Tensor], x: Tensor, mask: Tensor, generator: torch.Generator
) -> Padded:
    """Return the measurements for x (batch, tokens, dim) and mask (batch, tokens), True = a real token.

    Padding is last.
    """
    whole = run(x, mask).detach()
    gaps = []
    for row, length in enumerate(mask.sum(-1).tolist()):
        alone = run(x[row : row + 1, :length], mask[row : row + 1, :length]).detach()
        same = torch.equal(alone[0].isnan(), whole[row, :length].isnan())
        gaps.append(distance(alone[0], whole[row, :length]) if same else torch.inf)
    noise = 2 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    by_padding = not _same(run(x + noise * ~mask[..., None], mask).detach(), whole, mask)
    return Padded(max(gaps), by_padding, bool((whole[~mask].abs() < 1e-9).all()))


def _same(one: Tensor, other: Tensor, where: Tensor) -> bool:
    """Return True if two outputs agree within a relative 1e-6 where `where` is True, NaN in the same positions."""
    first, second = one[where], other[where]
    return torch.equal(first.isnan(), second.isnan()) and distance(first, second) < 1e-6


SAYS_SO = re.compile(r"^(attention|.*pad.*)_mask$")


@dataclass(frozen=True, eq=False)
class PaddedEvidence(TokensEvidence):
    """Evidence of f(x, mask): first without padding, as any module of tokens; then with it."""

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor]:
        """Return x (3, tokens, width) and mask (3, tokens), True = a real token: three lengths, padding last."""
        tokens = self.feed.lengths[0]
        lengths = torch.tensor([max(tokens - less, 2) for less in (3, 1, 4)])
        return self.feed.draw(tokens, self.seed + 3, batch=3), torch.arange(tokens) < lengths[
            :, None
        ]

    @cached_property
    def padded_output(self) -> Tensor:
        """The output of the padded batch."""
        return self.subject.spare()(*self.padded).detach()

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Return the names of the inputs, "x" and "mask", that a call with the padded batch writes to."""
        found = written(self.subject.bare, self.padded)
        return tuple(("x", "mask")[index] for index in found)

    @cached_property
    def padding(self) -> Padded:
        """Return the measurements of the padded batch."""
        generator = torch.Generator().manual_seed(self.seed)
        return measure(self.subject.spare(), *self.padded, generator)

    @cached_property
    def broke(self) -> tuple[str, tuple[str, int] | None] | None:
        """Return the first operation that returned NaN, and its (file, line) or None, without padding or with it.

        None if none did.
        """
        lines = lines_of(self.subject.spare().bare, converted(self.padded, self.subject.dtype))
        return super().broke or lines.first_nan

    @cached_property
    def padded_left(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, mask and output of the same samples, padded on the left."""
        x, mask = self.padded
        shifts = (~mask).sum(-1).tolist()
        x, mask = (
            torch.stack([row.roll(by, 0) for row, by in zip(each, shifts, strict=True)])
            for each in (x, mask)
        )
        return x, mask, self.subject.spare()(x, mask).detach()

    @cached_property
    def left_gap(self) -> float:
        """Return the largest relative difference between real outputs with left and with right padding."""
        _, mask, output = self.padded_left
        return distance(output[mask], self.padded_output[self.padded[1]])

    @cached_property
    def left_leaks(self) -> bool:
        """Return True if real outputs change with the padding on their left."""
        x, mask, output = self.padded_left
        generator = torch.Generator().manual_seed(self.seed)
        noise = 2 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        moved = self.subject.spare()(x + noise * ~mask[..., None], mask).detach()
        return not _same(moved, output, mask)

    @cached_property
    def explained_padded(self) -> Explanation | None:
        """The explanation of the first group on two padded batches.

        None if there is no group, its samples are unknown, or a padded batch cannot be recorded as the first call was.
        """
        if not self.groups or self.groups[0].arranged is None:
            return None
        x, mask = self.padded
        trials = []
        others = (self.feed.draw(x.shape[1], self.seed + 5, batch=3), mask.roll(1, 0))
        for given in ((x, mask), others):
            recorded = self.record(*given)
            if recorded is None or len(recorded.attentions) != len(self.observed):
                return None
            keys = given[1][:, None, None, :]
            made = self.groups[0].trial(recorded.attentions, self.inside, self.feed.width, keys)
            if made is None:
                return None
            trials.append(made)
        return explain(
            trials,
            trials[0].setting.contract,
            lambda c: edits(c, given=True, masked=True, whole=False),
        )

    @cached_property
    def padding_leaks(self) -> bool:
        """True if a NaN in a padding token reaches real outputs."""
        x, mask = self.padded
        spoilt = x.masked_fill(~mask[..., None], torch.nan)
        return not self.subject.spare()(spoilt, mask)[mask].isfinite().all()

    @cached_property
    def all_padding(self) -> tuple[int, int] | None:
        """Return how many outputs of a sample of padding are not finite, and how many it has; None if it raises."""
        x, mask = self.padded
        nothing = mask.clone()
        nothing[-1] = False
        output = called(self.subject.spare(), (x, nothing))
        if isinstance(output, Exception):
            return None
        return int((~output[-1].isfinite()).sum()), output[-1].numel()


_with_masks: WeakKeyDictionary[TokensEvidence, PaddedEvidence | None] = WeakKeyDictionary()


def with_mask(e: TokensEvidence) -> PaddedEvidence | None:
    """Return evidence of a whole model with a mask of real tokens, made once and cached.

    Returns:
        None for anything but a whole model, without a parameter named as such a mask, or if the call with it fails.
    """
    if e not in _with_masks:
        _with_masks[e] = _with_mask(e)
    return _with_masks[e]


def _with_mask(e: TokensEvidence) -> PaddedEvidence | None:
    """Return evidence of an embedded model with its padding mask; None if it has none or the call fails."""
    run = e.given.run
    if not isinstance(run, Embedded) or isinstance(e, PaddedEvidence):
        return None
    name = mask_of_tokens(list(of_call(run.model)))
    if name is None or not SAYS_SO.match(name):
        return None

    def padded() -> PaddedEvidence | None:
        """Return evidence of the model with its mask, None if a padded batch is NaN; an error of a call is raised."""
        subject = prepare(run.model, "ids,mask", None, e.contract, e.seed)
        found = PaddedEvidence(subject, subject.contract, e.seed)
        return found if found.padding.alone >= 0 else None

    return attempt(padded)[0]
