"""Laws of what is learnt: the targets, what the logits may see, and the order of tokens."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clearhead.testing.training.probes import (
    NO_LOGITS,
    NO_TARGETS,
    Verdict,
    broken,
    held,
    moves,
    noise,
    not_asked,
    not_judged,
    other_tokens,
)
from clearhead.testing.training.rehearsal import (
    LossCall,
    Rehearsal,
    Script,
    Targets,
    same,
    targets,
)

# Places of a text that are asked, at most; steps on one batch.
PLACES, BY_HEART = 12, 20


def predicting(script: Script) -> Iterator[Verdict]:
    """Logits move with the tokens up to theirs, and the target is the token after the last of these."""
    rehearsal = Rehearsal(script)
    seen = rehearsal.call()
    if seen.logits is None:
        yield from (not_judged(f"train.{each}", NO_LOGITS) for each in ("leak", "target"))
        return
    asked, base = targets(seen), seen.logits
    leaks = list(_leaks(script, rehearsal, base, asked))
    sees = 0
    if script.causal and base.ndim == 3:
        ahead = _ahead(script, rehearsal, base)
        if ahead is None:
            yield not_judged("train.leak", "no token that is changed moves the logits")
        elif ahead[0] > 0:
            leaks.insert(0, broken("train.leak", *ahead[1]))
        else:
            leaks = leaks or [held("train.leak", "no logit sees a later token")]
        sees = 0 if ahead is None else ahead[0]
    elif script.causal:
        yield not_judged("train.leak", "the logits have no axis of tokens")
    elif asked is None:
        yield not_judged("train.leak", NO_TARGETS)
    else:
        leaks += _given(script, seen.arguments, seen.keywords, asked)
        leaks = leaks or [held("train.leak", "no logit sees its label")]
    yield from leaks
    if script.causal:
        yield _shift(script, asked, 1 if sees > 0 else sees + 1)
    else:
        yield not_asked("train.target", "causal=False: no token predicts the next")
    yield _apart(script, rehearsal, base)


def _ahead(
    script: Script, rehearsal: Rehearsal, base: Tensor
) -> tuple[int, tuple[str, ...]] | None:
    """By how many tokens the logits look ahead, and the words for it."""
    ids, name = script.text, script.ids or "ids"
    found: list[tuple[int, float, int]] = []
    for place in _places(ids.shape[1]):
        there = torch.zeros_like(ids, dtype=torch.bool)
        there[:, place] = True
        moved = moves(script, rehearsal, base, name, there).amax(0)
        rows = (moved > noise(base)).nonzero()
        if len(rows):
            row = int(rows[0])
            found.append((place - row, float(moved[row]), row))
    if not found:
        return None
    most, by, row = max(found)
    sentence = f"the logits at a token move with the token {_behind(most)}"
    measured = f"logits at {row} move by {by:.3g} with the id at {row + most}"
    return most, (sentence, measured, "a causal mask is missing, or targets are among the inputs")


def _leaks(
    script: Script, rehearsal: Rehearsal, base: Tensor, asked: Targets | None
) -> Iterator[Verdict]:
    """Find the labels that move the logits whose targets they are."""
    for name, entry in script.tokens.items():
        if name == (script.ids or "ids") or asked is None:
            continue
        changed = other_tokens(script, name, torch.ones_like(entry, dtype=torch.bool))
        seen = rehearsal.call(script.with_entries(**{name: changed}))
        now = targets(seen)
        if now is None or seen.logits is None or now.ids.shape != asked.ids.shape:
            continue
        moved = (seen.logits - base).abs().amax(-1)
        both = (now.ids != asked.ids) & asked.used & (moved > noise(base))
        if both.any():
            yield broken(
                "train.leak",
                f"the logits move with {name}, which is what they should predict",
                f"{int(both.sum())} of {int(asked.used.sum())} rows, by {float(moved[both].max()):.3g}",
                f"the model is handed {name}; only the loss may read it",
            )


def _given(
    script: Script, arguments: tuple[Any, ...], keywords: dict[str, Any], asked: Targets
) -> Iterator[Verdict]:
    """Find the targets that stand in the input, at their own place."""
    for each in (*arguments, *keywords.values()):
        if not isinstance(each, Tensor) or each.shape != asked.ids.shape or each.ndim < 2:
            continue
        if each.dtype == torch.bool or each.is_floating_point() or each.unique().numel() < 3:
            continue
        stands = float((each == asked.ids)[asked.used].double().mean())
        if stands > 0.5:
            yield broken(
                "train.leak",
                "the target of a token is what stands at its place in the input",
                f"{stands:.0%} of the targets",
                "mask the tokens that are predicted, and count only these in the loss",
            )


def _shift(script: Script, asked: Targets | None, right: int) -> Verdict:
    if asked is None or asked.ids.ndim != 2 or asked.ids.shape[1] > script.text.shape[1]:
        return not_judged("train.target", NO_TARGETS)
    ids, rows = script.text, asked.ids.shape[1]
    real, shares = script.real(ids), {}
    for shift in range(4):
        last = min(rows, ids.shape[1] - shift)
        used = asked.used[:, :last] & real[:, shift : shift + last]
        hits = (asked.ids[:, :last] == ids[:, shift : shift + last]) & used
        shares[shift] = int(hits.sum()), int(used.sum())
    hit, of = shares[right]
    around = asked.used[:, ids.shape[1] - right :]
    if hit == of and around.any() and len(script.tokens) == 1:
        return broken(
            "train.target",
            "the last token has a target, and no token follows it",
            f"the target is the id {int(asked.ids[:, ids.shape[1] - right :][around][0])}",
            "leave the last row of the logits out of the loss; roll() brings the first token there",
        )
    if hit == of and of:
        return held(
            "train.target", f"targets {'are the next tokens' if right else 'are the tokens'}"
        )
    best = max(shares, key=lambda each: shares[each][0] / max(1, shares[each][1]))
    measured = f"{hit} of {of} targets are the id {_behind(right)}, {shares[best][0]} of {shares[best][1]} "
    measured += f"the id {_behind(best)}"
    if shares[best][0] < 0.9 * shares[best][1]:
        if hit < 0.5 * of:
            return not_judged(
                "train.target", "the targets are not the ids of the entry; say which, by ids="
            )
        return broken("train.target", "some targets are not the next token", measured)
    sentence = f"the target of a token is the token {_behind(best)}, not the one {_behind(right)}"
    twice = "targets are shifted twice: by the batch and by the loss or the model"
    likely = twice if best > right else "targets are not shifted: logits[:, :-1] go with ids[:, 1:]"
    return broken("train.target", sentence, measured, likely)


def _apart(script: Script, rehearsal: Rehearsal, base: Tensor) -> Verdict:
    code, numbers = "train.documents", script.document()
    if numbers is None:
        return not_asked(code, "no documents= is declared")
    if base.ndim != 3 or not (numbers != numbers[:, :1]).any():
        return not_judged(code, "no row of this batch holds two documents")
    numbers = numbers[:, : base.shape[1]]
    for first in (numbers[:, :1], numbers.amax(1, keepdim=True)):
        there = torch.zeros_like(script.text, dtype=torch.bool)
        there[:, : numbers.shape[1]] = numbers == first
        there &= script.text != script.documents
        moved = moves(script, rehearsal, base, script.ids or "ids", there)
        across = (moved > noise(base)) & (numbers != first)
        if across.any():
            return broken(
                code,
                "packed documents see each other",
                f"{int(across.sum())} logits move with tokens of another document, by "
                f"{float(moved[across].max()):.3g}",
                "the mask must hide other documents, beside what is causal",
            )
    return held(code, "documents apart")


def ordering(script: Script) -> Iterator[Verdict]:
    """The order of tokens changes the logits."""
    rehearsal = Rehearsal(script)
    seen = rehearsal.call()
    yield from _unused(script, rehearsal, seen)
    yield _order(script, rehearsal, seen.logits)


def measuring(script: Script) -> Iterator[Verdict]:
    """The first loss next to that of equal probabilities, and the loss after some steps on one batch: notes."""
    rehearsal = Rehearsal(script)
    seen = rehearsal.call()
    start, asked = seen.loss.item(), targets(seen)
    if seen.logits is not None and asked is not None and asked.plain:
        mean, classes = start / float(asked.weights.sum()), seen.logits.shape[-1]
        even = f"{math.log(classes):.3f}"
        yield Verdict(
            "train.start", "told", f"the first loss is {mean:.3f}, and ln {classes} = {even}"
        )
    for _ in range(BY_HEART):
        rehearsal.step(seed=0)
    with torch.no_grad():
        end = rehearsal.call().loss.item()
    words = f"{BY_HEART} steps on one batch change the loss from {start:.3f} to {end:.3f}"
    yield Verdict("train.heart", "told", words)


def _unused(script: Script, rehearsal: Rehearsal, seen: LossCall) -> Iterator[Verdict]:
    """Tell of tokens in the batch that move neither the logits nor the loss."""
    for name, entry in script.tokens.items():
        there = torch.ones_like(entry, dtype=torch.bool)
        now = rehearsal.call(script.with_entries(**{name: other_tokens(script, name, there)}))
        if entry.ndim == 2 and same([seen.loss, seen.logits], [now.loss, now.logits]):
            yield Verdict("train.order", "told", f"nothing moves with {name}")


def _order(script: Script, rehearsal: Rehearsal, logits: Tensor | None) -> Verdict:
    code = "train.order"
    if logits is None:
        return not_judged(code, NO_LOGITS)
    base, asked = logits, []
    for name, entry in script.tokens.items():
        if entry.ndim != 2 or entry.shape[1] < 4:
            continue
        swapped, there = _swapped(entry, script.real(entry))
        if not there.any():
            continue
        changed = moves(script, rehearsal, base, name, there)
        seen = rehearsal.call(script.with_entries(**{name: swapped})).logits
        assert seen is not None
        moved = (seen - base).abs().amax(-1)
        if base.ndim == 3 and name == (script.ids or "ids"):
            last = there.shape[1] - there.long().flip(1).argmax(1)
            # Logits of the swapped tokens themselves move with them in any model.
            rows = torch.arange(base.shape[1])
            behind = ~there[:, : base.shape[1]] if not script.causal else rows >= last[:, None]
            moved, changed = moved * behind, changed * behind
        if changed.max() > noise(base):
            asked.append(name)
            if moved.max() < 1e-3 * changed.max():
                return broken(
                    code,
                    f"the order of {name} is not seen",
                    f"logits move by {float(changed.max()):.3g} with other tokens, and by "
                    f"{float(moved.max()):.2g} where two tokens change places",
                    "positions are not added, or are the same for all tokens",
                )
    if not asked:
        return not_judged(code, "no two tokens of a row could change places")
    return held(code, f"order is seen{'' if len(asked) == 1 else ' in ' + ' and '.join(asked)}")


def _swapped(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Two different tokens of each row in each other's place, early ones, and where they are."""
    made, there = ids.clone(), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        places = real[row].nonzero()[:, 0].tolist()
        pairs = ((i, j) for n, i in enumerate(places[1:-2]) for j in places[n + 2 : -1])
        pair = next((each for each in pairs if ids[row, each[0]] != ids[row, each[1]]), None)
        if pair is not None:
            made[row, list(pair)] = ids[row, list(pair)[::-1]]
            there[row, list(pair)] = True
    return made, there


def _behind(tokens: int) -> str:
    """A distance in tokens, in words."""
    words = {-1: "before", 0: "at its own place", 1: "after it"}
    return words.get(tokens, f"{tokens} after it")


def _places(tokens: int) -> list[int]:
    """Some places of a text, its ends among them; never the first, which no earlier row can see."""
    every = max(1, math.ceil((tokens - 1) / PLACES))
    return sorted({*range(1, tokens, every), tokens - 1} - {0})
