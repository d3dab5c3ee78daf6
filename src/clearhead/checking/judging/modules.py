"""Verdicts on modules of tokens: heads, sides and padding."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.named_layers import right_by_name
from clearhead.checking.evidence.padding import PaddedEvidence, with_mask
from clearhead.checking.evidence.splitting import Splitting
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.account import account
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Values, Verdict
from clearhead.recording.weighing import ACTIVATIONS

LAYERS = ACTIVATIONS - {"sigmoid"} | {"hardswish", "mish"}

Arranged = tuple[Splitting, Sequence[int] | None]
# The arrangement of heads that differs from the definition: code, sentence and measurement; in the order in which they
# explain each other.
BEFORE: Sequence[tuple[str, Callable[[Arranged], Found | None]]] = (
    ("heads.layout", lambda each: _if(each[0].across, "tokens", ("across", {}))),
    (
        "heads.layout",
        lambda each: _if(each[0].split, "view", ("rows-of", {"names": ", ".join(each[0].split)})),
    ),
    ("heads.layout", lambda each: _merged(*each)),
    ("law.pairs", lambda each: _elsewhere(*each)),
)
AFTER: Sequence[tuple[str, Callable[[Arranged], Found | None]]] = (
    ("heads.layout", lambda each: _same(each[0].alike)),
    ("heads.layout", lambda each: _if(each[0].sliced, "sliced")),
    ("heads.layout", lambda each: _if(each[0].summed, "summed")),
    ("law.pairs", lambda each: _if(each[0].other_order, "columns")),
)


def _if(wrong: object, way: str, measured: tuple[str, Values] | None = None) -> Found | None:
    """Return the finding of this kind if `wrong` is true, else None."""
    return Found(way, {}, measured) if wrong else None


def _same(names: Sequence[str]) -> Found | None:
    what = " and ".join(names) if len(names) < 3 else "query, key and value"
    return Found("same", {"what": what}, ("equal-heads", {})) if names else None


def _merged(each: Splitting, where: Sequence[int] | None) -> Found | None:
    moved = not each.in_order and where and _moved(where) and not _turned(where)
    return _if(each.merged is False or moved, "viewed", ("merged-rows", {}))


def _elsewhere(each: Splitting, where: Sequence[int] | None) -> Found | None:
    if where and where[0] > 0 and (each.in_order or _turned(where)):
        return Found("elsewhere", {"token": 0, "other": where[0]})
    return None


def arranged(
    table: Sequence[tuple[str, Callable[[Arranged], Found | None]]],
) -> Callable[[TokensEvidence], Claim | Verdict]:
    """Return the question for the first mistake of a table in the arrangement of heads."""

    def verdict(e: TokensEvidence) -> Claim | Verdict:
        asking = _asking(e)
        if asking is not None:
            return Claim("heads", "law.pairs", Found("one-query", {"token": asking}))
        meets = e.dependency.mixed and _samples_meet_before(e)
        layers = list(zip(e.splittings, e.places, strict=True))
        for code, read in table:
            found = next(filter(None, map(read, layers)), None)
            if found is not None and not (found.way == "viewed" and meets):
                # What was recorded is no mistake where the whole output is that of the definition.
                return Claim("heads", code, found) if right_by_name(e) is None else Clear("heads")
        if meets:
            return Unknown("hidden-by", {"code": "law.samples"})
        known = _heads_known(e)
        unseen = bool(layers) and all(x.merged is None and not x.summed for x, _ in layers)
        unseen |= any(not each.in_order and where is None for each, where in layers)
        return Unknown("merge") if unseen and isinstance(known, Clear) else known

    return verdict


def _moved(where: Sequence[int]) -> bool:
    """True if a token is elsewhere than it should be; what reaches nothing is nowhere."""
    return any(place not in (-1, token) for token, place in enumerate(where))


def _turned(where: Sequence[int]) -> bool:
    """True if every token is rotated by the same number of positions."""
    return len({(place - token) % len(where) for token, place in enumerate(where)}) == 1


def _asking(e: TokensEvidence) -> int | None:
    """The token whose query is that of every token, in a group of heads; None where there is none."""
    tokens = e.inputs[0].shape[-2]
    alike = bool((e.output == e.output[..., :1, :]).all())
    for group in e.groups:
        rows = [
            (each.query[source.blocks], source.query.token[source.blocks])
            for each, source in zip(group.attentions, group.sources, strict=True)
            if source is not None
        ]
        asked = torch.cat([token.flatten() for _, token in rows] or [torch.tensor([-1])]).unique()
        if tokens < 2 or len(asked) != 1 or asked[0] < 0:
            continue
        if all(
            alike
            if query.shape[-2] == 1
            else query.shape[-2] == tokens and bool((query == query[..., :1, :]).all())
            for query, _ in rows
        ):
            return int(asked[0])
    return None


def _samples_meet_before(e: TokensEvidence) -> bool:
    """True if one sample moves queries or keys of more blocks than it has, in the first attention."""
    first = e.sources[0] if e.sources else None
    if first is None or isinstance(e, CrossEvidence):
        return False
    return int(first.blocks.sum()) * e.inputs[0].shape[0] > len(first.blocks)


def count(e: TokensEvidence) -> Verdict | None:
    """Another number of heads than is declared."""
    declared, seen = e.contract.num_heads, [each.num_heads for each in e.splittings]
    if declared is None or not seen or seen[0] is None:
        return None
    if declared in seen or declared == sum(each or 0 for each in seen):
        return Clear()
    values = {"declared": declared, "seen": seen[0], "attentions": len(seen)}
    return Found("layers" if len(seen) > 1 and seen[0] == 1 else "other", values)


def tiled(e: TokensEvidence) -> Verdict:
    """Key heads that are tiled, where their number is declared."""
    shared = [each.shared for each in e.splittings if each.shared]
    if "tiled" in shared and e.contract.heads()[1] is not None:
        return Found("tiled", {}, ("tiled-heads", {}))
    return _heads_known(e)


def changed(e: TokensEvidence) -> Verdict:
    """A context that is changed before it is projected; an activation, as in LeViT, is a layer and told."""
    for each in e.splittings:
        if set(each.changed) - LAYERS and right_by_name(e) is None:
            return Found("context", {"operation": ", ".join(each.changed)})
    return Clear() if e.observed or _by_name(e) else Unknown("no-attention")


def _by_name(e: TokensEvidence) -> bool:
    """True if the whole output is that of the definition on query, key and value as their names say."""
    found = account(e)
    return not found.claims and "product" in found.clear


def _heads_known(e: TokensEvidence) -> Verdict:
    if not e.observed:
        return Clear("heads") if _by_name(e) else Unknown("no-attention")
    if not e.groups:
        return Unknown("linear")
    if not any(source is not None and source.single for source in e.sources):
        zeros = [
            name
            for name, each in e.subject.parameters().items()
            if each.ndim > 1 and not each.any()
        ]
        if zeros:
            return Unknown("zeros", {"names": ", ".join(zeros)})
        return Unknown("mixed-before")
    return Clear("heads")


# Rotary positions, and what is projected.


def rotation(e: TokensEvidence) -> Claim | Verdict | None:
    """Rotary positions, as they are declared."""
    if e.contract.rope is None:
        return None
    if e.rotated is None:
        return Unknown("rotation")
    base, kind = float(e.contract.rope.get("base", 10000.0)), e.contract.rope.get("layout", "half")
    if any(each.value_turned(base, str(kind)) for each in e.projections):
        return Claim("positions", "rope.layout", Found("value"))
    if not e.rotated.known:
        fitted = e.projections[0].fitted()
        shown = (
            Found("rotation") if fitted is None else Found("base", {"base": f"{fitted[1]:,.6g}"})
        )
        return Claim("positions", "differs", shown)
    for edit in e.rotated.script[:1]:
        return Claim("positions", edit.code, Found(edit.way, edit.values))
    return Clear("rope")


# Two sides.


def swapped_length(e: CrossEvidence) -> Verdict | None:
    """An output for each token of the context."""
    x, context = (each.shape[-2] for each in e.inputs)
    if e.output.shape[-2] == x:
        return None
    values = {"x": x, "context": context, "output": e.output.shape[-2]}
    return Found("length", {}, ("lengths", values))


def ignored(e: CrossEvidence) -> Verdict:
    """Keys or values that come from x, or a context that moves nothing."""
    by_x, by_context = e.dependencies
    if not by_context.moves.any():
        return Found("nothing", {}, ("sides", _sides(e)))
    if e.from_x is not None:
        wrong = [name for name in ("key", "value") if name in e.from_x]
        other = by_context.moves.all()
        if wrong and len(e.observed) == 1:
            names = {"names": " and ".join(wrong), "verb": "comes" if len(wrong) == 1 else "come"}
            return Found("side", names, ("sides", _sides(e)))
        if other:
            return Clear("context")
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    if not (by_x.moves & ~own).any() or (not e.alike and by_context.moves.all()):
        return Clear("context")
    return Found("tokens", {}, ("sides", _sides(e)))


def swapped(e: CrossEvidence) -> Verdict | None:
    """Queries from the context, keys and values from x."""
    by_x, by_context = e.dependencies
    if not e.alike:
        return Clear()
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    over = (by_context.moves & ~own).any() or not by_context.moves.any()
    if (by_x.moves & ~own).any() and not over:
        return Found("sides", {}, ("sides", _sides(e)))
    return Clear()


def _sides(e: CrossEvidence) -> dict[str, str]:
    by_x, by_context = e.dependencies
    return {"x": drawn(by_x.cells()), "context": drawn(by_context.cells())}


# Padding.


def padding(e: PaddedEvidence) -> Claim | Clear:
    """The mistake with padding, by a recipe or by what moves what."""
    seen = e.padding
    broken = not e.padded_output[e.padded[1]].isfinite().all()
    moves = e.dependency.moves
    # With all tokens real, what is shifted hides the first or the last of them.
    everywhere = bool(moves[:, 1:].all()) or bool(moves[:, :-1].all())
    if not broken and everywhere and (moved := shifted(e.seen_by, e.padded[1])) is not None:
        measured = ("padded", {"gap": f"{seen.alone:.3g}"}) if seen.alone >= 1e-5 else None
        return Claim("padding", "mask.off-by-one", Found(moved, {}, measured))
    if not broken and seen.alone < 1e-5:
        return _padding_before(e) or Clear("padding")
    found, measured = e.explained_padded, ("padded", {"gap": f"{seen.alone:.3g}"})
    values, also = {}, ()
    if found is not None and found.script:
        name, way, values = found.script[0].code, found.script[0].way, found.script[0].values
        if name == "mask.missing" and way in ("given", "beside-given"):
            # A mask without effect has a name of its own.
            name, way = "mask.padding-ignored", "ignored"
        if name == "mask.after-softmax" and e.takes_a_share:
            name, way = "mask.padding-ignored", "zeros"
    elif broken:
        name, way, measured = "output.non-finite", "padding", ("all-real", {})
    elif seen.own_row:
        name, way = "mask.broadcast", "padding"
    elif seen.ignored:
        name, way = "mask.padding-ignored", "ignored"
    elif seen.by_padding and not seen.by_real:
        name, way = "mask.inverted", "padding"
    elif seen.by_other:
        name, way = "mask.broadcast", "other"
    elif seen.by_padding and found is not None and found.right:
        name, way = "differs", "padding"
    elif seen.by_padding:
        name, way = "mask.padding-ignored", "less"
        others = ("mask.soft", "mask.after-softmax")
        also = tuple((each, "", {}) for each in others)
    else:
        name, way = "differs", "alone"
    return Claim("padding", name, Found(way, values, measured, also))


def shifted(seen: Tensor, mask: Tensor) -> str | None:
    """The way in which a mask of padding is moved by a token, by who is seen; None where it is not.

    Args:
        seen: (batch, tokens), True for a token that other real outputs move with.
        mask: (batch, tokens), True for a real one.
    """
    lengths = mask.sum(-1)[:, None]
    places = torch.arange(mask.shape[1])
    for way, visible in (
        ("padding-more", (places < lengths + 1) & (places < mask.shape[1])),
        ("padding-more", (places > 0) & (places < lengths + 1)),
        ("padding-less", places < lengths - 1),
        ("padding-first", (places > 0) & (places < lengths)),
    ):
        if torch.equal(seen, visible):
            return way
    return None


def model_padding(e: TokensEvidence) -> Claim | Verdict | None:
    """The mistake with padding of a whole model that takes a mask, whose name says so."""
    found = with_mask(e)
    return None if found is None else padding(found)


def _padding_before(e: PaddedEvidence) -> Claim | None:
    """The mistake with padding before a text, which causality does not hide."""
    if not e.contract.causal:
        return None
    real = e.padded_left[2][e.padded_left[1]]
    bad = int((~real.isfinite()).sum())
    if bad:
        measured = ("left-nan", {"bad": bad, "of": real.numel()})
        return Claim("padding", "output.non-finite", Found("before", {}, measured))
    if e.left_leaks:
        return Claim("padding", "mask.padding-ignored", Found("before", {}, ("left", {})))
    return None


def padded_queries(e: PaddedEvidence) -> Verdict | None:
    """Outputs of padding tokens that are declared to be zero."""
    if e.contract.padded_queries != "zero":
        return None
    return Clear() if e.padding.queries_zero else Found("not-zero")


def padding_nan(e: PaddedEvidence) -> Verdict | None:
    """A NaN in a padding token that reaches real outputs."""
    if e.padding.alone >= 1e-5:
        return None
    if not e.padding_leaks:
        return Clear("nan-padding")
    return Found("padding", {}, ("all-nan", {})) if e.contract.nan_safe else None


def all_padding(e: PaddedEvidence) -> Verdict | None:
    """A sample of padding only."""
    if e.all_padding is None or e.contract.empty_row is None:
        return None
    bad, whole = e.all_padding
    if not bad:
        return Clear()
    values = {"declared": e.contract.empty_row}
    return Found("padding", values, ("not-finite", {"count": bad, "of": whole}))
