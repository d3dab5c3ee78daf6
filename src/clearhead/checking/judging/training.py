"""Verdicts on training and state: dropout, gradients, parameters, buffers, and the weights that are returned."""

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import role, size_of
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.feeding import kept_masks
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.state import felt_numbers, moves_at_first_alone
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.recipe import RIGHT
from clearhead.checking.judging.account import account
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Verdict
from clearhead.checking.subject.signatures import of_constructor
from clearhead.recording.thresholds import SUMS

# The share of dropped numbers is at most this many standard deviations from the probability.
DEVIATIONS = 6.0


def dropout(e: Evidence) -> Claim | Verdict:
    """Return a claim if dropout in training drops nothing, or has the wrong place, rate or scale, or a verdict.

    Unknown if it was not measured, or no rate is declared and the modules have none or several. Clear for a rate of 0,
    and for an undeclared one if no weights are dropped.
    """
    rate, seen = e.contract.dropout, e.training
    if rate is None and e.subject.module is not None:
        rates = {part.p for part in e.subject.module.modules() if isinstance(part, nn.Dropout)} - {
            0
        }
        rate = rates.pop() if len(rates) == 1 else None
    if rate is None or seen.why:
        return Unknown(seen.why) if rate is not None else Unknown("dropout-undeclared", {}, False)
    if rate == 0:
        return Clear()
    if seen.place == "scores":
        way, measured = ("scores", "dropped") if seen.finite else ("nan", "nan-in-training")
        return Claim("dropout", "dropout.wrong", Found(way, {}, (measured, {})))
    if seen.finite and not seen.varies:
        way = "own" if e.contract.dropout is None else "equal"
        found = Found(way, {"dropout": f"{rate:g}"}, ("equal-calls", {}))
        return Claim("dropout", "dropout.never", found)
    if seen.place != "weights":
        if e.contract.dropout is None or not seen.finite:
            return Clear()
        if not seen.place:
            return Unknown("dropout-place")
        return Claim("dropout", "dropout.wrong", Found("elsewhere"))
    way = _dropout_mistake(e, rate)
    if way is None:
        known = seen.kept is not None or seen.share is None
        return Clear("dropout") if known else Unknown("dropout-scale")
    values = {
        "dropout": f"{rate:g}",
        "kept": f"{seen.kept or 0:.3g}",
        "share": f"{seen.share or 0:.2g}",
    }
    measured = "share" if way == "rate" else "survivors" if seen.finite else "nan-in-training"
    return Claim("dropout", "dropout.wrong", Found(way, values, (measured, values)))


def _dropout_mistake(e: Evidence, rate: float) -> str | None:
    """Return how the scale or the rate of dropout is wrong: "again", "unscaled", "otherwise" or "rate"; None if right.

    None as well if the kept weights were not measured.
    """
    seen = e.training
    if seen.whole:
        return "again"
    if seen.kept is None:
        return None
    spread = (rate * (1 - rate) / max(seen.count, 1)) ** 0.5
    off = seen.share is not None and seen.count and abs(seen.share - rate) > DEVIATIONS * spread
    if abs(seen.kept - 1) < 1e-3:
        return "unscaled"
    if abs(seen.kept * (1 - rate) - 1) >= 1e-3:
        return "otherwise"
    return "rate" if off else None


def gradients(e: Evidence) -> Claim | Verdict:
    """Return a claim if autograd and differences of the output disagree, Unknown if not measured, else Clear.

    A claim too if the backward pass fails because a tensor was overwritten in place.
    """
    found = e.gradients
    if found.why or found.raised:
        if "inplace operation" in found.raised:
            text = ("text", {"text": found.raised})
            return Claim("gradients", "grad.wrong", Found("overwritten", {}, text))
        why = f"gradients-{found.why}" if found.why else "backward"
        return Unknown(why, {"error": found.raised}, False)
    for code, way, states in (
        ("grad.wrong", "blocked", ("blocked",)),
        ("grad.wrong", "wrong", ("wrong", "not finite")),
    ):
        names = found.names(*states)
        for first in (each for each in found.each if each.name in names[:1]):
            values = {
                "names": ", ".join(names),
                "first": first.name,
                "moves": f"{first.by_difference:.6g}",
                "autograd": f"{first.by_autograd:.6g}",
            }
            return Claim("gradients", code, Found(way, values, ("moves-by", values)))
    return Clear("gradients")


def dead(e: Evidence) -> Verdict:
    """Return Found if an input (of a function) or a projection changes no output, else Clear.

    Unknown if gradients were not measured. Parts of a projection count; parameters that only a first call uses do not.
    """
    found, shapes = e.gradients, e.subject.parameters()
    if found.raised or found.why == "finite":
        return Unknown("gradients-before", {}, False)
    if isinstance(e, HeadsEvidence):
        names = [each for each in found.names("dead") if each in ("query", "key", "value")]
        return Found("input", {"names": " and ".join(names)}) if names else Clear()
    known = e.projected if isinstance(e, TokensEvidence) else frozenset()
    for state, way in (("dead", "unused"), ("part dead", "part")):
        names = [n for n in found.names(state) if n in shapes]
        names = [n for n in names if role(n) is not None or n in known]
        names = [n for n in names if not moves_at_first_alone(e.subject, e.inputs, n)]
        if names:
            text = ", ".join(names)
            return Found(way, {"names": text}, ("moves-nothing", {"first": text}))
    return Clear()


