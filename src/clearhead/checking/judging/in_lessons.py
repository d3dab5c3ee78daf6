"""Verdicts that are asked in lessons alone: what is a choice elsewhere, and not what a lesson asks for."""

import torch
from torch import Tensor

from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.verdicts import Clear, Found, Verdict
from clearhead.checking.thresholds import SUMS

SIDES = ("query", "key", "value")


def frozen(e: TokensEvidence) -> Verdict:
    """Parameters that nothing trains."""
    names = [name for name, each in e.subject.parameters().items() if not each.requires_grad]
    return Found("frozen", {"names": ", ".join(names)}) if names else Clear()


def tied(e: TokensEvidence) -> Verdict:
    """One matrix in the place of two."""
    for one in e.observed[:1]:
        gains = (*(one.gains or (1.0, 1.0)), 1.0)
        rows = [
            each / gain for each, gain in zip((one.query, one.key, one.value), gains, strict=True)
        ]
        for first, second in ((0, 1), (0, 2), (1, 2)):
            same = rows[first].shape == rows[second].shape
            if same and torch.allclose(rows[first], rows[second]):
                return Found("sides", {"one": SIDES[first], "other": SIDES[second]})
    return Clear()


def idle(e: TokensEvidence) -> Verdict:
    """A parameter that moves nothing, whatever it is for."""
    names = [each for each in e.gradients.names("dead") if each in e.subject.parameters()]
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


def beside(e: CrossEvidence) -> Verdict | None:
    """Outputs that move with other tokens of x than their own."""
    by_x = e.dependency.moves
    own = torch.eye(*by_x.shape, dtype=torch.bool)
    return Found("beside") if not e.alike and bool((by_x & ~own).any()) else Clear()


def any_length(e: TokensEvidence) -> Verdict:
    """A number of tokens that is refused."""
    refused = {tokens: words for tokens, words in e.lengths.items() if words not in ("", "NaN")}
    if not refused:
        return Clear()
    tokens, words = max(refused.items())
    measured = ("fewer", {"tokens": tokens, "error": words.splitlines()[0]})
    return Found("lesson", {"tokens": tokens, "whole": e.inputs[0].shape[-2]}, measured)
