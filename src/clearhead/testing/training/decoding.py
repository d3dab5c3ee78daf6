"""Laws of decoding: with a cache it is the argmax of the whole, and beside padding what it is alone."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.testing.training.probes import (
    DRAWN,
    NO_LOGITS,
    NO_PADDING,
    Verdict,
    broken,
    draws_inputs,
    held,
    not_asked,
    not_judged,
    rows_of,
)
from clearhead.testing.training.rehearsal import Rehearsal, Script, logits_of


def decoding(script: Script) -> Iterator[Verdict]:
    """Greedy decoding is the argmax of the whole, and a padded row is what it is alone."""
    if script.parts["generate"] is None:
        yield not_asked("train.decoding", "no generate= is given")
    else:
        yield _greedy(script)
    if script.padding is None:
        yield not_asked("train.alone", NO_PADDING)
        return
    if script.parts["generate"] is not None:
        yield _left_padded(script)
    else:
        yield _alone(script)


def _cut(script: Script, start: int, stop: int, **changed: Tensor) -> Any:
    """The batch with some tokens of its texts; all that has the shape of the ids goes with them."""
    aligned = {n: e for n, e in script.entries.items() if e.shape == script.text.shape}
    return script.with_entries(**{n: e[:, start:stop] for n, e in aligned.items()} | changed)


def _unpadded(script: Script) -> tuple[Tensor, dict[str, Tensor]]:
    """The first tokens of each text, as many as all have, without padding; and a mask of them."""
    ids, real = script.text, script.real(script.text)
    most = int(real.sum(-1).min())
    texts = torch.stack([row[there][:most] for row, there in zip(ids, real, strict=True)])
    mask = {}
    if isinstance(script.padding, str) and script.entries[script.padding].shape == ids.shape:
        given = script.entries[script.padding]
        mask = {script.padding: torch.ones(texts.shape, dtype=given.dtype, device=given.device)}
    return texts, mask


def _run(
    script: Script, rehearsal: Rehearsal, prompts: Tensor, masks: dict[str, Tensor], tokens: int
) -> tuple[Tensor, list[Tensor]]:
    """The tokens that are generated, and the last logits of each call of the model."""
    length = prompts.shape[1]
    batch = _cut(script, 0, length, **{script.ids or "ids": prompts}, **masks)
    with rehearsal.listening() as calls, torch.no_grad():
        made = rehearsal.generated(batch, tokens)
    if made.shape[1] > tokens:
        made = made[:, length:]
    each = [logits_of(output) for _, _, output in calls]
    kept = [logits for logits in each if logits is not None and len(logits) == len(prompts)]
    rows = [logits[:, -1] if logits.ndim == 3 else logits for logits in kept]
    return made, rows if len(rows) == made.shape[1] else []


def _greedy(script: Script) -> Verdict:
    code, rehearsal = "train.decoding", Rehearsal(script)
    texts, masks = _unpadded(script)
    most = texts.shape[1]
    if most < 3:
        return not_judged(code, "the texts are too short to go on from")
    start = max(1, most // 2)
    prompts = {name: each[:, :start] for name, each in masks.items()}
    made, rows = _run(script, rehearsal, texts[:, :start], prompts, most - start)
    whole = torch.cat([texts[:, :start], made], 1)
    whole = torch.cat([whole, texts[:, whole.shape[1] :]], 1)
    with torch.no_grad():
        logits = rehearsal.call(
            _cut(script, 0, most, **{script.ids or "ids": whole}, **masks)
        ).logits
    if logits is None or logits.ndim != 3:
        return not_judged(code, NO_LOGITS)
    expected = logits[:, start - 1 : start - 1 + made.shape[1]]
    off = (expected.argmax(-1) != made).any(0).nonzero()
    if len(off):
        return _decoded_wrong(code, f"token {int(off[0]) + 1} of {made.shape[1]} is another one")
    if rows:
        by = (torch.stack(rows, 1) - expected).abs().amax((0, 2))
        if by.max() > _near(expected):
            return _decoded_wrong(
                code, f"the logits of token {int(by.argmax()) + 1} are off by {float(by.max()):.3g}"
            )
    return held(code, "decoding is the argmax of the whole")


def _decoded_wrong(code: str, measured: str) -> Verdict:
    return broken(
        code,
        "greedy decoding is not the argmax of the whole",
        measured,
        "positions or keys behind a cache: a new token stands behind those that are kept",
    )


def _near(logits: Tensor) -> float:
    """The difference of logits that is allowed where they are computed in another way."""
    return 3 * math.sqrt(torch.finfo(logits.dtype).eps) * float(logits.abs().max())


def _left_padded(script: Script) -> Verdict:
    code, rehearsal = "train.alone", Rehearsal(script)
    if isinstance(script.padding, str) and not _unpadded(script)[1]:
        return not_asked(code, "what is padded is not what is decoded")
    texts, masks = _unpadded(script)
    start = max(1, texts.shape[1] // 2)
    new = texts.shape[1] - start
    if start < 3 or len(texts) < 2:
        return not_judged(code, "two texts of 6 tokens and more are needed")
    lengths = [start - row % 3 for row in range(len(texts))]
    fill = script.padding if isinstance(script.padding, int) else int(texts[0, 0])
    prompts = torch.full_like(texts[:, :start], fill)
    for row, length in enumerate(lengths):
        prompts[row, start - length :] = texts[row, :length]
    seen = {name: each[:, :start].clone() for name, each in masks.items()}
    for mask in seen.values():
        for row, length in enumerate(lengths):
            mask[row, : start - length] = 0
    together, rows = _run(script, rehearsal, prompts, seen, new)
    for row, length in enumerate(lengths):
        one = _one(script, row)
        ones = {name: each[row : row + 1, :length] for name, each in masks.items()}
        made, alone = _run(one, rehearsal, texts[row : row + 1, :length], ones, new)
        by = 0.0
        if rows and alone:
            off = torch.stack(rows, 1)[row] - torch.stack(alone, 1)[0]
            by = float(off.abs().max()) if float(off.abs().max()) > _near(alone[0]) else 0.0
        if by or not torch.equal(made[0], together[row]):
            return broken(
                code,
                "a text that is padded on the left goes on otherwise than alone",
                f"logits are off by {by:.3g}" if by else f"tokens of row {row} differ",
                "positions must begin at the first real token, and padding must be hidden",
            )
    return held(code, "left-padded is alone")


def _one(script: Script, row: int) -> Script:
    """The script with one sample of its batch."""
    return replace(script, batch=rows_of(script, torch.tensor([row])))


def _alone(script: Script) -> Verdict:
    code, rehearsal = "train.alone", Rehearsal(script)
    seen = rehearsal.call().logits
    if seen is None:
        return not_judged(code, NO_LOGITS)
    if draws_inputs(rehearsal):
        return not_asked(code, DRAWN)
    asked = False
    for row in range(len(script.text)):
        one = _one(script, row)
        real = {n: script.real(e)[row] for n, e in script.entries.items() if e.ndim == 2}
        short = {
            name: one.entries[name][:, there] for name, there in real.items() if not there.all()
        }
        if not any(each.shape[1] < script.entries[name].shape[1] for name, each in short.items()):
            continue
        asked = True
        with torch.no_grad():
            alone = rehearsal.call(one.with_entries(**short)).logits
        together = seen[row]
        if together.ndim == 2 and alone is not None:
            # A model that is called without the last token leaves out the last real one here.
            together = together[script.real(script.text)[row][: len(together)]][: alone.shape[1]]
        if alone is None or alone[0].shape != together.shape:
            return not_judged(code, "alone, the logits have another shape")
        off = (alone[0] - together).abs()
        if off.numel() and off.max() > _near(seen):
            return broken(
                code,
                "a text beside longer ones is not what it is alone",
                f"logits are off by {float(off.max()):.3g}",
                "padding is attended, or moves the positions of what is real",
            )
    if not asked:
        return not_judged(code, "nothing is padded in this batch")
    return held(code, "padded is alone")
