"""Promises of a contract besides: rows that see nothing, 16 bits, dropout, gradients, state."""

import math

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import role, size_of
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.state import felt_numbers, moves_at_first_alone
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.recipe import RIGHT
from clearhead.checking.judging import laws
from clearhead.checking.judging.account import account
from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict
from clearhead.checking.subject.signatures import of_constructor
from clearhead.recording.thresholds import SUMS


def nan_behind_heads(e: HeadsEvidence) -> Verdict | None:
    """A NaN in a hidden key or value that reaches an output that must not see it."""
    found = e.leaks
    if found is None:
        return None
    if not found:
        return Clear("nan")
    if e.contract.nan_safe:
        return Found("hidden", {"names": " and in a hidden ".join(found)}, ("nan-key", {}))
    return None


def empty_row(e: HeadsEvidence) -> Verdict | None:
    """A query that sees nothing, where something is declared of it."""
    found, declared = e.empty, e.contract.empty_row
    if found is None or found.refused or declared is None:
        return None
    if found.gives != declared:
        values = {"gives": found.gives, "declared": declared}
        first = [round(each, 4) for each in found.first]
        return Found(f"not-{declared}", values, ("rows", {"count": found.rows, "first": first}))
    if found.gradients:
        values = {"declared": declared, "names": " and ".join(found.gradients)}
        return Found("gradient", values, ("gradient", values))
    return Clear("empty", {"gives": found.gives})


def _refusal(text: str) -> str:
    """The way of an error in another precision, by its words."""
    if "overflow" in text:
        return "refused"
    return "meets" if "dtype" in text or "scalar type" in text else "fails"


