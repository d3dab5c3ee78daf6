"""The labels that ranks learn from, read off the gradients of their logits.

The gradient of a cross-entropy is weight · (softmax(logits) − one-hot of the label): its smallest number
stands at the label, and its size is the weight of the token. All ids of a text differ, so that an id
says which token the label is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from clearhead.checking.evidence.base import Settled
from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict
from clearhead.checking.ranks.launching import AskedOfRanks, Outcome, failures_of
from clearhead.checking.ranks.placement import Placement, placement
from clearhead.checking.ranks.rank_calls import RankCall, RankResult, gathered
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ModelError

NONE, OTHER, UNREAD = -1, -2, -3
"""In place of the position of a label: no label, one that is no token of the text, and a gradient that is
not that of one label."""

BATCH = 2
LENGTHS = (23, 29)
"""Primes, which no number of ranks divides."""

SILENT = 1e-9
"""A gradient, of the largest, of a token without a label."""
FITS = 1e-3
"""A gradient, of the weight of its token, that is rounded in float32 at most."""


@dataclass(frozen=True, eq=False)
class Learned:
    """The labels of a call.

    Attributes:
        here: the tokens of each rank.
        labels: the position of the label of each token, or NONE, OTHER or UNREAD, (batch, tokens).
        weights: the weight of each token in the sum of the losses of all ranks, (batch, tokens).
    """

    here: Placement
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class LabelsEvidence(AskedOfRanks):
    """Evidence of f(logits, ids, …) on the logits of each rank."""

    def _run(self, subject: Subject, tokens: int) -> tuple[RankCall, tuple[Outcome, ...]]:
        generator = torch.Generator().manual_seed(self.seed + tokens)
        # 0 is left to padding.
        ids = [1 + torch.randperm(tokens + 3, generator=generator)[:tokens] for _ in range(BATCH)]
        shape = BATCH, tokens, tokens + 4
        logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        options = {"layout": self.contract.layout or "contiguous"}
        positions = placement(tokens, self.contract).positions
        call = RankCall((logits, torch.stack(ids)), torch.ones(()), positions, options)
        return call, tuple(self.ranks.run(subject, call))

    @cached_property
    def _first(self) -> tuple[Subject, RankCall, tuple[Outcome, ...]]:
        """The first call, in the precision in which it works."""
        tokens = 8 * (self.contract.world or 1)
        found = self._run(self.given, tokens)
        if failures_of(found[1]) and not self._apart(found[1]):
            single = self.given.within(torch.float32)
            other = self._run(single, tokens)
            if not failures_of(other[1]):
                return single, *other
        return self.given, *found

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return self._first[2]

    @cached_property
    def settled(self) -> Settled:
        """The first call, as other evidence has it."""
        subject, call, outcomes = self._first
        inputs: dict[str, Tensor] = dict(zip(("logits", "ids"), call.inputs, strict=True))
        failed = failures_of(outcomes)
        if failed:
            words = "; ".join(f"rank {rank}: {each}" for rank, each in failed.items())
            return Settled(subject, inputs, error=RuntimeError(words))
        for rank, each in enumerate(outcomes):
            if isinstance(each, RankResult) and (not each.grads or each.grads[0] is None):
                raise ModelError(
                    "check.output",
                    f"{self.given.name} must give the loss of each rank, a tensor of one number with a "
                    f"gradient of its logits; rank {rank} gave {list(each.outputs[0].shape)}"
                    f"{'' if each.attached else ' without a gradient'}.",
                )
        return Settled(subject, inputs)

    def call_error(self, error: Exception) -> ModelError:
        """The error for a subject that no rank can call."""
        logits, ids = self._first[1].inputs
        count = len(self._first[1].positions[0])
        return ModelError(
            "check.ranks",
            f"{self.given.name} was called on {self.contract.world} ranks and raised on all of them. "
            f"{error}\n  logits {[BATCH, count, logits.shape[2]]} on rank 0, of its tokens\n"
            f"  ids {list(ids.shape)}, of all tokens\nWhat it takes beside them is handed over by its "
            "name: mesh, group, rank, world, tokens, positions, layout.",
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        """None: it has no sizes of its own."""
        return {}

    @cached_property
    def learned(self) -> list[Learned]:
        """The labels of every call that worked."""
        subject, *first = self._first
        made = [first, self._run(subject, 6 * (self.contract.world or 1))]
        if self.ranks.own:
            for tokens in LENGTHS:
                made.append(self._run(subject, tokens))
                if failures_of(made[-1][1]):
                    break
        return [_learned(call, outcomes) for call, outcomes in made if not failures_of(outcomes)]


def _learned(call: RankCall, outcomes: tuple[Outcome, ...]) -> Learned:
    logits, ids = call.inputs
    grads = [
        each.grads[0][:, None]
        for each in outcomes
        if isinstance(each, RankResult) and each.grads and each.grads[0] is not None
    ]
    grad = gathered(grads, call.positions)[:, 0]
    tokens, vocabulary = logits.shape[1:]
    shares = logits.softmax(-1)
    found = grad.argmin(-1, keepdim=True)
    weights = -(grad.gather(-1, found) / (1 - shares.gather(-1, found)))
    expected = weights * (shares - one_hot(found[..., 0], vocabulary))
    fits = (grad - expected).abs().amax(-1) <= FITS * weights[..., 0]
    silent = grad.abs().amax(-1) <= SILENT * grad.abs().max()
    places = torch.full((BATCH, vocabulary), OTHER)
    places.scatter_(1, ids, torch.arange(tokens).expand(BATCH, -1))
    labels = places.gather(1, found[..., 0])
    labels = labels.masked_fill(~fits, UNREAD).masked_fill(silent, NONE)
    here = Placement(torch.cat(call.positions), tuple(map(len, call.positions)))
    return Learned(here, labels, weights[..., 0].masked_fill(silent, 0.0))


def _next(here: Placement) -> Tensor:
    """The next token of the text; the last has none."""
    tokens = len(here.order)
    return torch.arange(1, tokens + 1).masked_fill(torch.arange(tokens) == tokens - 1, NONE)


def _is_last_of_rank(here: Placement) -> Tensor:
    return here.local == torch.tensor(here.counts)[here.owner] - 1


def _next_in_row(here: Placement) -> Tensor:
    """The next token in the order of the ranks."""
    following = torch.cat([here.order[1:], torch.tensor([NONE])])
    return following[here.row]


def _next_of_rank(here: Placement) -> Tensor:
    return _next_in_row(here).masked_fill(_is_last_of_rank(here), NONE)


def _round_the_rank(here: Placement) -> Tensor:
    return torch.where(_is_last_of_rank(here), here.order[here.first], _next_of_rank(here))


def _round_the_text(here: Placement) -> Tensor:
    return _next(here).where(_next(here) != NONE, 0)


def _behind(label: Tensor, here: Placement) -> Tensor:
    """The next token of the text behind a label."""
    return torch.where(label == NONE, NONE, _next(here)[label.clamp(min=0)])


LABELS: Mapping[str, Callable[[Placement], Tensor]] = {
    "after": _next_of_rank,
    "rolled": _round_the_rank,
    "dropped": lambda here: _next(here).masked_fill(_is_last_of_rank(here), NONE),
    "order": _next_in_row,
    "wraps": _round_the_text,
    "unshifted": lambda here: torch.arange(len(here.order)),
    "unshifted-cut": lambda here: torch.arange(len(here.order)).masked_fill(
        _next(here) == NONE, NONE
    ),
    "twice": lambda here: _behind(_next(here), here),
    "twice-after": lambda here: _behind(_next_of_rank(here), here),
}
"""The label of each token, by the ways to be wrong."""


def labels(e: LabelsEvidence) -> Verdict:
    """Tokens that are to predict another than the next one."""

    def given(way: Callable[[Placement], Tensor]) -> bool:
        return all(bool((each.labels == way(each.here)).all()) for each in e.learned)

    if given(_next):
        return Clear("labels", {"world": e.contract.world})
    if any(bool((each.labels == UNREAD).any()) for each in e.learned):
        return Unknown("labels", {})
    ways = [name.partition("-")[0] for name, way in LABELS.items() if given(way)]
    wrong = next(each for each in e.learned if bool((each.labels != _next(each.here)).any()))
    measured = ("text", {"text": _told(wrong)})
    if not ways:
        return Found("other", {}, measured)
    return Found(ways[0], {}, measured, tuple(("ranks.labels", way, {}) for way in ways[1:]))


def _told(learned: Learned) -> str:
    """The first labels that are wrong, and how many."""
    expected = _next(learned.here)
    bad = (learned.labels != expected).any(0).nonzero().flatten().tolist()
    names = {NONE: "none", OTHER: "no token of the text"}
    some = []
    for token in bad[:3]:
        row = int((learned.labels[:, token] != expected[token]).nonzero()[0])
        label = int(learned.labels[row, token])
        some.append(f"token {token}: {names.get(label, f'token {label}')}")
    more = f", and {len(bad) - 3} more" if len(bad) > 3 else ""
    return f"other labels at {len(bad)} of {len(expected)} tokens: {', '.join(some)}{more}"


def share(e: LabelsEvidence) -> Verdict:
    """Tokens that weigh more than others."""
    if any(bool((each.labels == UNREAD).any()) for each in e.learned):
        return Unknown("labels", {})
    if all(_alike(each.weights, each.labels != NONE) for each in e.learned):
        return Clear()
    means = True
    for each in e.learned:
        has, world = each.labels != NONE, len(each.here.counts)
        counts = torch.stack([has[:, each.here.owner == rank].sum() for rank in range(world)])
        means = means and _alike(each.weights * counts[each.here.owner], has)
    wrong = next(each for each in e.learned if not _alike(each.weights, each.labels != NONE))
    found = wrong.weights[wrong.labels != NONE]
    text = f"weights of tokens lie between {float(found.min()):.3g} and {float(found.max()):.3g}"
    return Found("mean" if means else "other", {}, ("text", {"text": text}))


def _alike(weights: Tensor, has: Tensor) -> bool:
    found = weights[has]
    return not len(found) or bool((found - found[0]).abs().max() <= FITS * found.abs().max())
