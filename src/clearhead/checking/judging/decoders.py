"""Decoding with a cache, against all tokens at once."""

import torch

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.decoding import DecodingEvidence, Taken, Wrong
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.recipe import right_visible
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.reading import RIGHT_MASK, mask_named, setting_of
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Values, Verdict
from clearhead.checking.subject.refusals import first_line, raised

Also = tuple[tuple[str, str, Values], ...]


def cache(e: DecodingEvidence) -> Claim | Verdict:
    """Decoding with the cache, against all at once."""
    found = e.wrong
    if found is None:
        refused = e.ways[1]
        if len(refused) < len(e.schedules):
            return Clear("decoding")
        return Unknown("steps-refused", {"error": next(iter(refused.values()))})
    told: Values = {}
    if found.banded and found.inside:
        more, less = found.moves & ~found.full, found.full & ~found.moves
        way = "more" if more.any() and not less.any() else "window"
        name, also = "cache.wrong", ()
    elif _within_chunks(e, found):
        name, way, also = "cache.wrong", "chunk", ()
    elif not torch.equal(found.full, found.moves):
        name, way, also = "cache.wrong", _kept(e, found), ()
    else:
        name, way, told, also = _misplaced(e, e.taken(found.name), e.schedules[found.name][-1])
    one, other = found.shapes
    values = {"name": found.name, "picture": drawn(found.moves.tolist())}
    if one == other:
        measured = ("steps", values | {"gap": f"{found.gap:.3g}", "first": found.first})
    else:
        measured = ("step-shapes", {**values, "shapes": f"{one} and {other}"})
    return Claim("decoding", name, Found(way, told, measured, also))


def _misplaced(
    e: DecodingEvidence, taken: Taken | None, last: int
) -> tuple[str, str, Values, Also]:
    """Positions or values that are others with a cache: the name, the way, its values, and other names."""
    if taken is not None and taken.empty:
        return "cache.wrong", "empty", {}, ()
    if taken is not None and not taken.values:
        return "cache.wrong", "values", {}, ()
    right, way = e.inputs[0].shape[1] - 1, "otherwise"
    told: Values = {}
    if taken is not None:
        places = taken.query, taken.keys[-1]
        if places == (last - 1, last - 1):
            way = "restart"
        elif places[0] == right and taken.keys[1] == 2:
            way = "twice"
        elif -1 not in places and places != (right, right):
            way = "place"
            told = {"query": places[0], "key": places[1], "token": right}
    if e.contract.rope is not None or e.turned or (e.turned is None and e.rotates):
        return "rope.offset", way, told, ()
    if e.turned is False:
        return "cache.wrong", "unseen" if taken is None else "unturned", {}, ()
    return "cache.wrong", "positions", {}, (("rope.offset", way, told),)


def _kept(e: DecodingEvidence, found: Wrong) -> str:
    """The way in which what is kept is another, by what the outputs of steps move with."""
    one, other = found.shapes
    if one[1] > other[1]:
        return "rows"
    chunks = torch.tensor(e.schedules[found.name])
    number = torch.arange(len(chunks)).repeat_interleave(chunks)
    if found.moves.shape != found.full.shape or len(chunks) < 4:
        return "keys"
    own, first = number[:, None] == number, number == 0
    back = number[:, None] - number
    seen = found.full & found.moves
    # A query moves its own output, so that only its weights tell whether it sees itself.
    for way, visible in (("forgets", own), ("first", own | first), ("last", back <= 1)):
        if torch.equal(seen, found.full & visible):
            return way
    taken = e.taken(found.name)
    if taken is None and torch.equal(found.moves | own, found.full | own):
        return "itself"
    return "keys"


def full_keeps(e: DecodingEvidence) -> Verdict:
    """full(x) that reads what is kept."""
    return Found("full") if e.kept_by_full else Clear()


def shares(e: DecodingEvidence) -> Verdict:
    """Two objects with one cache."""
    return Found("shared") if e.shared else Clear()


def fails(e: DecodingEvidence) -> Verdict | None:
    """Steps that fail, however tokens are handed over."""
    if e.refusal is None:
        return None
    why = first_line(e.refusal)
    return Found("fails", {"why": why}, ("text", {"text": raised(e.refusal)}))


def _within_chunks(e: DecodingEvidence, found: Wrong) -> bool:
    """True if every query sees what it should see, and besides nothing but tokens behind it in its own chunk."""
    chunks = torch.tensor(e.schedules[found.name])
    number = torch.arange(len(chunks)).repeat_interleave(chunks)
    behind = (number[:, None] == number).triu(1)
    if found.moves.shape != behind.shape:
        return False
    more = found.moves & ~found.full
    return bool(more.any()) and torch.equal(found.moves & ~behind, found.full & ~behind)


def model_cache(e: TokensEvidence) -> Claim | Verdict | None:
    """A whole model token by token, against all at once."""
    return None if e.steps is None else cache(e.steps)


def stale(e: DecodingEvidence) -> Verdict | None:
    """A second run that sees something of the first."""
    if e.stale is None:
        return None
    return Found("reset", {}, ("again", {"words": e.stale})) if e.stale else Clear("reset")


def full_mask(e: DecodingEvidence) -> Claim | Verdict | None:
    """full(x) that sees the future, or another window than is declared."""
    seen, left = e.full_moves, (e.contract.window or (None, None))[0]
    picture = ("plain-picture", {"picture": drawn(seen.tolist())})
    told = torch.ones_like(seen)
    if not seen.any():
        return Unknown("unmoved")
    rows = e.output.isfinite().all(-1).flatten(0, -2)
    if not rows.all():
        if rows[:, 0].any() or not rows[:, 1:].all():
            return Claim("mask", "differs", Found("tokens"))
        text = {"text": "the first output of full(x) is NaN, as of a token that sees nothing"}
        return Claim("mask", "mask.off-by-one", Found("itself", {}, ("text", text)))
    if seen.triu(1).any():
        told = told.tril()
        if e.contract.causal:
            return Claim("mask", "mask.missing", Found("full", {}, picture))
        if left is None:
            return None
    window = None if left is None else (left, 0)
    at = setting_of(Contract(causal=True, window=window), len(seen))
    named = mask_named(seen, at, told)
    if named is RIGHT_MASK:
        return Clear("mask")
    if named is not None:
        return Claim("mask", named.code, Found(named.way, named.values, picture))
    # A key may be hidden, or its weight too small to be felt, but not that of every farthest one.
    reaches = left is None or seen.diagonal(-min(left, len(seen) - 1)).any()
    if reaches and not (seen.tril() & ~right_visible(at)).any():
        return Unknown("unmoved")
    return Claim("mask", "differs", Found("mask", {}, picture))
