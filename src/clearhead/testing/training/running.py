"""Laws of training and decoding: gradients, parameters, random numbers, a save, a cache, padding.

A law returns what it measured if it is broken, and nothing if it holds.
"""

import math

import torch
from torch import Tensor, nn

from clearhead.testing.training.calls import (
    STEPS,
    Measured,
    NotAskedError,
    NotJudgedError,
    ScriptCalls,
)
from clearhead.testing.training.rehearsal import Rehearsal, Script, draw_by, logits_of, same


def accumulation(calls: ScriptCalls) -> Measured:
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


def tied(calls: ScriptCalls) -> list[str]:
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


def dropout(calls: ScriptCalls) -> Measured:
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


def evaluation(calls: ScriptCalls) -> Measured:
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


def replay(calls: ScriptCalls) -> Measured:
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


def resume(calls: ScriptCalls) -> Measured:
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


def decoding(calls: ScriptCalls) -> Measured:
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


def alone(calls: ScriptCalls) -> Measured:
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


def _row_alone(calls: ScriptCalls, script: Script, row: int) -> Measured:
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
