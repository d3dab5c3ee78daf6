"""Verdicts on modules of tokens: heads, sides and padding."""

import torch

from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.padding import PaddedEvidence, with_mask
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Verdict

# Two sides.


def swapped_length(e: CrossEvidence) -> Verdict | None:
    """Return Found if the output does not have one row for each token of x, else None."""
    x, context = (each.shape[-2] for each in e.inputs)
    if e.output.shape[-2] == x:
        return None
    values = {"x": x, "context": context, "output": e.output.shape[-2]}
    return Found("length", {}, ("lengths", values))


def ignored(e: CrossEvidence) -> Verdict:
    """Return Found if the context changes no output, or keys or values come from x; else Clear.

    Without known tokens, Found if outputs change with several tokens of x and not with the whole context.
    """
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


def swapped(e: CrossEvidence) -> Verdict:
    """Return Found if queries come from the context, and keys and values from x.

    Clear otherwise, or at unequal lengths.
    """
    by_x, by_context = e.dependencies
    if not e.alike:
        return Clear()
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    over = (by_context.moves & ~own).any() or not by_context.moves.any()
    if (by_x.moves & ~own).any() and not over:
        return Found("sides", {}, ("sides", _sides(e)))
    return Clear()


def _sides(e: CrossEvidence) -> dict[str, str]:
    """Return drawings of the dependencies of the outputs on x and on the context, by these names."""
    by_x, by_context = e.dependencies
    return {"x": drawn(by_x.cells()), "context": drawn(by_context.cells())}


# Padding.


def padding(e: PaddedEvidence) -> Claim | Clear:
    """Return a claim on padding: the edit that a padded batch follows, NaN, or real outputs that change; else Clear.

    Changes without an edit are "mask.padding-ignored" if padding tokens cause them and the attention is not known to be
    right, else "differs". If nothing is found, causal outputs with padding on the left are tested too.
    """
    seen, found = e.padding, e.explained_padded
    measured = ("padded", {"gap": f"{seen.alone:.3g}"})
    edit = found.script[0] if found is not None and found.script else None
    if edit is not None and (seen.alone >= 1e-5 or edit.way.startswith("padding")):
        given = edit.code == "mask.missing" and edit.way in ("given", "with-given")
        code, way = ("mask.padding-ignored", "ignored") if given else (edit.code, edit.way)
        return Claim("padding", code, Found(way, edit.values, measured))
    if not e.padded_output[e.padded[1]].isfinite().all():
        return Claim("padding", "output.non-finite", Found("padding", {}, ("all-real", {})))
    if seen.alone < 1e-5:
        return _padding_before(e) or Clear("padding")
    ignored = seen.by_padding and not (found is not None and found.right)
    code = "mask.padding-ignored" if ignored else "differs"
    return Claim("padding", code, Found("less" if ignored else "padding", {}, measured))


def model_padding(e: TokensEvidence) -> Claim | Verdict | None:
    """Return a verdict or claim on padding of a whole model; None if it takes no mask of tokens, or fails with one."""
    found = with_mask(e)
    return None if found is None else padding(found)


def _padding_before(e: PaddedEvidence) -> Claim | None:
    """Return a claim if padding before a text changes causal outputs; None if not, or if not causal."""
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
    """Return Found if outputs of padding tokens are declared zero and are not, else Clear; None if undeclared."""
    if e.contract.padded_queries != "zero":
        return None
    return Clear() if e.padding.queries_zero else Found("not-zero")


def padding_nan(e: PaddedEvidence) -> Verdict | None:
    """Return Clear if a NaN in padding reaches no real output, Found if it does and nan_safe is declared; else None.

    None as well if padded texts have other outputs than alone.
    """
    if e.padding.alone >= 1e-5:
        return None
    if not e.padding_leaks:
        return Clear("nan-padding")
    return Found("padding", {}, ("all-nan", {})) if e.contract.nan_safe else None


def all_padding(e: PaddedEvidence) -> Verdict | None:
    """Return Found if a sample of padding only is not finite, else Clear.

    None if `empty_row` is undeclared or the call fails.
    """
    if e.all_padding is None or e.contract.empty_row is None:
        return None
    bad, whole = e.all_padding
    if not bad:
        return Clear()
    values = {"declared": e.contract.empty_row}
    return Found("padding", values, ("not-finite", {"count": bad, "of": whole}))
