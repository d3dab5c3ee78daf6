"""Verdicts by the laws of attention, tested where no mistake has a name yet."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking.evidence.attempts import as_trial
from clearhead.checking.evidence.cases import called, lost
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.lengths import repeated_row
from clearhead.checking.evidence.splitting import consumer
from clearhead.checking.evidence.state import with_zeros_drawn
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import fits
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.drawings import first_difference
from clearhead.checking.judging.verdicts import Clear, Found, Verdict
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import weigh


def scores(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Return Found if a call in float64 computes in 16 bits, or if scores decide which keys are hidden; else Clear.

    None if the call was not recorded, nothing attends, a function is not right otherwise, or a second call is not like
    the first.
    """
    if e.recorded is None:
        return None
    if e.recorded.recorder.halves and e.subject.dtype == torch.float64:
        table = e.lines.halved is not None and not e.lines.halved[1]
        return Found("table" if table else "halves")
    if isinstance(e, HeadsEvidence):
        return _of_zero(e) if e.explained.right else None
    if not e.groups:
        return None
    group = e.groups[0]
    visible = _visible(group.heads)
    if visible.all() or as_promised(e) is not None or isinstance(e, CrossEvidence):
        return Clear()
    other = e.record(e.feed.draw(e.inputs[0].shape[-2], e.seed + 7))
    if other is None or len(other.attentions) != len(e.observed):
        return None
    seen = _visible(group.joined([other.attentions[index] for index in group.indices]))
    return Clear() if torch.equal(seen, visible) else Found("chosen")


def _of_zero(e: HeadsEvidence) -> Verdict:
    """Return Found if a call whose middle key is 0 differs from the recipe, as if a score of 0 hid keys.

    Clear otherwise, also if that call raises.
    """
    main = e.attempts[0]
    inputs = tuple(each.clone() for each in main.inputs)
    inputs[1][..., inputs[1].shape[-2] // 2, :] = 0.0
    output = called(e.subject.fresh(), inputs)
    if isinstance(output, Exception):
        return Clear()
    made = replace(main, inputs=inputs, output=output)
    case = as_trial(made, e.explained.contract, e.rounded)
    if case is None or fits([case], e.explained.recipe) is not None:
        return Clear()
    return Found("zero", {}, first_difference([case]))


def _visible(attentions: Sequence[ObservedAttention]) -> Tensor:
    """Return the visible pairs of all attentions, (blocks, queries, keys)."""
    return torch.cat([weigh(each).visible for each in attentions])


def pairs(e: TokensEvidence) -> Verdict | None:
    """Return Found if a token reads or writes at the wrong position, else Clear.

    None if no law is broken and either no causal mask is declared or nothing attends. For cross-attention it is the
    verdict of `_all_seen`, unless only one position is used.
    """
    if repeated_row(e.subject, e.inputs) == 1:
        return Found("one-position")
    if isinstance(e, CrossEvidence):
        return _all_seen(e)
    moves = e.dependency.moves
    elsewhere = (moves.any(1) & ~moves.diagonal()).nonzero().flatten().tolist()
    if elsewhere and len(moves) == moves.shape[1]:
        token = elsewhere[0]
        return Found("elsewhere", {"token": token, "other": int(moves[token].nonzero()[0])})
    away = _rows_elsewhere(e)
    if away is not None:
        return Found("elsewhere", {"token": away[0], "other": away[1]})
    if _alone(e):
        return Found("alone")
    if _moved_apart(e):
        return Found("apart")
    unread = _without_keys(e)
    if unread:
        return Found("unread", {"tokens": ", ".join(map(str, unread))})
    return Clear() if e.contract.causal and e.groups else None


def _rows_elsewhere(e: TokensEvidence) -> tuple[int, int] | None:
    """Return (token, other): the first token whose output is the projected context of another one.

    None if there is none, or what reads the contexts is not known.
    """
    if e.recorded is None or not e.groups or e.groups[-1].arranged is None:
        return None
    reader = consumer(e.recorded.recorder, e.recorded.output, e.groups[-1].attentions)
    output = e.batched(e.recorded.output)[0].double()
    if reader is None or reader.node is None or reader.node.output.numel() != e.output.numel():
        return None
    made = reader.node.output.double().reshape(-1, *output.shape)[0]
    # A bias is the same for every token.
    gap = torch.cdist(output - output.mean(0), made - made.mean(0))
    close = gap <= SUMS * gap.max()
    away = (close.any(1) & ~close.diagonal()).nonzero().flatten().tolist()
    return (away[0], int(close[away[0]].nonzero()[0])) if away else None


def _alone(e: TokensEvidence) -> bool:
    """Return True if no output changes with another token, though no mask hides them.

    False if a window or documents are declared, for one token, or if that is due to zeros that training fills.
    """
    moves = e.dependency.moves
    own = torch.eye(*moves.shape, dtype=torch.bool)
    hidden = e.contract.local or bool(e.dependency.broken.any())
    if hidden or len(moves) < 2 or not torch.equal(moves, own):
        return False
    # What is 0 before it is trained hides everything behind it.
    x, *others = e.inputs
    drawn, other = with_zeros_drawn(e.subject), x.clone()
    other[..., 1:, :] += 1.0
    one, two = (drawn.spare()(each, *others).detach()[..., 0, :] for each in (x, other))
    return torch.equal(one, two)


def _moved_apart(e: TokensEvidence) -> bool:
    """Return True if in all groups every key is of another token than its value; False if the tokens are unknown."""
    apart = []
    for source in e.sources:
        if source is None or not source.known or source.key.shape != source.value.shape:
            return False
        key, value = (rows[source.blocks] for rows in (source.key, source.value))
        both = (key >= 0) & (value >= 0)
        if not both.any() or bool((value < -1).any()):
            return False
        apart.append(bool((key != value)[both].all()))
    return bool(apart) and all(apart)


def _without_keys(e: TokensEvidence) -> list[int]:
    """Return the tokens that have queries but no keys, in all groups; [] if the tokens of rows are unknown."""
    asking, read = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    for source in e.sources:
        if source is None or not source.known:
            return []
        asking = torch.cat([asking, source.query[source.blocks].flatten()])
        read = torch.cat([read, source.key[source.blocks].flatten()])
    if bool((asking < 0).any()) or bool((read < 0).any()):
        return []
    return asking[~torch.isin(asking, read)].unique().tolist()


def _all_seen(e: CrossEvidence) -> Verdict | None:
    """Return Found if a token of the context changes no output, else Clear.

    None if a mask is declared, or no token of the context changes any.
    """
    moves = e.dependencies[1].moves
    if e.contract.causal or e.contract.local or not moves.any():
        return None
    unseen = (~moves.any(0)).nonzero().flatten().tolist()
    values = {"tokens": ", ".join(map(str, unseen)), "count": moves.shape[1]}
    return Found("unseen", values) if unseen else Clear()


def no_query(e: CrossEvidence) -> Verdict:
    """Return Found if no output depends on x, as with a single key, else Clear."""
    if e.dependency.moves.any():
        return Clear()
    unseen = _all_seen(e)
    if isinstance(unseen, Found):
        return unseen
    one = bool(e.observed) and all(each.scores.shape[-1] == 1 for each in e.observed)
    return Found("one-key" if one else "no-query")


def lost_mask(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Return Found if masked scores are computed and never read, else Clear; None without a recording."""
    if e.recorded is None:
        return None
    return Found("lost") if lost(e.recorded.recorder, e.recorded.output) else Clear()
