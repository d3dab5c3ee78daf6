"""Verdicts that are asked in lessons alone: what is a choice elsewhere, and not what a lesson asks for."""

from dataclasses import replace

import torch
from torch import Tensor

from clearhead._common.foreign_names import size_of
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.named_layers import trials_by_name
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.edits import edits
from clearhead.checking.hypotheses.matching import explain
from clearhead.checking.hypotheses.recipe import RIGHT
from clearhead.checking.judging.drawings import dependency, first_difference
from clearhead.checking.judging.reading import setting_of
from clearhead.checking.judging.verdicts import Clear, Found, Verdict
from clearhead.checking.subject.causes import cause
from clearhead.checking.subject.signatures import of_constructor
from clearhead.recording.thresholds import SUMS

SIDES = ("query", "key", "value")


def frozen(e: TokensEvidence) -> Verdict:
    """Parameters that nothing trains."""
    names = [name for name, each in e.subject.parameters().items() if not each.requires_grad]
    return Found("frozen", {"names": ", ".join(names)}) if names else Clear()


def tied(e: TokensEvidence) -> Verdict:
    """One matrix in the place of two."""
    given = e.inputs[0].flatten()
    for one in e.observed[:1]:
        gains = (*(one.gains or (1.0, 1.0)), 1.0)
        rows = [
            each / gain for each, gain in zip((one.query, one.key, one.value), gains, strict=True)
        ]
        for first, second in ((0, 1), (0, 2), (1, 2)):
            same = rows[first].shape == rows[second].shape
            if not (same and torch.allclose(rows[first], rows[second])):
                continue
            # By another order of the products, x · (W_query · W_keyᵀ) · xᵀ, both are what was given.
            reordered = len(e.subject.parameters()) > 2 and given.numel() == rows[first].numel()
            if not (reordered and torch.allclose(rows[first].flatten(), given)):
                return Found("sides", {"one": SIDES[first], "other": SIDES[second]})
    return Clear()


def idle(e: TokensEvidence) -> Verdict:
    """A parameter that moves nothing, whatever it is for."""
    dead = e.gradients.names("dead", "part dead")
    names = [each for each in dead if each in e.subject.parameters()]
    if not names:
        return Clear()
    measured = ("moves-nothing", {"first": ", ".join(names)})
    return Found("idle", {"names": ", ".join(names)}, measured)


def bent(e: TokensEvidence) -> Verdict | None:
    """Something between a projection and its product, other than a factor or a bias."""
    if e.recorded is None or e.contract.rope is not None:
        return None
    nodes = {node.index: node for node in e.recorded.recorder.nodes}
    for one in e.observed[:1]:
        layout = one.layout
        places = {node.place: node.operands for node in (layout.scores, layout.context)}
        channels = []
        for which in range(3):
            found = {
                node.place: [_channel(tags, which) for tags in node.tags]
                for node in (layout.scores, layout.context)
            }
            channels.append(layout.operands(found))
        for side, values, *told in zip(SIDES, layout.operands(places), *channels, strict=True):
            element, index, gain = told
            node = nodes.get(int(index.flatten()[0]))
            if node is None or node.kind != "linear" or not bool((index == node.index).all()):
                continue
            before = node.output.flatten()[element - node.base] * gain
            apart, wanted = (each - each[..., :1, :] for each in (values, before))
            if bool(wanted.isnan().any()) or not wanted.numel():
                continue
            if float((apart - wanted).abs().max()) > SUMS * float(wanted.abs().max()):
                return Found("activated", {"side": side})
    return Clear()


def _channel(tags: tuple[Tensor, ...] | None, which: int) -> Tensor:
    return torch.zeros(1, 1) if tags is None else tags[which]


def exact(e: TokensEvidence) -> Verdict | None:
    """An output that is not the context, where nothing projects the context."""
    if len(e.observed) != 1 or e.recorded is None:
        return None
    context = e.observed[0].context
    if context.numel() != e.output.numel() or context.shape[-1] != e.output.shape[-1]:
        return None
    storage = e.observed[0].layout.context.storage
    if any(storage in each.storages for each in e.recorded.recorder.nodes if each.kind == "linear"):
        return None
    gap = (context.reshape(e.output.shape) - e.output.double()).abs().max()
    if bool(gap <= SUMS * context.abs().max()):
        return Clear()
    return Found("more", {}, ("gap", {"gap": f"{float(gap):.3g}"}))


