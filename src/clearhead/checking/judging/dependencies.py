"""Verdicts on the tokens that outputs move with."""

import torch

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import contracts
from clearhead.checking.hypotheses.recipe import RIGHT, Setting
from clearhead.checking.judging.drawings import dependency
from clearhead.checking.judging.reading import RIGHT_MASK, mask_named, setting_of
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Verdict


def mixed(e: TokensEvidence) -> Verdict:
    """Return Found if a sample changes the output of another one, else Clear."""
    if isinstance(e, CrossEvidence):
        return Found("samples") if any(each.mixed for each in e.dependencies) else Clear()
    measured = e.dependency
    if not measured.mixed:
        return Clear()
    own = torch.eye(*measured.moves.shape, dtype=torch.bool)
    way = "samples" if (measured.moves & ~own).any() else "first-axis"
    return Found(way, {}, ("other-sample", {}))


def as_promised(e: TokensEvidence) -> Contract | None:
    """Return the first promised contract whose mask the dependencies show; None if they show another mask.

    None as well if an output is not finite, or outputs and tokens differ in number. A token's own output is not
    compared.
    """
    measured = e.dependency
    own = torch.eye(*measured.moves.shape, dtype=torch.bool)
    if measured.broken.any() or measured.moves.shape[0] != measured.moves.shape[1]:
        return None
    for contract in contracts(e.promised):
        if not ((RIGHT.visible(_setting(e, contract)) ^ measured.moves) & ~own).any():
            return contract
    return None


def _setting(e: TokensEvidence, contract: Contract) -> Setting:
    """Return the setting of self-attention over the tokens of the input; one head if their number is unknown."""
    return setting_of(contract, e.inputs[0].shape[-2], e.num_heads or 1)


def _masked_inside(e: TokensEvidence, group: int) -> bool:
    """Return True if a group follows the definition, declared mask included, in a trial over all tokens at once."""
    if not e.explanations[group].right:
        return False
    at, tokens = e.group_trials(group)[0].setting, e.inputs[0].shape[-2]
    return at.query_len == at.kv_len == tokens


def leaks(e: TokensEvidence) -> Claim | Clear:
    """Return a claim if the dependencies differ from the mask of the contract, else Clear.

    Clear without a declared mask, unless an output is not finite. Fewer dependencies than allowed are a mistake only if
    a known wrong mask has them.
    """
    if as_promised(e) is not None:
        return Clear()
    measured, broken = e.dependency, bool(e.dependency.broken.any())
    if not e.contract.masked and not broken:
        return Clear()
    own = torch.eye(*measured.moves.shape, dtype=torch.bool)
    at = _setting(e, contracts(e.promised)[0])
    seen = RIGHT.visible(at) | own
    picture = ("dependency", dependency(measured, seen.tolist()))
    if broken:
        return Claim("leaks", "differs", Found("tokens", {}, picture))
    beyond = bool((measured.moves & ~seen).any())
    if beyond and e.groups and all(_masked_inside(e, index) for index in range(len(e.groups))):
        return Claim("leaks", "differs", Found("elsewhere", {}, picture))
    named = mask_named(measured.moves, at, ~own) if beyond or not e.observed else RIGHT_MASK
    if named is None and beyond:
        return Claim("leaks", "differs", Found("dependency", {}, picture))
    # A weight can be too small to be felt.
    if named is None or named is RIGHT_MASK:
        return Clear()
    return Claim("leaks", named.code, Found(named.way, named.values, picture))
