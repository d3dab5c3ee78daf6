"""The law of length, asked of calls: attention is the same mechanism at any number of tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.evidence.arranging import Arrangement
from clearhead.checking.evidence.base import record
from clearhead.checking.evidence.cases import Broken, Call, Case, Inputs, called, converted, gap_of
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence, stepped
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Trial, fits, window_of
from clearhead.checking.hypotheses.recipe import RIGHT, Recipe
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import (
    FELT,
    LAW_LENGTHS,
    LAW_NUMBERS,
    LAW_PAIRS,
    LAW_RECORDED,
    LAW_ROUNDING,
    LAW_STEPS,
    ROUNDING,
)
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.provenance import Capture
from clearhead.recording.weighing import weigh


def count_operations(subject: Subject, inputs: Inputs) -> tuple[int, int] | None:
    """Return the number of tokens and of operations of a call; None if it fails."""
    run, copies = subject.fresh().bare, converted(inputs, subject.dtype)
    with Capture({}) as made:
        output = called(run, copies)
    return None if isinstance(output, Exception) else (inputs[0].shape[-2], made.count)


def estimate_operations(steps: Sequence[tuple[int, int]], tokens: int) -> float:
    """Return the estimated operations of a call, by the power law of the two longest measured calls.

    Those of the longest call if it is the only one, or if they grow by less than one a token: code without a loop over
    tokens. 1 if none was measured.
    """
    (one, most), *rest = sorted(steps, reverse=True) or [(1, 1)]
    if not rest or most - rest[0][1] < one - rest[0][0]:
        return most
    power = math.log(most / rest[0][1]) / math.log(one / rest[0][0])
    return most * (tokens / one) ** power


def affordable_lengths(
    steps: Sequence[tuple[int, int]], heads: int, numbers: int, limit: int | None
) -> list[int]:
    """Return the lengths of `LAW_LENGTHS` at which calls are affordable; [] if none is.

    Args:
        steps: (tokens, operations) of calls.
        heads: all heads of one sample; each has a matrix of weights.
        numbers: of the parameters.
        limit: the most tokens that it accepts, None for any.
    """
    return [
        each
        for each in LAW_LENGTHS
        if (limit is None or each <= limit) and is_affordable(steps, heads, numbers, each)
    ]


def is_affordable(steps: Sequence[tuple[int, int]], heads: int, numbers: int, tokens: int) -> bool:
    """Return True if a call with `tokens` tokens is affordable; the other arguments are as in `affordable_lengths`."""
    few = estimate_operations(steps, tokens) <= LAW_STEPS and tokens * numbers <= LAW_NUMBERS
    return few and tokens * tokens * heads <= LAW_PAIRS


def by_the_future(run: Call, x: Tensor) -> Iterator[Case]:
    """Yield one case: with another last token, the outputs of earlier tokens must not change.

    Nothing if the call fails, returns another number of samples or tokens, or is not finite.
    """
    changed, output = x.clone(), called(run, (x,))
    changed[:, -1] = -changed[:, -1]
    if isinstance(output, Exception) or output.shape[:2] != x.shape[:2]:
        return
    if output.isfinite().all():
        at = f"{x.shape[1]} tokens, with another last token"
        yield Case(at, lambda: run(changed)[:, :-1], output[:, :-1], ROUNDING[output.dtype])


def by_prefixes(run: Call, x: Tensor, lengths: Sequence[int]) -> Iterator[Case]:
    """Yield cases: the first tokens of a text must have the outputs that they have in all of it.

    Nothing if the call of the whole text fails or is not finite.

    Args:
        run: the call, in which no token sees a later one.
        x: (batch, tokens, …).
        lengths: the numbers of first tokens.
    """
    whole = called(run, (x,))
    if isinstance(whole, Exception) or not whole.isfinite().all():
        return
    for tokens in lengths:
        at = f"the first {tokens} of {x.shape[1]} tokens"
        call = partial(run, x[:, :tokens])
        yield Case(at, call, whole[:, :tokens], ROUNDING[whole.dtype])


def by_doubling(run: Call, draw: Callable[[int], Tensor], lengths: Sequence[int]) -> Iterator[Case]:
    """Yield cases: a text twice in a row must have the outputs of the text, without a mask and positions.

    If the first length differs, there is a mask or there are positions, and nothing is yielded; a call that fails ends
    it.

    Args:
        run: the call.
        draw: returns (batch, tokens, …) for a number of tokens.
        lengths: the numbers of tokens, small ones first.
    """
    for number, tokens in enumerate(lengths):
        x = draw(tokens)
        once, twice = called(run, (x,)), called(run, (torch.cat([x, x], 1),))
        if isinstance(once, Exception) or isinstance(twice, Exception):
            return
        first, rounding = twice[:, :tokens], ROUNDING[once.dtype]
        if not number and gap_of(first, once) > rounding:
            return
        yield Case(f"{tokens} tokens, twice in a row", first.clone, once, rounding)


def reach(run: Call, x: Tensor) -> tuple[int, int] | None:
    """Return the index of the last output that changes with token 0, and of the last that changes with the token there.

    Args:
        run: the call.
        x: (batch, tokens, …).

    Returns:
        None if no output changes, or a call with the first token changed fails.
    """

    def last(token: int) -> int:
        """Return the index of the last output that changes with a token; -1 if none does or a call fails."""
        changed = x.clone()
        changed[:, token] = -changed[:, token]
        moved = called(run, (changed,))
        if isinstance(still, Exception) or isinstance(moved, Exception):
            return -1
        felt = (moved - still).abs().amax(-1).amax(0) > FELT * still.abs().max()
        return int(felt.nonzero().max()) if felt.any() else -1

    still = called(run, (x,))
    first = last(0)
    return None if first < 0 else (first, first if first == x.shape[1] - 1 else last(first))


def is_window(first: int, following: int, tokens: int) -> bool:
    """Return True if the token that the first one reaches last reaches as far again; in blocks it does not.

    `first` and `following` are what `reach` returns. False if the first token reaches the last output.
    """
    return following >= min(2 * first, tokens - 1) > first


def trials_at(e: TokensEvidence, tokens: int) -> Iterator[tuple[str, Trial]]:
    """Yield ("definition", trial) for each attention in a longer call that follows the definition in short ones.

    The whole layer is yielded too if it follows it. If a padded batch was explained, the call is padded, and only the
    first attention is yielded. Nothing if the call fails, or has another number of attentions.
    """
    with_padding = e.explained_padded if isinstance(e, PaddedEvidence) else None
    padded = with_padding is not None
    inputs = drawn(e, tokens, padded=padded)
    recorded = record(e.subject.fresh(), inputs)
    if recorded is None or len(recorded.attentions) != len(e.observed):
        return
    for index, group in enumerate(e.groups):
        explained = with_padding if padded and not index else e.explanations[index]
        if explained is None or not explained.right or (padded and index):
            continue
        same = group.joined([recorded.attentions[each] for each in group.indices])
        keys = inputs[1][:, None, None, :] if padded else None
        case = group.trial(recorded.attentions, explained.contract, e.feed.width, keys)
        if case is None:
            continue
        yield "definition", _windowed(case, same, group.arranged)
        layer = e.layers[index]
        if layer is None or not layer.right or padded or layer.contract.rope != e.contract.rope:
            continue
        heads = layer.trials[0].setting.num_heads
        made = [sides.trial(layer.contract, heads) for sides in e.layer_sides(index, recorded)]
        whole = [_windowed(each, same, group.arranged) for each in made if each is not None]
        if whole:
            yield "definition", min(whole, key=lambda each: each.error(RIGHT))


def holds(case: Trial, recipe: Recipe = RIGHT) -> bool:
    """Return True if the recipe fits a call of many tokens, up to rounding."""
    return fits([case], recipe) is not None or case.error(recipe) < LAW_ROUNDING


def _windowed(
    case: Trial, same: Sequence[ObservedAttention], arranged: Arrangement | None
) -> Trial:
    """Return the call under a window that its visible pairs show and that is not declared.

    The call itself without one.
    """
    if arranged is None or case.setting.contract.local:
        return case
    seen = torch.cat([arranged.heads(weigh(each).visible) for each in same], 1)
    window = window_of(seen[0, 0])
    if window is None or not torch.equal(seen, seen[:1, :1].expand_as(seen)):
        return case
    causal = window[1] == 0 or case.setting.contract.causal
    return case.under(replace(case.setting.contract, window=window, causal=causal))


def drawn(e: TokensEvidence, tokens: int, *, padded: bool = False) -> Inputs:
    """Return the inputs of a call with `tokens` tokens: (x,), (x, context), or (x, padding mask) if `padded`."""
    if isinstance(e, CrossEvidence):
        more = tokens if e.alike else tokens + 2
        context = e.feed.draw(more, e.seed + 9, width=e.feed.context_width)
        return e.feed.draw(tokens, e.seed + 8), context
    x = e.feed.draw(tokens, e.seed + 8)
    if not padded:
        return (x,)
    return x, torch.arange(tokens) < torch.tensor([[tokens - 3], [tokens - 1]])


def by_decoding(e: DecodingEvidence) -> tuple[Broken | None, int]:
    """Compare many tokens in chunks with full(x), for ascending numbers of tokens.

    It ends, as if nothing more were asked, where either call raises or too many operations are expected. An error of
    full(x) at 5 or 7 tokens, which are counted first, is raised.

    Returns:
        The first that differs, or None, and the largest number of tokens that was compared, 0 for none.
    """
    most, held = e.feed.longest or max(LAW_LENGTHS), 0
    draw, counts = partial(e.feed.draw, seed=e.seed + 6), []
    for tokens in (5, 7):
        with Capture({}) as made, torch.no_grad():
            e.subject.run.full(draw(tokens).to(e.subject.dtype))
        counts.append((tokens, made.count))
    for tokens in (each for each in LAW_LENGTHS if 17 < each <= min(most, LAW_RECORDED)):
        if estimate_operations(counts, tokens) > LAW_STEPS:
            break
        x, chunks = draw(tokens), [tokens // 2, tokens - tokens // 2 - 2, 1, 1]
        whole, parts = called(e.fresh().full, (x,)), called(partial(stepped, e.fresh(), x, chunks))
        if isinstance(whole, Exception) or isinstance(parts, Exception):
            break
        gap, held = gap_of(parts, whole), tokens
        if gap > 10 * ROUNDING[e.subject.dtype]:
            at = f"{tokens} tokens, in chunks of {', '.join(map(str, chunks))}"
            return Broken("decoded", gap, at), held
    return None, held


def repeated_row(subject: Subject, inputs: Inputs) -> int | None:
    """Return the first token that gets the row of a table of positions that an earlier token had; None if none does.

    A table of positions is an embedding with at least as many rows as tokens, called with consecutive indices.
    """
    spare, found = subject.spare(), []
    tokens = inputs[0].shape[-2]
    samples = inputs[0].numel() // (tokens * inputs[0].shape[-1])
    left_out = {id(each) for each in getattr(spare.run, "left_out", ())}

    def kept(module: nn.Module, args: tuple[Any, ...]) -> None:
        """Append the first repeated row to `found`, if the module is called with consecutive indices that recur."""
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