def unseen(e: TokensEvidence) -> Verdict | None:
    """Tokens that no other output moves with, or a window that nobody asked for."""
    moves = e.dependency.moves
    if isinstance(e, CrossEvidence) or e.dependency.broken.any() or len(moves) < 3:
        return None
    promised = replace(e.contract, causal=e.contract.causal is not False)
    own = torch.eye(*moves.shape, dtype=torch.bool)
    wanted = RIGHT.seen(setting_of(promised, len(moves))) & ~own
    never = (wanted.any(0) & ~(moves & wanted).any(0)).nonzero().flatten().tolist()
    picture = "dependency", dependency(e.dependency, (wanted | own).tolist())
    if never:
        return Found("never", {"tokens": ", ".join(map(str, never))}, picture)
    return Found("window", {}, picture) if e._window is not None else Clear()


def beside(e: CrossEvidence) -> Verdict | None:
    """Outputs that move with other tokens of x than their own."""
    by_x = e.dependency.moves
    own = torch.eye(*by_x.shape, dtype=torch.bool)
    return Found("beside") if not e.alike and bool((by_x & ~own).any()) else Clear()


def width(e: TokensEvidence) -> Verdict | None:
    """An output of another width than the constructor was told."""
    args = e.given.args or {}
    told = next(((name, each) for name, each in args.items() if size_of(name) == "d_out"), None)
    if told is None or not isinstance(told[1], int):
        return None
    got = e.output.shape[-1]
    return (
        Found("width", {"name": told[0], "wanted": told[1], "got": got})
        if got != told[1]
        else Clear()
    )


def apart(e: TokensEvidence) -> Verdict | None:
    """Heads that are made of columns that do not lie side by side."""
    if e.recorded is None or not e.observed:
        return None
    layout = e.observed[0].layout
    taken = {
        node.place: [_channel(tags, 0) for tags in node.tags]
        for node in (layout.scores, layout.context)
    }
    element = layout.operands(taken)[0]
    step = element.diff(dim=-1)
    if (
        element.shape[-1] < 2
        or bool((element <= 0).any())
        or not bool((step == step.flatten()[0]).all())
    ):
        return None
    by = int(step.flatten()[0])
    return Found("strided", {"step": by}) if by != 1 else Clear()


def unasked(e: TokensEvidence) -> Verdict | None:
    """A bias that the constructor is asked for, and makes no difference."""
    args, kind = e.given.args, type(e.given.original)
    names = [
        name
        for name, each in of_constructor(kind).items()
        if "bias" in name and each.default in (True, False)
    ]
    if args is None or not names:
        return None
    made = [e.given.made_again({**args, names[0]: asked}).parameters() for asked in (True, False)]
    return Clear() if set(made[0]) != set(made[1]) else Found("unasked", {"name": names[0]})


def otherwise(e: TokensEvidence) -> Verdict | None:
    """An output that is not made of its queries, keys and values, where no product was seen."""
    if e.observed:
        return None
    trials = trials_by_name(e)
    if len(trials) < 2:
        return None
    found = explain(
        trials, e.contract, lambda each: edits(each, given=False, masked=True, whole=False)
    )
    if found.known:
        return None
    return Found("by-number", {}, first_difference([each.under(found.contract) for each in trials]))


def columns(e: TokensEvidence) -> Verdict | None:
    """A first product that pairs columns, or that no output hangs on."""
    linear = e.observed and all(each is None or each.linear for each in e.sources)
    return Found("columns-first") if linear and not e.groups else None


def any_length(e: TokensEvidence) -> Verdict:
    """A number of tokens that is refused."""
    refused = {tokens: words for tokens, words in e.lengths.items() if words not in ("", "NaN")}
    if not refused:
        return Clear()
    tokens, words = max(refused.items())
    x, why = e.feed.draw(tokens, e.seed), ""
    try:
        e.subject.spare()(x)
    except Exception as error:  # which it raised before
        why = cause(error, e.given.run).rstrip(".\n")
    measured = ("fewer", {"tokens": tokens, "error": words.splitlines()[0]})
    values = {"tokens": tokens, "whole": e.inputs[0].shape[-2], "why": why and f": {why}"}
    return Found("lesson", values, measured)
