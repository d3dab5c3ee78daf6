"""Decoding with a cache, against all tokens at once."""

from math import isfinite

import torch

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.recipe import right_visible
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.reading import RIGHT_MASK, mask_named, setting_of
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Verdict, broken_law


def cache(e: DecodingEvidence) -> Claim | Verdict:
    """Return the mistake of the cache, Clear if steps and full(x) agree, or Unknown if every order of steps is refused.

    The mistake is "cache.wrong" if steps and full(x) depend on different tokens, or no rotation is declared, else
    "rope.offset".
    """
    wrong = e.wrong
    if wrong is None:
        if len(e.refused) < len(e.schedules):
            return Clear("decoding")
        return Unknown("steps-refused", {"error": next(iter(e.refused.values()))})
    found, moves = wrong
    gap = f"by up to {found.gap:.3g} of the largest number"
    gap = gap if isfinite(found.gap) else "another shape, or other places of NaN"
    measured = ("steps", {"name": found.at, "gap": gap, "picture": drawn(moves.tolist())})
    if not torch.equal(moves, e.full_moves):
        return Claim("decoding", "cache.wrong", Found("keys", {}, measured))
    if e.contract.rope is not None:
        return Claim("decoding", "rope.offset", Found("otherwise", {}, measured))
    return Claim("decoding", "cache.wrong", Found("positions", {}, measured))


def model_cache(e: TokensEvidence) -> Claim | Verdict | None:
    """Return the mistake of the cache of a whole model, or a verdict; None if it is not called step by step."""
    return None if e.steps is None else cache(e.steps)


def stale(e: DecodingEvidence) -> Verdict | None:
    """Return Found if a run depends on another run or object, else Clear; None if it cannot be copied."""
    if e.stale is None:
        return Clear("reset") if e.subject.copied else None
    return broken_law(e.stale)


def full_mask(e: DecodingEvidence) -> Claim | Verdict | None:
    """Return a verdict or claim on the mask of full(x), by the tokens that its outputs change with.

    None if it sees the future, and neither causality nor a window to the left is declared. Unknown if too little
    changes; Clear if it is causal with the declared window.
    """
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