# State.


def loose(e: Evidence) -> Verdict | None:
    """Return Found if projections are tensors that are not parameters, else Clear; None for a function."""
    if e.subject.module is None:
        return None
    count = len(list(e.subject.module.parameters()))
    way = "some" if count else "none"
    return Found(way, {}, ("parameters", {"count": count})) if e.state.loose else Clear()


def shared(e: Evidence) -> Verdict:
    """Return Found if a list of modules holds one layer several times, else Clear."""
    return Found("list", {"name": e.state.shared[0]}) if e.state.shared else Clear()


def mask_trained(e: TokensEvidence) -> Verdict | None:
    """Return Found if a mask is a parameter, or a call of the promised length fails, else Clear.

    None without a module.
    """
    if e.subject.module is None:
        return None
    for name, shape in e.state.trained.items():
        values = {"name": name, "shape": shape}
        return Found("parameter", values, ("among-parameters", values))
    if e.at_longest:
        return Found("short", {"tokens": e.promised_length}, ("text", {"text": e.at_longest}))
    return Clear()


def mask_plain(e: Evidence) -> Verdict | None:
    """Return Found if a mask is a plain attribute, else Clear; None without a module."""
    for name in e.state.plain:
        return Found("attribute", {"name": name, "last": name.rpartition(".")[2]})
    return None if e.subject.module is None else Clear()


def fixed_length(e: TokensEvidence) -> Verdict:
    """Return Found if every call of fewer tokens raises, and a mask in the module has the length of the first call.

    Else Clear.
    """
    refused = {tokens: words for tokens, words in e.lengths.items() if words not in ("", "NaN")}
    if e.subject.module is None or not refused or len(refused) < len(e.lengths):
        return Clear()
    whole = e.inputs[0].shape[-2]
    if not any(each.shape[-1] == whole for each in kept_masks(e.subject.module).values()):
        return Clear()
    tokens, words = max(refused.items())
    fewer = ("fewer", {"tokens": tokens, "error": words.splitlines()[0]})
    return Found("mask", {"tokens": whole}, fewer)


def outside(e: Evidence) -> Verdict:
    """Return Found if a size or a scale is read from outside the code that is checked, else Clear.

    What a call reads is tried only if no topic but the scale has a mistake; what a constructor reads must be a size.
    """
    claims = account(e).claims
    if all(each.topic == "scale" for each in claims):
        felt = felt_numbers(e.subject, e.state, e.inputs, constants=bool(claims))
        for name, value in felt.items():
            values = {"name": name, "value": value, "other": value * 3}
            return Found("call", values, ("other-number", values))
    args = dict(e.given.args or {})
    if e.subject.module is not None:
        args |= dict.fromkeys(of_constructor(type(e.given.original)))
    sizes = {size_of(name) for name in args} - {None}
    for name, value in e.state.built.items():
        if size_of(name) in sizes:
            return Found("constructor", {"name": name, "value": value, "size": size_of(name)})
    return Clear()


# The second output.


def returned(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Return Found if the returned weights did not make the output, else Clear.

    None if no weights are returned, they have another shape or NaN, or the right ones are unknown. Negative values are
    scores: Found if they have a graph and their softmax is right, else None.
    """
    second, right = e.returned, _right_weights(e)
    if not isinstance(second, Tensor) or right is None or not second.is_floating_point():
        return None
    detached, second = not second.requires_grad, second.detach().double()
    if right.shape[0] == 1 and second.shape[:1] != (1,):
        right = right[0]
    if second.ndim == right.ndim - 1:
        right = right.mean(-3)
    if second.shape != right.shape or not second.isfinite().all():
        return None
    if second.min() < -1e-6:
        # Scores; detached ones, as of Whisper, are returned on purpose.
        scores = not detached and torch.allclose(second.softmax(-1), right, atol=SUMS)
        return Found("scores") if scores else None
    gap = (second - right).abs().max().item()
    if gap <= SUMS:
        return Clear("returned")
    sums = second.sum(-1)
    values = {"gap": f"{gap:.3g}", "low": f"{sums.min():.3g}", "high": f"{sums.max():.3g}"}
    return Found("others", {}, ("returned", values))


def _right_weights(e: HeadsEvidence | TokensEvidence) -> Tensor | None:
    """Return the weights that made the output, (batch, heads, queries, keys); None if they are unknown."""
    if e.explained is None:
        return None
    if isinstance(e, TokensEvidence):
        if not e.groups or e.groups[0].arranged is None:
            return None
        arranged = e.groups[0].arranged
        return torch.cat([arranged.heads(each.weights) for each in e.groups[0].heads], 1)
    if not e.explained.known:
        return None
    first = e.trials[0].under(e.explained.contract)
    recipe = e.explained.recipe if e.explained.script else RIGHT.styled(e.explained.recipe.empty)
    return recipe.weights(first.query, first.key, first.setting)
