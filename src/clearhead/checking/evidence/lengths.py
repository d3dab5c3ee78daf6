"""The law of length, asked of calls: attention is the same mechanism at any number of tokens."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.checking.evidence.arranging import Arrangement, trial
from clearhead.checking.evidence.base import record
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence, stepped
from clearhead.checking.evidence.laws import Broken, Call, Inputs, called, gap_of
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.raw import projected
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Trial, fits, window_of
from clearhead.checking.hypotheses.recipe import RIGHT, Recipe
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import (
    FELT,
    LAW_LENGTHS,
    LAW_NUMBERS,
    LAW_PAIRS,
    LAW_ROUNDING,
    LAW_STEPS,
    ROUNDING,
)
from clearhead.recording.capture import Capture
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.weighing import weigh


def counted(subject: Subject, inputs: Inputs) -> tuple[int, int] | None:
    """The tokens and the operations of a call; None where it is refused."""
    turned = [
        each.to(subject.dtype) if each.is_floating_point() else each.clone() for each in inputs
    ]
    try:
        with torch.no_grad(), Capture({}) as made:
            subject.fresh().bare(*turned)
    except Exception:  # code that looks at what its tensors are may fail under a mode
        return None
    return inputs[0].shape[-2], made.count


def operations(steps: Sequence[tuple[int, int]], tokens: int) -> float:
    """The operations of a call with so many tokens, by those of calls with (tokens, operations), if there are any.

    Code that loops over tokens takes some more for each; other code takes as many at any length.
    """
    (one, most), *rest = sorted(steps, reverse=True) or [(1, 1)]
    if not rest or most - rest[0][1] < one - rest[0][0]:
        return most
    power = math.log(most / rest[0][1]) / math.log(one / rest[0][0])
    return most * (tokens / one) ** power


def bearable(
    steps: Sequence[tuple[int, int]], heads: int, numbers: int, limit: int | None
) -> list[int]:
    """The lengths to ask at: those that cost little.

    Args:
        steps: (tokens, operations) of calls.
        heads: all heads of one sample, for each of which there is a matrix of weights.
        numbers: of the parameters.
        limit: the most tokens that it takes, None for any.
    """
    return [
        each
        for each in LAW_LENGTHS
        if (limit is None or each <= limit) and costs_little(steps, heads, numbers, each)
    ]


def costs_little(steps: Sequence[tuple[int, int]], heads: int, numbers: int, tokens: int) -> bool:
    """True if a call with so many tokens is bearable; the rest is as of `bearable`."""
    few = operations(steps, tokens) <= LAW_STEPS and tokens * numbers <= LAW_NUMBERS
    return few and tokens * tokens * heads <= LAW_PAIRS


def by_the_future(run: Call, x: Tensor) -> Broken | None:
    """Change the last token of a text: behind a causal mask, nothing before it moves.

    What is refused, or cut to fewer tokens, promises nothing.
    """
    changed = x.clone()
    changed[:, -1] = -changed[:, -1]
    still, moved = called(run, (x,)), called(run, (changed,))
    if isinstance(still, Exception) or isinstance(moved, Exception):
        return None
    if still.shape[:2] != x.shape[:2] or not still.isfinite().all():
        return None
    gap = gap_of(moved[:, :-1], still[:, :-1])
    if gap <= ROUNDING[still.dtype]:
        return None
    return Broken("past-the-mask", gap, f"{x.shape[1]} tokens, of which the last is another")


def by_prefixes(run: Call, x: Tensor, lengths: Sequence[int]) -> Broken | None:
    """Call with the first tokens of a text: behind a causal mask, they are what they are in all of it.

    Args:
        run: the call, which sees no later token.
        x: (batch, tokens, …).
        lengths: the numbers of tokens to hand over.
    """
    whole = called(run, (x,))
    if isinstance(whole, Exception) or not whole.isfinite().all():
        return None
    for tokens in lengths:
        part = called(run, (x[:, :tokens],))
        if isinstance(part, Exception):
            continue
        expected = whole[:, :tokens]
        gap = gap_of(part, expected)
        if gap > ROUNDING[whole.dtype]:
            return Broken("prefix", gap, f"the first {tokens} of {x.shape[1]} tokens")
    return None


def by_doubling(run: Call, draw: Callable[[int], Tensor], lengths: Sequence[int]) -> Broken | None:
    """Call with a text twice: without a mask and positions, each token is what it is in one text.

    What differs at the first length already has a mask or positions, and is not asked.

    Args:
        run: the call.
        draw: (batch, tokens, …) for a number of tokens.
        lengths: the numbers of tokens to hand over, small ones first.
    """
    for number, tokens in enumerate(lengths):
        x = draw(tokens)
        once, twice = called(run, (x,)), called(run, (torch.cat([x, x], 1),))
        if isinstance(once, Exception) or isinstance(twice, Exception):
            return None
        gap = gap_of(twice[:, :tokens], once)
        if gap <= ROUNDING[once.dtype]:
            continue
        if not number:
            return None
        return Broken("doubled", gap, f"{tokens} tokens, handed over twice, one behind the other")
    return None


class Carried(NamedTuple):
    """The last output that moves with the first token, the last that moves with the token there, and the
    number of tokens."""

    first: int
    next: int
    tokens: int

    @property
    def whole(self) -> bool:
        """True if the last output moves with the first token."""
        return self.first == self.tokens - 1

    @property
    def window(self) -> bool:
        """True if each token is felt as far as the first one is; in blocks, only up to the end of its own."""
        return self.next >= min(2 * self.first, self.tokens - 1) > self.first


def reach(run: Call, x: Tensor) -> Carried | None:
    """Measure how far behind a token outputs still move with it, in x (batch, tokens, …); None where none moves.

    Where the last output moves with the first token, no other is asked.
    """

    def last(token: int) -> int:
        changed = x.clone()
        changed[:, token] = -changed[:, token]
        moved = called(run, (changed,))
        if isinstance(still, Exception) or isinstance(moved, Exception):
            return -1
        felt = (moved - still).abs().amax(-1).amax(0) > FELT * still.abs().max()
        return int(felt.nonzero().max()) if felt.any() else -1

    still = called(run, (x,))
    first = last(0)
    if first < 0:
        return None
    return Carried(first, first if first == x.shape[1] - 1 else last(first), x.shape[1])


class AtLength(NamedTuple):
    """A call of many tokens that was held against the definition: what is broken, if anything is."""

    broken: Broken | None


def by_the_definition(e: TokensEvidence, tokens: int) -> AtLength | None:
    """Hold the attentions inside a call of so many tokens against the definition, where it fits shorter ones.

    With padding where a mask is taken, and with the rotation where one is declared.
    """
    with_padding = e.explained_padded if isinstance(e, PaddedEvidence) else None
    padded = with_padding is not None
    inputs = drawn(e, tokens, padded=padded)
    recorded = record(e.subject.fresh(), inputs)
    if recorded is None or len(recorded.attentions) != len(e.observed):
        return None
    held = False
    for index, group in enumerate(e.groups):
        explained = with_padding if padded and not index else e.explanations[index]
        if explained is None or not explained.right or (padded and index):
            continue
        same = group.joined([recorded.attentions[each] for each in group.indices])
        keys = inputs[1][:, None, None, :] if padded else None
        try:
            case = trial(same, group.arranged, explained.contract, e.feed.width, keys)
        except RuntimeError:  # another number of blocks a sample
            continue
        held = True
        if not holds(_windowed(case, same, group.arranged)):
            return AtLength(_other(case))
        if index == 0 and e.rotated is not None and e.rotated.right:
            made = projected(recorded.recorder, same, group.arranged, e.promised)
            turned = None if made is None or not made.known else made.trial(e.contract)
            if turned is not None and not holds(turned):
                return AtLength(_other(turned)._replace(way="rotated"))
    return AtLength(None) if held else None


def holds(case: Trial, recipe: Recipe = RIGHT) -> bool:
    """True if the definition gives what a call of many tokens gave, but for rounding."""
    return fits([case], recipe) is not None or case.error(recipe) < LAW_ROUNDING


def _windowed(
    case: Trial, same: Sequence[ObservedAttention], arranged: Arrangement | None
) -> Trial:
    """The call under a window that is seen and not declared, which fewer tokens do not show."""
    if arranged is None or case.setting.contract.local:
        return case
    seen = torch.cat([arranged.heads(weigh(each).visible) for each in same], 1)
    window = window_of(seen[0, 0])
    if window is None or not torch.equal(seen, seen[:1, :1].expand_as(seen)):
        return case
    causal = window[1] == 0 or case.setting.contract.causal
    return case.under(replace(case.setting.contract, window=window, causal=causal))


def _other(case: Trial) -> Broken:
    return Broken("definition", case.error(RIGHT), case.name)


def drawn(e: TokensEvidence, tokens: int, *, padded: bool = False) -> Inputs:
    """The inputs of a call of so many tokens, with a mask of fewer real ones if it is to be padded."""
    if isinstance(e, CrossEvidence):
        more = tokens if e.alike else tokens + 2
        context = e.feed.draw(more, e.seed + 9, width=e.feed.context_width)
        return e.feed.draw(tokens, e.seed + 8), context
    x = e.feed.draw(tokens, e.seed + 8)
    if not padded:
        return (x,)
    return x, torch.arange(tokens) < torch.tensor([[tokens - 3], [tokens - 1]])


def by_decoding(e: DecodingEvidence) -> tuple[Broken | None, int]:
    """Hand tokens over in chunks, many of them: what comes is what full(x) gives, as with few.

    Returns:
        What is broken, and the most tokens that were asked.
    """
    most, held = e.feed.longest or max(LAW_LENGTHS), 0
    counts = []
    for tokens in (5, 7):
        with Capture({}) as counted, torch.no_grad():
            e.subject.run.full(e.feed.draw(tokens, e.seed).to(e.subject.dtype))
        counts.append((tokens, counted.count))
    for tokens in (each for each in LAW_LENGTHS if 17 < each <= min(most, 257)):
        if operations(counts, tokens) > LAW_STEPS:
            break
        x = e.feed.draw(tokens, e.seed + 6)
        chunks = [tokens // 2, tokens - tokens // 2 - 2, 1, 1]
        try:
            whole, parts = e.fresh().full(x), stepped(e.fresh(), x, chunks)
        except Exception:  # a cache of so many tokens may be refused
            break
        gap, held = gap_of(parts, whole), tokens
        if gap > 10 * ROUNDING[e.subject.dtype]:
            said = ", ".join(map(str, chunks))
            return Broken("decoded", gap, f"{tokens} tokens, in chunks of {said}"), held
    return None, held


def repeated_row(subject: Subject, inputs: Inputs) -> int | None:
    """The first token whose row of a table of positions an earlier token had; None where each has its own.

    A table of positions has as many rows as tokens, or more, and is read at one for each, from one on.
    """
    spare, found = subject.spare(), []
    tokens = inputs[0].shape[-2]
    samples = inputs[0].numel() // (tokens * inputs[0].shape[-1])
    left_out = {id(each) for each in getattr(spare.run, "left_out", ())}

    def kept(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].numel() not in (tokens, samples * tokens):
            return
        rows = args[0].reshape(-1, tokens)[0].tolist()
        first = next((place for place, row in enumerate(rows) if row in rows[:place]), tokens)
        if first < tokens and rows[:first] == list(range(rows[0], rows[0] + first)):
            found.append(first)

    for part in spare.parts():
        if not isinstance(part, nn.Embedding) or id(part.weight) in left_out:
            continue
        if part.num_embeddings >= tokens > 1:
            part.register_forward_pre_hook(kept)
    called(spare, inputs)
    return min(found, default=None)
