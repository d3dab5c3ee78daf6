"""Decoding with a cache, against all tokens at once."""

import torch

from clearhead.checking.evidence.decoding import DecodingEvidence, Wrong
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.verdicts import Clear, Found, Unknown, Verdict


def cache(code: str, e: DecodingEvidence) -> Verdict:
    """Decoding with the cache, against all at once."""
    found = e.wrong
    if found is None:
        refused = e.ways[1]
        if len(refused) < len(e.schedules):
            return Clear("decoding")
        return Unknown("steps-refused", {"error": next(iter(refused.values()))})
    if found.banded and found.inside:
        name, way, also = "cache.window", "window", ()
    elif _within_chunks(e, found):
        name, way, also = "cache.unmasked", "chunk", ()
    elif not torch.equal(found.full, found.moves):
        name, way, also = "cache.offset", "keys", ()
    elif e.contract.rope is not None or e.turned or (e.turned is None and e.rotates):
        name, way, also = "rope.offset", "restart", ()
    elif e.turned is False:
        name, way, also = "cache.offset", "unturned", ()
    else:
        name, way, also = "cache.offset", "positions", (("rope.offset", "restart", {}),)
    if name != code:
        return Clear()
    one, other = found.shapes
    values = {"name": found.name, "picture": drawn(found.moves.tolist())}
    if one != other:
        return Found(way, {}, ("step-shapes", {**values, "shapes": f"{one} and {other}"}), also)
    values |= {"gap": f"{found.gap:.3g}", "first": found.first}
    return Found(way, {}, ("steps", values), also)


def _within_chunks(e: DecodingEvidence, found: Wrong) -> bool:
    """True if every query sees what it should see, and besides nothing but tokens behind it in its own chunk."""
    chunks = torch.tensor(e.schedules[found.name])
    number = torch.arange(len(chunks)).repeat_interleave(chunks)
    behind = (number[:, None] == number).triu(1)
    if found.moves.shape != behind.shape:
        return False
    more = found.moves & ~found.full
    return bool(more.any()) and torch.equal(found.moves & ~behind, found.full & ~behind)


def model_cache(code: str, e: TokensEvidence) -> Verdict | None:
    """A whole model token by token, against all at once."""
    return None if e.steps is None else cache(code, e.steps)


def stale(e: DecodingEvidence) -> Verdict | None:
    """A second run that sees something of the first."""
    if e.stale is None:
        return None
    return Found("reset", {}, ("again", {"words": e.stale})) if e.stale else Clear("reset")


def full_mask(code: str, e: DecodingEvidence) -> Verdict | None:
    """full(x) that sees the future, or another window than is declared."""
    seen, contract = e.full_moves, e.contract
    tokens = len(seen)
    picture = ("plain-picture", {"picture": drawn(seen.tolist())})
    future = bool(seen.triu(1).any())
    if contract.causal and future:
        return Found("full", {}, picture) if code == "mask.missing" else Clear()
    left = None if contract.window is None else contract.window[0]
    if left is None and future:
        return None
    places = torch.arange(tokens)
    far = places[:, None] - places
    reach = tokens - 1 if left is None else min(left, tokens - 1)
    back = int(far[seen].max()) if seen.any() else 0
    if left is None or back == reach:
        # A key may be hidden, or its weight too small to be felt.
        whole = torch.equal(seen & (far >= 0), (far >= 0) & (far <= reach))
        return Clear("mask") if whole else Unknown("unmoved")
    if abs(back - left) == 1:
        name, way = "mask.window-off-by-one", "more" if back > left else "less"
    elif back == tokens - 1:
        name, way = "mask.missing", "window"
    else:
        name, way = "differs", "mask"
    return Found(way, {"sides": "to the left"}, picture) if code == name else Clear()
