"""Laws of how it is trained: padding and the weight of tokens, dropout, going on from a save."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.testing.training.probes import (
    DRAWN,
    NO_LOGITS,
    NO_PADDING,
    NO_TARGETS,
    Verdict,
    broken,
    draws_inputs,
    held,
    noise,
    not_asked,
    not_judged,
    other_tokens,
    rows_of,
)
from clearhead.testing.training.rehearsal import (
    Rehearsal,
    Script,
    draw_by,
    logits_of,
    same,
    targets,
)

# Steps before a save, and after it.
STEPS = 3


def padding(script: Script) -> Iterator[Verdict]:
    """The loss does not move with padding, and every token has one weight, in whatever batch it is."""
    if script.padding is None:
        yield not_asked("train.padding", NO_PADDING)
    else:
        yield _padding(script)
    yield _weights(script)
    yield _accumulated(script)


def _padding(script: Script) -> Verdict:
    code, rehearsal = "train.padding", Rehearsal(script)
    seen = rehearsal.call()
    padded = {name: ~script.real(each) for name, each in script.tokens.items() if each.ndim == 2}
    padded = {name: each for name, each in padded.items() if each.any()}
    if not padded:
        return not_judged(
            code, "nothing is padded in this batch: give one of texts of several lengths"
        )
    asked, wrong = targets(seen), 0
    if asked is not None and isinstance(script.padding, int):
        wrong = int((asked.used & (asked.ids == script.padding)).sum())
    elif asked is not None and asked.ids.ndim == 2 and script.causal:
        following = ~script.real(script.text)[:, 1 : 1 + asked.ids.shape[1]]
        wrong = int((asked.used[:, : following.shape[1]] & following).sum())
    if isinstance(script.padding, str):
        # Labels keep what the loss ignores in them.
        changed = {
            name: other_tokens(script, name, there, hidden=True) for name, there in padded.items()
        }
        now = rehearsal.call(script.with_entries(**changed))
    else:
        with _shaken(rehearsal.model, list(padded.values())) as reached:
            now = rehearsal.call()
        if not reached and not wrong:
            return not_judged(code, "no embedding was seen to take the ids with their padding")
    by, off = abs(now.loss.item() - seen.loss.item()), 0.0
    if asked is not None and seen.logits is not None and now.logits is not None:
        # The loss is one number, which may happen to stay.
        moved = (now.logits - seen.logits).abs().amax(-1)[asked.used]
        off = float(moved.max()) if float(moved.max()) > noise(seen.logits) else 0.0
    if not wrong and not off and by <= 1e-5 * max(1.0, abs(seen.loss.item())):
        return held(code, "padding changes nothing")
    measured = f"the loss moves by {by:.3g}" + f", logits of targets by {off:.3g}" * (off > 0)
    measured += f"; {wrong} targets are padding" * (wrong > 0)
    likely = "the loss counts padding: ignore_index" if wrong else "padding is attended, or counted"
    return broken(code, "the loss moves with what stands in padding", measured, likely)


@contextmanager
def _shaken(model: nn.Module, padded: list[Tensor]) -> Iterator[list[nn.Module]]:
    """Let every embedding of padded ids give something else for padding; the ones that did so far."""
    reached: list[nn.Module] = []

    def shake(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        for there in padded:
            # A model of the next token is often called without the last one.
            cut = there[:, : args[0].shape[-1]] if args[0].ndim == 2 else there
            if args[0].shape == cut.shape and len(args[0].unique()) > 1 and cut.any():
                reached.append(module)
                return output + cut[..., None] * output.std()
        return None

    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    handles = [each.register_forward_hook(shake) for each in embeddings]
    try:
        yield reached
    finally:
        for each in handles:
            each.remove()


def _weights(script: Script) -> Verdict:
    code = "train.weights"
    seen = Rehearsal(script).call()
    asked = targets(seen)
    if asked is None or not asked.plain:
        return not_judged(code, NO_LOGITS if seen.logits is None else NO_TARGETS)
    if asked.ids.ndim == 1:
        return not_asked(code, "a sample has one target")
    counts = asked.used.sum(-1)
    if counts[counts > 0].unique().numel() < 2:
        return not_asked(code, "all rows of the batch have as many targets")
    rows = [asked.weights[row][asked.used[row]] for row in range(len(counts)) if counts[row]]
    means = torch.stack([each.mean() for each in rows])
    even = all(bool((each / each.mean() - 1).abs().max() < 0.05) for each in rows)
    sums = torch.stack([each.sum() for each in rows])
    if even and means.max() > 1.1 * means.min() and sums.max() < 1.05 * sums.min():
        low, high = (int(counts[counts > 0][each]) for each in (means.argmin(), means.argmax()))
        return broken(
            code,
            "sequences have one weight each, not tokens",
            f"a token of {high} weighs {float(means.max() / means.min()):.3g} times one of {low}",
            "take one mean over all tokens, not a mean of means",
        )
    weights = torch.cat(rows)
    if weights.max() > 1.1 * weights.min():
        return not_asked(code, "tokens weigh differently, as those of weighted classes do")
    return held(code, "tokens weigh the same")


def _accumulated(script: Script) -> Verdict:
    code = "train.accumulation"
    if script.parts["accumulate"] is None:
        return not_asked(code, "no accumulate= is given")
    size = len(script.text)
    if size < 2:
        return not_judged(code, "the batch has one sample")
    if draws_inputs(Rehearsal(script)):
        return not_asked(code, DRAWN)
    asked = targets(Rehearsal(script).call())
    order = torch.arange(size)
    if asked is not None and asked.ids.ndim == 2:
        order = asked.used.sum(-1).argsort()  # halves of different numbers of tokens
    whole, parted = Rehearsal(script), Rehearsal(script)
    for each in (whole, parted):
        each.model.zero_grad()
    whole.call(rows_of(script, order)).loss.backward()
    parted.accumulated([rows_of(script, half) for half in order.tensor_split(2)])
    pairs = [
        (a.grad, b.grad)
        for a, b in zip(whole.model.parameters(), parted.model.parameters(), strict=True)
    ]
    zero = torch.zeros(())
    off = math.sqrt(
        sum(
            float(((zero if b is None else b) - (zero if a is None else a)).square().sum())
            for a, b in pairs
        )
    )
    long = math.sqrt(sum(float(a.square().sum()) for a, _ in pairs if a is not None))
    if off <= 2e-3 * long:
        return held(code, "accumulated gradients are those of the whole")
    return broken(
        code,
        "gradients of two accumulated batches are not those of both at once",
        f"they are off by {off / max(long, 1e-30):.0%} of their length",
        "divide the sum over all tokens by their number; a mean of means weighs short batches more",
    )


def dropping(script: Script) -> Iterator[Verdict]:
    """Dropout draws anew at each step, again the same on recomputation, and not in eval mode."""
    rehearsal = Rehearsal(script, training=True)
    first, second = (rehearsal.call(seed=seed) for seed in (1, 2))
    if _drops(script.parts["model"]):
        alike = torch.equal(first.loss, second.loss)
        if first.logits is not None and second.logits is not None:
            alike = same(first.logits, second.logits)
        yield (
            broken(
                "train.dropout",
                "two steps in training drop the same",
                f"loss {first.loss.item():.6g} and {second.loss.item():.6g} by different seeds",
                "a seed is set inside a step, a mask is kept, or train() is never called",
            )
            if alike
            else held("train.dropout", "dropout draws anew")
        )
    else:
        yield not_asked("train.dropout", "the model has no dropout")
    yield _quiet(script)
    yield _replayed(script)


def _drops(model: nn.Module) -> bool:
    """Return True if a module says that it drops."""
    return any(
        isinstance(rate, float) and rate > 0
        for each in model.modules()
        for name, rate in vars(each).items()
        if "drop" in name or (name == "p" and "Dropout" in type(each).__name__)
    )


def _quiet(script: Script) -> Verdict:
    code, rehearsal = "train.eval", Rehearsal(script)
    first, second = (rehearsal.call(seed=seed) for seed in (1, 2))
    inputs = [(e.arguments, e.keywords) for e in (first, second)]
    if same(*inputs) and first.logits is not None and second.logits is not None:
        pair = (first.logits, second.logits)
    else:
        # The loss draws its inputs, as masked tokens are: the model alone is asked, with the same ones.
        pair = _replays(rehearsal, *inputs[0])
    if pair is None:
        return not_judged(code, NO_LOGITS)
    if same(*pair):
        return held(code, "eval mode draws nothing")
    by = float((pair[0] - pair[1]).abs().max())
    return broken(
        code,
        "something is drawn in eval mode",
        f"two calls differ by {by:.3g}",
        "F.dropout wants training=self.training, or the loss calls train()",
    )


def _replays(
    rehearsal: Rehearsal, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    found = []
    for seed in (1, 2):
        draw_by(seed)
        with torch.no_grad():
            found.append(logits_of(rehearsal.model(*arguments, **keywords)))
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _replayed(script: Script) -> Verdict:
    code, found = "train.replay", []
    for seed in (11, 12):
        rehearsal = Rehearsal(script, training=True)
        rehearsal.model.zero_grad()
        loss = rehearsal.call(seed=1).loss
        draw_by(seed)
        loss.backward()
        grads = [each.grad for each in rehearsal.model.parameters() if each.grad is not None]
        found.append(torch.cat([each.flatten().double() for each in grads]))
    off = float((found[0] - found[1]).norm() / found[0].norm().clamp_min(1e-30))
    if not math.isfinite(off):
        return not_judged(code, "the gradient is not finite")
    if off <= 1e-5:
        return held(code, "the way back draws nothing")
    return broken(
        code,
        "the way back draws other numbers than the way there",
        f"gradients of one loss differ by {off:.0%} with what is drawn after it",
        "checkpoint(…, preserve_rng_state=True) drops the same again",
    )


def resuming(script: Script) -> Iterator[Verdict]:
    """Some steps, a save, and as many steps are twice as many steps, bit for bit."""
    code = "train.resume"
    straight, again, first, later = (Rehearsal(script, training=True) for _ in range(4))
    runs = []
    for each in (straight, again):
        draw_by(1)
        losses = [each.step() for _ in range(2 * STEPS)]
        runs.append((losses, each.states()))
    if not same(*runs):
        yield not_judged(
            code, "two runs from the same state differ: what the script draws is not its own"
        )
        return
    draw_by(1)
    losses = [first.step() for _ in range(STEPS)]
    saved = first.saved()
    before = first.states()
    draw_by(2)
    later.load(saved)
    lost = [name for name, each in later.states().items() if not same(each, before[name])]
    losses += [later.step() for _ in range(STEPS)]
    ended = straight.states()
    if not lost and losses == runs[0][0] and same(later.states(), ended):
        yield held(code, f"{STEPS} steps, a save and {STEPS} more are {2 * STEPS}")
        return
    at = next(
        (n for n, pair in enumerate(zip(losses, runs[0][0], strict=True)) if pair[0] != pair[1]),
        None,
    )
    measured = (
        f"step {at + 1}: loss {losses[at]:.6g}, and {runs[0][0][at]:.6g} without the save"
        if at is not None
        else "the states at the end differ"
    )
    yield broken(
        code,
        f"{STEPS} steps, a save and {STEPS} more are not {2 * STEPS} steps",
        measured,
        f"not as it was after loading: {', '.join(lost)}"
        if lost
        else "something that training goes by is not saved: a generator, a counter, what is in no state_dict",
    )