def overflow(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """A dtype in which it fails, or is far off."""
    declared = e.contract.dtypes
    for dtype, what, found in e.halves:
        name = str(dtype).removeprefix("torch.")
        if not found.fails(dtype):
            continue
        values = {"dtype": name}
        if found.refused is not None:
            told = Found(_refusal(found.refused), values, ("text", {"text": found.refused}))
            return told if dtype in declared else None
        size = "not finite" if found.error == torch.inf else f"off by {found.error:.2g}"
        if dtype not in declared and (found.error != torch.inf or not e.plain_exp):
            continue
        plain = ("plain", {"dtype": name, "plain": f"{found.plain:.2g}"})
        return Found(what, {**values, "size": size}, plain)
    names = [str(each).removeprefix("torch.") for each in declared]
    return Clear("dtypes", {"names": ", ".join(names)}) if names else Clear()


# Dropout.


# So many standard deviations from what is declared no share of drawn numbers is.
DEVIATIONS = 6.0


def _training(e: Evidence) -> tuple[float, Verdict | None]:
    """The probability, declared or that of its own dropout layers, and why nothing can be said."""
    dropout = e.contract.dropout
    if dropout is None and e.subject.module is not None:
        own = {part.p for part in e.subject.module.modules() if isinstance(part, nn.Dropout)} - {0}
        dropout = own.pop() if len(own) == 1 else None
    if dropout is None:
        return 0.0, Unknown("dropout-undeclared", {}, False)
    return dropout, Unknown(e.training.why) if e.training.why else None


def never(e: Evidence) -> Verdict | None:
    """Training that drops nothing."""
    dropout, unknown = _training(e)
    if unknown is not None:
        return unknown
    if dropout == 0 or not e.training.finite or e.training.varies:
        return Clear()
    way = "own" if e.contract.dropout is None else "equal"
    return Found(way, {"dropout": f"{dropout:g}"}, (e.training.still, {}))


def on_scores(e: Evidence) -> Verdict | None:
    """Scores that are dropped instead of weights."""
    dropout, unknown = _training(e)
    if unknown is not None:
        return unknown
    if dropout == 0:
        return None
    if not e.training.finite and "scores" in e.training.places:
        return Found("nan", {}, ("nan-in-training", {}))
    return Found("scores", {}, ("dropped", {})) if "scores" in e.training.places else Clear()


def misplaced(e: Evidence) -> Verdict | None:
    """Something else that is dropped in place of the weights."""
    _, unknown = _training(e)
    if unknown is not None:
        return unknown
    places = e.training.places
    if e.contract.dropout in (0, None) or not e.training.varies or not e.training.finite:
        return Clear()
    if not places:
        return Unknown("dropout-place")
    if "weights" in places or "scores" in places:
        return Clear()
    return Found(places[0], {}, ("places", {"places": ", ".join(places)}))


def unscaled(e: Evidence) -> Verdict | None:
    """Survivors that are not scaled."""
    dropout, unknown = _training(e)
    if unknown is not None:
        return unknown
    kept = e.training.kept
    if not dropout or "weights" not in e.training.places:
        return Clear()
    if e.training.whole:
        return Found("again", {}, None if e.training.finite else ("nan-in-training", {}))
    if kept is None:
        return Clear("dropout") if e.training.share is None else Unknown("dropout-scale")
    if abs(kept * (1 - dropout) - 1) < 1e-3:
        share, count = e.training.share, e.training.count
        spread = (dropout * (1 - dropout) / max(count, 1)) ** 0.5
        if share is None or not count or abs(share - dropout) <= DEVIATIONS * spread:
            return Clear("dropout")
        told = {"share": f"{share:.2g}", "dropout": f"{dropout:g}"}
        return Found("rate", told, ("share", told))
    values = {"dropout": f"{dropout:g}", "kept": f"{kept:.3g}"}
    share, other = e.training.share, 1 - 1 / kept if kept > 1 else 0.0
    if share is not None and other and abs(share - other) < abs(share - dropout):
        values = {**values, "share": f"{other:.3g}"}
        twice = abs(kept * (1 - dropout) ** 2 - 1) < 1e-3
        return Found("twice" if twice else "another", values, ("survivors", values))
    return Found("unscaled" if abs(kept - 1) < 1e-3 else "otherwise", values, ("survivors", values))


# Gradients.


def blocked(e: Evidence) -> Verdict:
    """Gradients that do not arrive."""
    found = e.gradients
    if found.why:
        return Unknown(f"gradients-{found.why}", {}, False)
    if "inplace operation" in found.raised:
        return Found("overwritten", {}, ("text", {"text": found.raised}))
    if found.raised:
        return Unknown("backward", {"error": found.raised}, False)
    names = found.names("blocked")
    if not names:
        return Clear()
    first = next(each for each in found.each if each.name == names[0])
    values = {
        "names": ", ".join(names),
        "first": first.name,
        "moves": f"{first.by_difference:.3g}",
        "autograd": f"{first.by_autograd:.3g}",
    }
    return Found("blocked", values, ("moves-by", values))


def wrong_gradient(e: Evidence) -> Verdict:
    """Gradients that are not those of the output."""
    found = e.gradients
    if found.why or found.raised:
        return Unknown("gradients-before", {}, False)
    names = found.names("wrong", "not finite")
    if not names:
        return Clear("gradients")
    first = next(each for each in found.each if each.name == names[0])
    values = {
        "names": ", ".join(names),
        "moves": f"{first.by_difference:.6g}",
        "autograd": f"{first.by_autograd:.6g}",
    }
    return Found("wrong", values, ("along", values))


def dead(e: Evidence) -> Verdict:
    """Projections that move nothing."""
    found, shapes = e.gradients, e.subject.parameters()
    if found.raised or found.why == "finite":
        return Unknown("gradients-before", {}, False)
    for state, way, roles in (
        ("dead", "unused", ("q", "k", "v", "qkv", "kv")),
        ("part dead", "part", ("qkv", "kv")),
    ):
        names = [n for n in found.names(state) if n in shapes and role(n) in roles]
        names = [n for n in names if not moves_at_first_alone(e.subject, e.inputs, n)]
        if names:
            measured = ("moves-nothing", {"first": ", ".join(names)})
            return Found(_lost(e) or _taken(e) or way, {"names": ", ".join(names)}, measured)
    return Clear()


def _lost(e: Evidence) -> str:
    """The way in which the contexts of all heads are computed in vain."""
    found = laws.value(e) if isinstance(e, TokensEvidence) else None
    return "context" if isinstance(found, Found) and found.way == "unused" else ""


def _taken(e: Evidence) -> str:
    """The way in which one of query, key and value stands in the place of another, in the first attention."""
    for one in e.observed[:1]:
        gains = one.gains or (1.0, 1.0)
        query, key = one.query / gains[0], one.key / gains[1]
        for way, each, other in (
            ("keys", one.value, key),
            ("queries", one.value, query),
            ("to-queries", key, query),
        ):
            if each.shape == other.shape and torch.allclose(each, other):
                return way
    return ""


def dead_input(e: HeadsEvidence) -> Verdict | None:
    """An input that moves nothing."""
    names = [each for each in e.gradients.names("dead") if each in ("query", "key", "value")]
    return Found("input", {"names": " and ".join(names)}) if names else Clear()


def loose(e: Evidence) -> Verdict | None:
    """Projections by tensors that are no parameters."""
    module = e.subject.module
    if module is None or e.subject.takes.startswith("qkv"):
        return None
    if not e.state.loose:
        return Clear()
    way = "none" if not list(module.parameters()) else "some"
    return Found(way, {}, ("parameters", {"count": len(list(module.parameters()))}))


def shared(e: Evidence) -> Verdict | None:
    """One layer in the place of several."""
    if not e.state.shared:
        return Clear()
    return Found("list", {"name": e.state.shared[0]})


# State.


def mask_trained(e: Evidence) -> Verdict | None:
    """A mask that is a parameter, or too short for the promised length."""
    if e.subject.module is None:
        return None
    for name, shape in e.state.trained.items():
        return Found(
            "parameter", {"name": name}, ("among-parameters", {"name": name, "shape": shape})
        )
    if isinstance(e, TokensEvidence) and e.at_longest:
        values = {"tokens": e.promised_length}
        return Found("short", values, ("text", {"text": e.at_longest}))
    return Clear()


def mask_plain(e: Evidence) -> Verdict | None:
    """A mask that is a plain attribute."""
    if e.subject.module is None:
        return None
    if not e.state.plain:
        return Clear()
    name = e.state.plain[0]
    return Found("attribute", {"name": name, "last": name.rpartition(".")[2]})


def fixed_length(e: TokensEvidence) -> Verdict | None:
    """A mask that fits one number of tokens only."""
    refused = {tokens: words for tokens, words in e.lengths.items() if words not in ("", "NaN")}
    if e.subject.module is None or len(refused) < len(e.lengths) or not refused:
        return Clear()
    whole = e.inputs[0].shape[-2]
    if not any(each.shape[-1] == whole for _, each in _square(e)):
        return Clear()
    tokens, words = max(refused.items())
    return Found(
        "mask", {"tokens": whole}, ("fewer", {"tokens": tokens, "error": words.splitlines()[0]})
    )


def _square(e: TokensEvidence) -> list[tuple[str, Tensor]]:
    from clearhead.checking.evidence.feeding import kept_masks

    return list(kept_masks(e.subject.module).items()) if e.subject.module is not None else []


def outside(e: Evidence) -> Verdict | None:
    """A number of the notebook, in the scale, in a call, or in a constructor."""
    found = _scale_from_outside(e)
    if found is not None:
        return found
    if not account(e).claims and not e.subject.takes.startswith("decode"):
        for name, value in felt_numbers(e.subject, e.state, e.inputs).items():
            values = {"name": name, "value": value}
            return Found("call", values, ("other-number", {**values, "other": value * 3}))
    args = e.given.args or {}
    own = {size for name in _constructor(e) if (size := size_of(name))} | {
        size for name in args if (size := size_of(name))
    }
    for name, value in e.state.built.items():
        if size_of(name) in own:
            return Found("constructor", {"name": name, "value": value, "size": size_of(name)})
    return Clear()


def _constructor(e: Evidence) -> dict[str, object]:
    return dict(of_constructor(type(e.given.original))) if e.subject.module is not None else {}


def _scale_from_outside(e: Evidence) -> Found | None:
    """A wrong scale that is that of a number that the code reads from around it."""
    claims = [each for each in account(e).claims if each.topic == "scale"]
    if not claims:
        return None
    used = float(dict(claims[0].found.measured[1])["used"]) if claims[0].found.measured else 1.0
    if math.isclose(used, 1.0, rel_tol=1e-3):
        return None
    for name, value in e.state.read.items():
        forms = {f"1/√{name}": value**-0.5, name: value, f"1/{name}": 1 / value}
        form = next((words for words, scale in forms.items() if abs(used / scale - 1) < 1e-3), None)
        if form is None:
            continue
        # A constant has no other explanation; a scale by a size of its own has.
        constant = claims[0].found.way.startswith("constant")
        also = () if constant else ((claims[0].code, claims[0].found.way, claims[0].found.values),)
        values = {"form": form, "name": name, "value": value}
        way = "scale" if constant else "scale-or-size"
        return Found(way, values, claims[0].found.measured, also)
    return None


# The weights that are returned.


def returned(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Weights that are returned and did not make the output."""
    second = e.returned
    right = _right_weights(e)
    if not isinstance(second, Tensor) or right is None or not second.is_floating_point():
        return None
    apart, second = not second.requires_grad, second.detach().double()
    if right.shape[0] == 1 and second.shape[:1] != (1,):
        right = right[0]
    if second.ndim == right.ndim - 1:
        right = right.mean(-3)
    if second.shape != right.shape or not second.isfinite().all():
        return None
    if second.min() < -1e-6:
        shares = second.softmax(-1)
        if not torch.allclose(shares, right, atol=SUMS) or apart:
            # As in Whisper: what is detached on purpose is for looking at, by whatever name.
            return None
        gap = f"{(shares - right).abs().max():.1g}"
        return Found("scores", {}, ("their-softmax", {"gap": gap}))
    gap = (second - right).abs().max().item()
    if gap <= SUMS:
        return Clear("returned")
    sums = second.sum(-1)
    values = {"gap": f"{gap:.3g}", "low": f"{sums.min():.3g}", "high": f"{sums.max():.3g}"}
    return Found("others", {}, ("returned", values))


def _right_weights(e: HeadsEvidence | TokensEvidence) -> Tensor | None:
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
