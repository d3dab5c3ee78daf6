"""The laws of training, one row each: a change of a call, and what is compared.

A law returns what it measured if it is broken, the names that break it, or nothing if it holds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.testing.training.calls import STEPS, Calls, NotAskedError, NotJudgedError, targets
from clearhead.testing.training.rehearsal import Rehearsal, Script, draw_by, logits_of, same

Measured = str | Sequence[str] | None
BY_HEART = 20


def leak(calls: Calls) -> Measured:
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


def target(calls: Calls) -> Measured:
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


def documents(calls: Calls) -> Measured:
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


def order(calls: Calls) -> Measured:
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


def padding(calls: Calls) -> Measured:
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


def weights(calls: Calls) -> Measured:
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


def accumulation(calls: Calls) -> Measured:
    """The gradient of two accumulated halves against that of the batch."""
    script, read = calls.script, calls.read
    if script.parts["accumulate"] is None:
        raise NotAskedError("no accumulate= is given")
    if calls.draws_inputs:
        raise NotAskedError("the loss draws the inputs of the model")
    if len(script.text) < 2:
        raise NotJudgedError("the batch has one sample")
    rows = torch.arange(len(script.text))
    if read is not None and read.ids.ndim == 2:
        rows = read.used.sum(-1).argsort()  # halves of different numbers of tokens
    whole, parted = Rehearsal(script), Rehearsal(script)
    for each in (whole, parted):
        each.model.zero_grad()
    whole.call(script.samples(rows)).loss.backward()
    parted.run("accumulate", [script.samples(half).batch for half in rows.tensor_split(2)])
    return _apart(whole.gradient(), parted.gradient(), 2e-3)


def _apart(one: Tensor, other: Tensor, share: float) -> Measured:
    """The distance of two gradients, if it is more than a share of their length."""
    off = float((one - other).norm() / one.norm().clamp_min(1e-30))
    if not math.isfinite(off):
        raise NotJudgedError("the gradient is not finite")
    return f"the gradients differ by {off:.0%} of their length" if off > share else None


def tied(calls: Calls) -> list[str]:
    """The pairs of parameters that were one before the steps, or are copies of an embedding."""
    model: nn.Module = calls.script.parts["model"]
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    parts = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    embeddings = {id(each.weight) for each in parts}
    return calls.steps.untied + [
        f"{name} and {other}"
        for name, weight in named
        for other, each in named
        if id(weight) in embeddings and id(each) not in embeddings
        if torch.equal(each, weight) and bool(weight.std() > 0)  # zeros are equal and no copies
    ]


def dropout(calls: Calls) -> Measured:
    """The same step with another seed: the logits change."""
    rates = [
        rate
        for each in calls.script.parts["model"].modules()
        for name, rate in vars(each).items()
        if isinstance(rate, float) and ("drop" in name or "Dropout" in type(each).__name__)
    ]
    if not any(rate > 0 for rate in rates):
        raise NotAskedError("the model has no dropout")
    rehearsal = Rehearsal(calls.script, training=True)
    one, other = (rehearsal.call(seed=seed) for seed in (1, 2))
    alike = same((one.loss, one.logits), (other.loss, other.logits))
    return f"the loss is {one.loss.item():.6g} with both of two seeds" if alike else None


def evaluation(calls: Calls) -> Measured:
    """The same call in eval mode with another seed: the logits do not change."""
    rehearsal, outputs = Rehearsal(calls.script), []
    args, kwargs = rehearsal.call(seed=1).inputs
    rehearsal.call(seed=2)
    for seed in (1, 2):
        draw_by(seed)
        with torch.no_grad():
            outputs.append(logits_of(rehearsal.model(*args, **kwargs)))
    one, other = outputs
    if calls.logits is None or one is None or other is None:
        raise NotJudgedError("the model returns no logits")
    return (
        None if same(one, other) else f"two calls differ by {float((one - other).abs().max()):.3g}"
    )


def replay(calls: Calls) -> Measured:
    """The backward pass of the same loss after other random numbers: the gradient does not change."""
    gradients = []
    for seed in (11, 12):
        rehearsal = Rehearsal(calls.script, training=True)
        rehearsal.model.zero_grad()
        loss = rehearsal.call(seed=1).loss
        draw_by(seed)
        loss.backward()
        gradients.append(rehearsal.gradient())
    return _apart(gradients[0], gradients[1], 1e-5)


def resume(calls: Calls) -> Measured:
    """Some steps, a save and as many steps, against twice as many steps, bit for bit."""
    straight, again, first, later = (Rehearsal(calls.script, training=True) for _ in range(4))
    runs = []
    for each in (straight, again):
        draw_by(1)
        runs.append(([each.step() for _ in range(2 * STEPS)], each.states()))
    if not same(*runs):
        raise NotJudgedError(
            "two runs from the same state differ: a generator is not saved with it"
        )
    draw_by(1)
    losses = [first.step() for _ in range(STEPS)]
    saved, before = first.saved(), first.states()
    draw_by(2)
    later.load(saved)
    lost = [name for name, each in later.states().items() if not same(each, before[name])]
    losses += [later.step() for _ in range(STEPS)]
    if lost:
        return f"not loaded: {', '.join(lost)}"
    steps = [
        number
        for number, pair in enumerate(zip(losses, runs[0][0], strict=True))
        if pair[0] != pair[1]
    ]
    if steps:
        return f"the loss of step {steps[0] + 1} is another one"
    return None if same(later.states(), straight.states()) else "the states at the end differ"


def decoding(calls: Calls) -> Measured:
    """The decoded tokens, and the logits of each step, against the argmax of the whole."""
    if calls.script.parts["generate"] is None:
        raise NotAskedError("no generate= is given")
    if calls.logits.ndim != 3:
        raise NotJudgedError("the logits have no axis of tokens")
    for script in (_unpadded(calls.script), _padded_left(calls.script)):
        measured = None if script is None else _decoded(calls.rehearsal, script)
        if measured:
            return measured
    return None


def _decoded(rehearsal: Rehearsal, script: Script) -> Measured:
    text = script.text
    start, most = text.shape[1] // 2, text.shape[1]
    if most < 3:
        raise NotJudgedError("the texts have fewer than 3 tokens")
    prompts = script.having(**{name: each[:, :start] for name, each in script.aligned.items()})
    with rehearsal.listening() as heard, torch.no_grad():
        made = rehearsal.run("generate", prompts.batch, most - start)
    made = made[:, start:] if made.shape[1] > most - start else made
    whole = torch.cat([text[:, :start], made, text[:, start + made.shape[1] :]], 1)
    with torch.no_grad():
        logits = rehearsal.call(script.having(**{script.name: whole})).logits
    assert logits is not None
    expected = logits[:, start - 1 : start - 1 + made.shape[1]]
    differs = (expected.argmax(-1) != made).any(0).nonzero()
    if len(differs):
        return f"token {int(differs[0]) + 1} of {made.shape[1]} is another one"
    steps = [each for each in (logits_of(output) for *_, output in heard) if each is not None]
    rows = [each[:, -1] if each.ndim == 3 else each for each in steps if len(each) == len(text)]
    if len(rows) == made.shape[1]:
        off = float((torch.stack(rows, 1) - expected).abs().max())
        if off > _near(expected):
            return f"the logits of the steps are off by {off:.3g}"
    return None


def _near(logits: Tensor) -> float:
    """The rounding of logits that are computed in another order."""
    return 3 * math.sqrt(torch.finfo(logits.dtype).eps) * float(logits.abs().max())


def _unpadded(script: Script) -> Script:
    """The script with the first real tokens of each text, as many as all have."""
    real = script.real(script.text)
    most = int(real.sum(-1).min())

    def cut(entry: Tensor) -> Tensor:
        return torch.stack([row[there][:most] for row, there in zip(entry, real, strict=True)])

    return script.having(**{name: cut(each) for name, each in script.aligned.items()})


def _padded_left(script: Script) -> Script | None:
    """The script with up to two tokens of padding to the left of each text; None if its texts have none."""
    mask = script.padding
    if mask is None or (isinstance(mask, str) and mask not in script.aligned):
        return None
    plain = _unpadded(script)
    rows, tokens = plain.text.shape
    if tokens < 6 or rows < 2:
        raise NotJudgedError("two texts of 6 tokens and more are needed")
    places = torch.arange(tokens) - (torch.arange(rows) % 3)[:, None]
    made = {n: each.gather(1, places.clamp_min(0)) for n, each in plain.aligned.items()}
    name, fill = (mask, 0) if isinstance(mask, str) else (script.name, mask)
    return plain.having(**made | {name: made[name].masked_fill(places < 0, fill)})


def alone(calls: Calls) -> Measured:
    """Each text without its padding against the padded batch."""
    script = calls.script
    if script.padding is None:
        raise NotAskedError("no padding= is declared")
    if calls.draws_inputs:
        raise NotAskedError("the loss draws the inputs of the model")
    scripts = [script] if calls.padding else []
    if script.parts["generate"] is not None and (left := _padded_left(script)) is not None:
        scripts.append(left)
    if not scripts:
        raise NotJudgedError("the batch has no padding")
    for each in scripts:
        for row in range(len(script.text)):
            if measured := _row_alone(calls, each, row):
                return measured
    return None


def _row_alone(calls: Calls, script: Script, row: int) -> Measured:
    one = script.samples(torch.tensor([row]))
    real = {n: script.real(e)[row] for n, e in script.entries.items() if e.ndim == 2}
    short = {n: one.entries[n][:, there] for n, there in real.items() if not there.all()}
    if not short:
        return None
    with torch.no_grad():
        batch = calls.rehearsal.call(script).logits
        single = calls.rehearsal.call(one.having(**short)).logits
    assert batch is not None
    together = batch[row]
    if together.ndim == 2 and single is not None:
        # A model that is called without the last token leaves out the last real one here.
        kept = script.real(script.text)[row][: len(together)]
        together = together[kept][: single.shape[1]]
    if single is None or single[0].shape != together.shape:
        raise NotJudgedError("alone, the logits have another shape")
    off = float((single[0] - together).abs().max()) if together.numel() else 0.0
    return f"logits of row {row} are off by {off:.3g}" if off > _near(batch) else None


# Each law by its code, in the order of the report.
LAWS: Mapping[str, Callable[[Calls], Measured]] = {
    "train.leak": leak,
    "train.target": target,
    "train.documents": documents,
    "train.order": order,
    "train.padding": padding,
    "train.weights": weights,
    "train.accumulation": accumulation,
    "train.gradient": lambda c: [n for n in c.steps.wanting if n not in c.steps.reached],
    "train.optimizer": lambda c: (
        [f"{n} ({c.steps.counts[n]} times)" for n in c.steps.wanting if c.steps.counts[n] != 1]
        + [f"{c.steps.others} that are not the model's"] * (c.steps.others > 0)
    ),
    "train.moved": lambda c: [
        n for n in c.steps.wanting if n in c.steps.reached - c.steps.moved and c.steps.counts[n]
    ],
    "train.frozen": lambda c: sorted(c.steps.moved - set(c.steps.wanting)),
    "train.tied": tied,
    "train.dropout": dropout,
    "train.eval": evaluation,
    "train.replay": replay,
    "train.resume": resume,
    "train.decoding": decoding,
    "train.alone": alone,
}


def start(calls: Calls) -> str | None:
    """The first loss next to that of equal probabilities."""
    read = calls.read
    if read is None or not read.plain:
        return None
    mean, classes = float(calls.base.loss) / float(read.weights.sum()), calls.logits.shape[-1]
    return f"the first loss is {mean:.3f}, and ln {classes} = {math.log(classes):.3f}"


def heart(calls: Calls) -> str:
    """The loss before and after some steps on one batch."""
    rehearsal = Rehearsal(calls.script)
    for _ in range(BY_HEART):
        rehearsal.step(seed=0)
    with torch.no_grad():
        end = rehearsal.call().loss.item()
    return f"{BY_HEART} steps on one batch change the loss from {calls.base.loss.item():.3f} to {end:.3f}"


# Measurements that are noted, and never fail.
NOTES: Mapping[str, Callable[[Calls], str | None]] = {"train.start": start, "train.heart": heart}
