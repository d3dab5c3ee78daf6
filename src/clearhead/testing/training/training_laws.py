"""The laws of training, one function each: a change of a call, and what must follow.

A law returns what it measured if it is broken, and None (or an empty list) if it holds. It raises NotAskedError if it
does not apply to the script, and NotJudgedError if it applies and cannot be measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.testing.training.script import Rehearsal, draw_by, logits_of, same
from clearhead.testing.training.script_calls import (
    STEPS,
    Measured,
    NotAskedError,
    NotJudgedError,
    ScriptCalls,
    targets,
)


def leak(calls: ScriptCalls) -> Measured:
    """Check that another token changes only its own logits and later ones, and that another label changes no logits.

    For an encoder instead: no label changes the logits, and at most half of the targets are in the input at their
    places. Labels are not compared if a causal loss is no cross-entropy. Raises NotJudgedError if no token changes the
    logits, they have no axis of tokens, or an encoder's loss is no cross-entropy.
    """
    script = calls.script
    lookahead = calls.lookahead if script.causal else 0
    if lookahead is None:
        raise NotJudgedError("no token that is changed moves the logits")
    if lookahead > 0:
        return f"logits move with the id {lookahead} tokens later"
    read = calls.read if script.causal else calls.targets
    if read is None:
        return None
    for name, entry in script.tokens.items():
        if name == script.name:
            continue
        other = calls.other_tokens(name, torch.ones_like(entry, dtype=torch.bool))
        call = calls.rehearsal.call(script.with_entries(**{name: other}))
        now = targets(call)
        if now is not None and now.ids.shape == read.ids.shape:
            changed = calls.difference(call) * ((now.ids != read.ids) & read.used)
            if changed.any():
                rows = int((changed > 0).sum())
                return f"{rows} rows of logits move with their targets in {name}"
    for value in () if script.causal else (*calls.base.inputs[0], *calls.base.inputs[1].values()):
        if isinstance(value, Tensor) and value.shape == read.ids.shape and len(value.unique()) > 2:
            share = float((value == read.ids)[read.used].double().mean())
            if share > 0.5:
                return f"the input has {share:.0%} of the targets at their own places"
    return None


def target(calls: ScriptCalls) -> Measured:
    """Check that the targets are the text, shifted by one token past the last that the logits see.

    Raises NotAskedError for an encoder, and NotJudgedError if the loss is no cross-entropy, or its targets are no shift
    of the text or of another shape.
    """
    script, text = calls.script, calls.script.text
    if not script.causal:
        raise NotAskedError("causal=False: no token predicts the next")
    sees = (calls.lookahead if calls.logits.ndim == 3 else 0) or 0
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
    """Check that the tokens of a document change only its own logits, for the first and the last one of each row.

    Raises NotAskedError without documents=, and NotJudgedError if no row has two documents, or without logits per
    token.
    """
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
        changed = calls.change(**{script.name: calls.other_tokens(script.name, numbers == first)})
        across = changed * (numbers != first)[:, : changed.shape[1]]
        if across.any():
            return f"{int((across > 0).sum())} logits move with tokens of another document"
    return None


def padding(calls: ScriptCalls) -> Measured:
    """Check that other embeddings at padding change neither the loss nor logits of targets, and no target is padding.

    Raises NotAskedError without padding=, NotJudgedError if the batch has none, or no embedding is called with it.
    """
    script, read, wrong = calls.script, calls.read, 0
    if script.padding is None:
        raise NotAskedError("no padding= is declared")
    padded = [~script.real(entry) for entry in script.tokens.values() if entry.ndim == 2]
    if not any(there.any() for there in padded):
        raise NotJudgedError("the batch has no padding: give one of texts of several lengths")
    if read is not None and read.ids.ndim == 2 and script.causal:
        later = ~script.real(script.text)[:, 1 : 1 + read.ids.shape[1]]
        wrong = int((read.used[:, : later.shape[1]] & later).sum())
    with _shaken(calls.rehearsal.model, padded) as reached:
        now = calls.rehearsal.call()
    if not reached and not wrong:
        raise NotJudgedError("no embedding was called with the padding")
    by, off = abs(now.loss.item() - calls.base.loss.item()), 0.0
    if read is not None:
        # The loss is one number, which may happen to stay.
        off = float(calls.difference(now)[read.used].max())
    if not wrong and not off and by <= 1e-5 * max(1.0, abs(calls.base.loss.item())):
        return None
    return (
        f"the loss moves by {by:.3g}, logits of targets by {off:.3g}; {wrong} targets are padding"
    )


@contextmanager
def _shaken(model: nn.Module, padded: list[Tensor]) -> Iterator[list[nn.Module]]:
    """Add a ramp to the output of each `nn.Embedding` at padded ids in this block.

    Yield the list of embeddings changed so far. `padded`: bool (batch, tokens) each, True at padding. An embedding is
    changed if its input has the shape of one of these, possibly cut at the end. The hooks are removed afterwards.
    """
    reached: list[nn.Module] = []

    def shake(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        """Return the changed output of an embedding, and add it to `reached`.

        None, no change, if its input is not padded.
        """
        for there in padded:
            # A model of the next token is often called without the last one.
            cut = there[:, : args[0].shape[-1]] if args[0].ndim == 2 else there
            if args[0].shape == cut.shape and len(args[0].unique()) > 1 and cut.any():
                reached.append(module)
                # A norm takes out a shift of all elements.
                ramp = torch.linspace(-1, 1, output.shape[-1]).to(output)
                return output + cut[..., None] * ramp * (output.std() + 1)
        return None

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(shake) for module in embeddings]
    try:
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def weights(calls: ScriptCalls) -> Measured:
    """Check that targets in rows of different lengths have the same weight.

    Raises NotAskedError if samples have one target, all rows have as many, or tokens differ otherwise, as by class,
    and NotJudgedError if the loss has another term.
    """
    read, used = calls.targets, calls.targets.used
    if not read.plain:
        raise NotJudgedError("the loss has another term than the cross-entropy")
    if read.ids.ndim == 1:
        raise NotAskedError("a sample has one target")
    rows = [row[there] for row, there in zip(read.weights, used, strict=True) if there.any()]
    if len({len(row) for row in rows}) < 2:
        raise NotAskedError("all rows of the batch have as many targets")
    means, sums = (torch.stack([reduce(row) for row in rows]) for reduce in (torch.mean, torch.sum))
    even = all(bool((row / row.mean() - 1).abs().max() < 0.05) for row in rows)
    if even and means.max() > 1.1 * means.min() and sums.max() < 1.05 * sums.min():
        low, high = len(rows[int(means.argmin())]), len(rows[int(means.argmax())])
        return f"a token of {high} weighs {float(means.max() / means.min()):.3g} times one of {low}"
    if torch.cat(rows).max() > 1.1 * torch.cat(rows).min():
        raise NotAskedError("tokens weigh differently, as those of weighted classes do")
    return None


def accumulation(calls: ScriptCalls) -> Measured:
    """Check that the gradient of two accumulated halves is that of the batch, up to 0.2 % of its length.

    Raises NotAskedError without accumulate=, or if the loss draws the inputs of the model, and NotJudgedError for one
    sample, or a gradient that is not finite.
    """
    script, read = calls.script, calls.read
    if script.parts["accumulate"] is None:
        raise NotAskedError("no accumulate= is given")
    if len(script.text) < 2:
        raise NotJudgedError("the batch has one sample")
    if not same(*(calls.rehearsal.call(seed=seed).inputs for seed in (1, 2))):
        raise NotAskedError("the loss draws the inputs of the model")
    rows = torch.arange(len(script.text))
    if read is not None and read.ids.ndim == 2:
        rows = read.used.sum(-1).argsort()  # halves of different numbers of tokens
    whole, halved = Rehearsal(script), Rehearsal(script)
    for rehearsal in (whole, halved):
        rehearsal.model.zero_grad()
    whole.call(script.samples(rows)).loss.backward()
    draw_by(0)
    halves = [script.samples(half).batch for half in rows.tensor_split(2)]
    halved.parts["accumulate"](halved.model, halves)
    right = whole.gradient()
    off = float((right - halved.gradient()).norm() / right.norm().clamp_min(1e-30))
    if not math.isfinite(off):
        raise NotJudgedError("the gradient is not finite")
    return f"the gradients differ by {off:.0%} of their length" if off > 2e-3 else None


def dropout(calls: ScriptCalls) -> Measured:
    """Check that the loss or the logits of a call in training mode change with the seed.

    NotAskedError without dropout.
    """
    rates = [
        rate
        for module in calls.script.parts["model"].modules()
        for name, rate in vars(module).items()
        if isinstance(rate, float) and ("drop" in name or "Dropout" in type(module).__name__)
    ]
    if not any(rate > 0 for rate in rates):
        raise NotAskedError("the model has no dropout")
    rehearsal = Rehearsal(calls.script, training=True)
    one, other = (rehearsal.call(seed=seed) for seed in (1, 2))
    alike = same((one.loss, one.logits), (other.loss, other.logits))
    return f"the loss is {one.loss.item():.6g} with both of two seeds" if alike else None


def evaluation(calls: ScriptCalls) -> Measured:
    """Check that two calls of the model, after a call of the loss in eval mode, give equal logits with two seeds.

    None, or what differs. Both repeat the model's last call in the loss. NotJudgedError if it returns no logits, or is
    not called.
    """
    # It raises without logits. A model that is not called has no arguments.
    _ = calls.logits
    rehearsal, outputs = Rehearsal(calls.script), []
    args, kwargs = rehearsal.call(seed=1).inputs  # the loss may set the mode of the model
    for seed in (1, 2):
        draw_by(seed)
        with torch.no_grad():
            outputs.append(logits_of(rehearsal.model(*args, **kwargs)))
    one, other = outputs
    if one is None or other is None:
        raise NotJudgedError("the model returns no logits")
    off = float((one - other).abs().max())
    return None if same(one, other) else f"two calls differ by {off:.3g}"


def resume(calls: ScriptCalls) -> Measured:
    """Check that n steps, a save, a load and n further steps equal 2n steps, bit for bit; None, or what differs.

    Raises NotJudgedError if two runs of 2n steps from the same state differ.
    """
    straight, again, first, later = (Rehearsal(calls.script, training=True) for _ in range(4))
    runs = []
    for rehearsal in (straight, again):
        draw_by(1)
        runs.append(([rehearsal.step() for _ in range(2 * STEPS)], rehearsal.states()))
    if not same(*runs):
        raise NotJudgedError(
            "two runs from the same state differ: a generator is not saved with it"
        )
    draw_by(1)
    losses = [first.step() for _ in range(STEPS)]
    saved, before = first.saved(), first.states()
    draw_by(2)
    later.load(saved)
    lost = [name for name, state in later.states().items() if not same(state, before[name])]
    losses += [later.step() for _ in range(STEPS)]
    if lost:
        return f"not loaded: {', '.join(lost)}"
    pairs = zip(losses, runs[0][0], strict=True)
    steps = [number for number, (one, other) in enumerate(pairs, 1) if one != other]
    if steps:
        return f"the loss of step {steps[0]} is another one"
    return None if same(later.states(), straight.states()) else "the states at the end differ"


# Each law by its code, in the order of the report.
LAWS: Mapping[str, Callable[[ScriptCalls], Measured]] = {
    "train.leak": leak,
    "train.target": target,
    "train.documents": documents,
    "train.padding": padding,
    "train.weights": weights,
    "train.accumulation": accumulation,
    "train.gradient": lambda calls: calls.steps["train.gradient"],
    "train.optimizer": lambda calls: calls.steps["train.optimizer"],
    "train.moved": lambda calls: calls.steps["train.moved"],
    "train.frozen": lambda calls: calls.steps["train.frozen"],
    "train.dropout": dropout,
    "train.eval": evaluation,
    "train.resume": resume,
}
