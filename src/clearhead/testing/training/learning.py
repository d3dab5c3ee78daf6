"""Laws of what is learnt: the targets, what the logits see, the order of tokens, padding and weights.

A law returns what it measured if it is broken, and nothing if it holds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.testing.training.calls import (
    Measured,
    NotAskedError,
    NotJudgedError,
    ScriptCalls,
    targets,
)


def leak(calls: ScriptCalls) -> Measured:
    """Another token: only its logits and later ones change. Another label: no logit changes."""
    script = calls.script
    ahead = calls.ahead if script.causal else 0
    if ahead is None:
        raise NotJudgedError("no token that is changed moves the logits")
    if ahead > 0:
        return f"logits move with the id {ahead} tokens later"
    read = calls.read if script.causal else calls.targets
    if read is None:
        return None
    for name, entry in script.tokens.items():
        if name == script.name:
            continue
        changed = calls.other_tokens(name, torch.ones_like(entry, dtype=torch.bool))
        call = calls.rehearsal.call(script.having(**{name: changed}))
        now = targets(call)
        if now is not None and now.ids.shape == read.ids.shape:
            moved = calls.beyond_noise(call.logits) * ((now.ids != read.ids) & read.used)
            if moved.any():
                return f"{int((moved > 0).sum())} rows of logits move with their targets in {name}"
    for each in () if script.causal else (*calls.base.inputs[0], *calls.base.inputs[1].values()):
        if isinstance(each, Tensor) and each.shape == read.ids.shape and each.unique().numel() > 2:
            share = float((each == read.ids)[read.used].double().mean())
            if share > 0.5:
                return f"the input has {share:.0%} of the targets at their own places"
    return None


def target(calls: ScriptCalls) -> Measured:
    """The targets against the text, shifted by each number of tokens."""
    script, text = calls.script, calls.script.text
    if not script.causal:
        raise NotAskedError("causal=False: no token predicts the next")
    sees = (calls.ahead if calls.logits.ndim == 3 else 0) or 0
    right = 1 if sees > 0 else sees + 1
    ids, used = calls.targets.ids, calls.targets.used
    if ids.ndim != 2 or ids.shape[1] > text.shape[1]:
        raise NotJudgedError("the targets have another shape than the text")
    real, hits, counts = script.real(text), {}, {}
    for shift in range(4):
        last = min(ids.shape[1], text.shape[1] - shift)
        there = used[:, :last] & real[:, shift : shift + last]
        hits[shift] = int(((ids[:, :last] == text[:, shift : shift + last]) & there).sum())
        counts[shift] = int(there.sum())
    hit, of = hits[right], counts[right]
    if hit == of and used[:, text.shape[1] - right :].any() and len(script.tokens) == 1:
        return "the last token has a target, and no token follows it"
    if hit == of and of:
        return None
    best = max(hits, key=lambda shift: hits[shift] / max(1, counts[shift]))
    if hits[best] < 0.9 * counts[best] and hit < 0.5 * of:
        raise NotJudgedError("the targets are not the ids of the entry; say which, by ids=")
    return (
        f"{hit} of {of} targets are the id that is {right} later, "
        f"{hits[best]} of {counts[best]} the id that is {best} later"
    )


def documents(calls: ScriptCalls) -> Measured:
    """The tokens of one document: only its own logits change."""
    script, text = calls.script, calls.script.text
    if script.documents is None:
        raise NotAskedError("no documents= is declared")
    if isinstance(script.documents, str):
        numbers = script.entries[script.documents]
    else:
        ends = (text == script.documents).long()
        numbers = ends.cumsum(-1) - ends
    if calls.logits.ndim != 3 or not (numbers != numbers[:, :1]).any():
        raise NotJudgedError("no row of this batch holds two documents")
    for first in (numbers[:, :1], numbers.amax(1, keepdim=True)):
        changed = calls.other_tokens(script.name, numbers == first)
        moved = calls.moved(**{script.name: changed})
        across = moved * (numbers != first)[:, : moved.shape[1]]
        if across.any():
            return f"{int((across > 0).sum())} logits move with tokens of another document"
    return None


def order(calls: ScriptCalls) -> Measured:
    """Two tokens exchanged: logits change, as they do with other tokens there."""
    script, asked, logits = calls.script, False, calls.logits
    for name, entry in script.tokens.items():
        if entry.ndim != 2 or entry.shape[1] < 4:
            continue
        swapped, there = _swapped(entry, script.real(entry))
        if not there.any():
            continue
        moved = calls.moved(**{name: swapped})
        changed = calls.moved(**{name: calls.other_tokens(name, there)})
        if logits.ndim == 3 and name == script.name:
            # The logits of the exchanged tokens themselves change in any model.
            last = there.shape[1] - there.long().flip(1).argmax(1)
            rows = torch.arange(logits.shape[1])
            later = rows >= last[:, None] if script.causal else ~there[:, : logits.shape[1]]
            moved, changed = moved * later, changed * later
        asked = asked or bool(changed.any())
        if changed.any() and moved.max() < 1e-3 * changed.max():
            return (
                f"logits move by {float(changed.max()):.3g} with other tokens in {name}, by "
                f"{float(moved.max()):.2g} if two are exchanged"
            )
    if not asked:
        raise NotJudgedError("no two tokens of a row could be exchanged")
    return None


def _swapped(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """An entry with two different early tokens of each row exchanged, and True at their places."""
    made, there = ids.clone(), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        places = real[row].nonzero()[:, 0].tolist()
        pairs = ([i, j] for n, i in enumerate(places[1:-2]) for j in places[n + 2 : -1])
        pair = next((each for each in pairs if ids[row, each[0]] != ids[row, each[1]]), [])
        made[row, pair] = ids[row, pair[::-1]]
        there[row, pair] = True
    return made, there


def padding(calls: ScriptCalls) -> Measured:
    """Other embeddings at padding: neither the loss nor the logits of targets change."""
    if calls.script.padding is None:
        raise NotAskedError("no padding= is declared")
    if not calls.padding:
        raise NotJudgedError("the batch has no padding: give one of texts of several lengths")
    read, wrong = calls.read, 0
    if read is not None and read.ids.ndim == 2 and calls.script.causal:
        later = ~calls.script.real(calls.script.text)[:, 1 : 1 + read.ids.shape[1]]
        wrong = int((read.used[:, : later.shape[1]] & later).sum())
    with _shaken(calls.rehearsal.model, list(calls.padding.values())) as reached:
        now = calls.rehearsal.call()
    if not reached and not wrong:
        raise NotJudgedError("no embedding was called with the padding")
    by, off = abs(now.loss.item() - calls.base.loss.item()), 0.0
    if read is not None:
        # The loss is one number, which may happen to stay.
        off = float(calls.beyond_noise(now.logits)[read.used].max())
    if not wrong and not off and by <= 1e-5 * max(1.0, abs(calls.base.loss.item())):
        return None
    return (
        f"the loss moves by {by:.3g}, logits of targets by {off:.3g}; {wrong} targets are padding"
    )


@contextmanager
def _shaken(model: nn.Module, padded: list[Tensor]) -> Iterator[list[nn.Module]]:
    """Change the output of every embedding of padded ids at padding; yield the embeddings called so far."""
    reached: list[nn.Module] = []

    def shake(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        for there in padded:
            # A model of the next token is often called without the last one.
            cut = there[:, : args[0].shape[-1]] if args[0].ndim == 2 else there
            if args[0].shape == cut.shape and len(args[0].unique()) > 1 and cut.any():
                reached.append(module)
                # A norm takes out a shift of all elements.
                ramp = torch.linspace(-1, 1, output.shape[-1]).to(output)
                return output + cut[..., None] * ramp * (output.std() + 1)
        return None

    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    handles = [each.register_forward_hook(shake) for each in embeddings]
    try:
        yield reached
    finally:
        for each in handles:
            each.remove()


def weights(calls: ScriptCalls) -> Measured:
    """The weight of a target against the weights in rows of other lengths."""
    found, used = calls.targets, calls.targets.used
    if not found.plain:
        raise NotJudgedError("the loss has another term than the cross-entropy")
    if found.ids.ndim == 1:
        raise NotAskedError("a sample has one target")
    rows = [row[there] for row, there in zip(found.weights, used, strict=True) if there.any()]
    if len({len(each) for each in rows}) < 2:
        raise NotAskedError("all rows of the batch have as many targets")
    means, sums = (torch.stack([each(row) for row in rows]) for each in (torch.mean, torch.sum))
    even = all(bool((each / each.mean() - 1).abs().max() < 0.05) for each in rows)
    if even and means.max() > 1.1 * means.min() and sums.max() < 1.05 * sums.min():
        low, high = len(rows[int(means.argmin())]), len(rows[int(means.argmax())])
        return f"a token of {high} weighs {float(means.max() / means.min()):.3g} times one of {low}"
    if torch.cat(rows).max() > 1.1 * torch.cat(rows).min():
        raise NotAskedError("tokens weigh differently, as those of weighted classes do")
    return None
