"""Edits of the mask and of the softmax: which pattern hides, what hides, and what is normalised."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import (
    Setting,
    Stage,
    StageEdit,
    declared,
    looks_back,
    right_visible,
    visible,
)

# A mask that is passed does not count.
HIDES = declared("causal", "window", "documents")

# Patterns of the mask.


def _moved(left: int = 0, right: int = 0) -> Stage:
    """Return a `visible` stage: the mask with its edges moved outwards by `left` and `right` keys, negative inwards."""
    return lambda at: visible(at, at.offset, left, right)


def _without(*fields: str, mask: bool = False) -> Stage:
    """Return a `visible` stage: the mask without these fields of the contract; `mask` drops the given mask too."""

    def seen(at: Setting) -> Tensor:
        """Return the mask of the contract without the fields."""
        contract = replace(at.contract, **dict.fromkeys(fields))
        return right_visible(at._replace(contract=contract, mask=None if mask else at.mask))

    return seen


def _inverted_diagonal(right: int) -> Stage:
    """Return a `visible` stage: only keys more than `right` positions after the query, of those the rest allows."""

    def seen(at: Setting) -> Tensor:
        """Return the inverted causal mask, combined with the rest of the contract."""
        past = visible(at._replace(contract=Contract(causal=True), mask=None), at.offset, 0, right)
        return ~past & _without("causal")(at)

    return seen


def _inverted_with_given(at: Setting) -> Tensor:
    """Return the contract's mask inverted, combined with the given mask, if any, as it is."""
    seen = ~right_visible(at._replace(mask=None))
    return seen if at.mask is None else seen & at.mask


def _given(change: Callable[[Tensor], Tensor]) -> Stage:
    """Return a `visible` stage: the mask with the given mask changed by a function.

    The stage raises AssertionError without a given mask.
    """

    def seen(at: Setting) -> Tensor:
        """Return the mask with the given one changed; AssertionError without a given one."""
        assert at.mask is not None
        return right_visible(at._replace(mask=change(at.mask)))

    return seen


def _tiled_over_heads(at: Setting) -> Tensor:
    """Return the mask if the given one is tiled as (heads, batch) and viewed as (batch, heads).

    AssertionError without a given one.
    """
    # mask.repeat(heads, 1, 1) next to scores.view(batch * heads, …): sample and head are swapped.
    assert at.mask is not None
    shape = (at.batch, at.num_heads, at.query_len, at.kv_len)
    mask = at.mask.expand(at.batch, 1, *shape[2:]).repeat(at.num_heads, 1, 1, 1).view(shape)
    return mask & right_visible(at._replace(mask=None))


def _on_queries(at: Setting) -> Tensor:
    """Return the mask if row 0 of the given one hides queries instead of keys; unchanged if lengths differ.

    AssertionError without a given one.
    """
    # A mask of keys, (batch, 1, 1, kv_len), read as one of queries.
    assert at.mask is not None
    mask = at.mask[..., :1, :].mT if at.query_len == at.kv_len else at.mask
    return right_visible(at._replace(mask=mask.expand(-1, -1, at.query_len, at.kv_len)))


def _first_head_only(at: Setting) -> Tensor:
    """Return the mask, (batch, heads, query_len, kv_len), with all keys visible to every head but the first."""
    seen = right_visible(at).expand(at.batch, at.num_heads, at.query_len, at.kv_len).clone()
    seen[:, 1:] = True
    return seen


def _both_sides(at: Setting) -> Tensor:
    """Return the mask without causality, with a window as far ahead as back; AssertionError without a window."""
    assert at.contract.window is not None
    left = at.contract.window[0]
    contract = replace(at.contract, causal=None, window=(left, left))
    return right_visible(at._replace(contract=contract))


def _inverted(at: Setting) -> Tensor:
    """Return the whole mask inverted."""
    return ~right_visible(at)


MASKS = [
    StageEdit("mask.inverted", "future", {"visible": _inverted},
         lambda contract: contract.causal and contract.window is None),
    StageEdit("mask.inverted", "window", {"visible": _inverted}, declared("window")),
    StageEdit("mask.inverted", "diagonal", {"visible": _inverted_diagonal(-1)}, declared("causal")),
    StageEdit("mask.inverted", "next", {"visible": _inverted_diagonal(1)}, declared("causal")),
    StageEdit("mask.missing", "causal", {"visible": _without("causal")}, declared("causal")),
    StageEdit("mask.missing", "window", {"visible": _without("window")}, declared("window")),
    StageEdit("mask.missing", "both", {"visible": _without("causal", "window")},
         lambda contract: contract.causal and contract.window is not None),
    StageEdit("mask.missing", "documents", {"visible": _without("documents")},
         declared("documents")),
    StageEdit("mask.missing", "some-heads", {"visible": _first_head_only}, HIDES),
    StageEdit("mask.off-by-one", "next", {"visible": _moved(right=1)}, declared("causal")),
    StageEdit("mask.off-by-one", "itself", {"visible": _moved(right=-1)}, declared("causal")),
    *(
        StageEdit("mask.off-by-one", way,
             {"visible": _moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
             declared("window"), {"sides": sides})
        for by, way in ((1, "more"), (-1, "less"))
        for sides in ("back", "ahead", "back and ahead")
    ),
    StageEdit("mask.missing", "ahead", {"visible": _both_sides}, looks_back),
    StageEdit("mask.top-left", "rectangular", {"visible": lambda at: visible(at, 0)}, HIDES),
]  # fmt: skip


GIVEN = [
    StageEdit("mask.inverted", "given", {"visible": _given(lambda mask: ~mask)}),
    StageEdit("mask.inverted", "with-given", {"visible": _inverted_with_given}, HIDES),
    StageEdit("mask.missing", "given", {"visible": _without(mask=True)}),
    StageEdit("mask.missing", "with-given", {"visible": _without("causal", "window")}, HIDES),
    StageEdit("mask.broadcast", "given", {"visible": _on_queries}),
    *(
        StageEdit("mask.broadcast", way, {"visible": _given(pick)})
        for way, pick in (
            ("first", lambda mask: mask[:1]),
            ("last", lambda mask: mask[-1:]),
            ("turned", lambda mask: mask.flip(0)),
            ("turned", lambda mask: mask.roll(1, 0)),
            ("turned", lambda mask: mask.roll(-1, 0)),
            ("any", lambda mask: mask.any(0, keepdim=True)),
            ("all", lambda mask: mask.all(0, keepdim=True)),
        )
    ),
    StageEdit("mask.broadcast", "tiled", {"visible": _tiled_over_heads}),
]

# What hides: scores, seen, scale, empty → scores; weights, seen, at → weights.


def _shown(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    """Return the scores with nothing hidden."""
    return scores


def _added(sign: float, scaled: bool) -> Stage:
    """Return a `hide` stage that adds `sign`, times the scale if `scaled`, to visible scores, and hides nothing."""
    return lambda scores, seen, scale, empty: scores + sign * (scale if scaled else 1.0) * seen


def _over_queries(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    """Return the weights with hidden ones set to 0, normalised over the queries; NaN for a key that no query sees."""
    kept = weights * seen
    return kept / kept.sum(-2, keepdim=True)


HIDING = [
    StageEdit("mask.after-softmax", "zeroed",
         {"hide": _shown, "after": lambda weights, seen, at: weights * seen}),
    StageEdit("softmax.axis", "sum", {"hide": _shown, "after": _over_queries}),
    StageEdit("mask.soft", "zero", {"hide": lambda scores, seen, scale, empty: scores * seen}),
    StageEdit("mask.inverted", "product",
         {"hide": lambda scores, seen, scale, empty: torch.where(seen, scores - 1e9, 0.0)}),
    StageEdit("mask.soft", "seen", {"hide": _added(1.0, False)}),
    StageEdit("mask.soft", "seen-scaled", {"hide": _added(1.0, True)}),
    StageEdit("mask.soft", "hidden", {"hide": _added(-1.0, False)}),
    StageEdit("mask.soft", "hidden-scaled", {"hide": _added(-1.0, True)}),
]  # fmt: skip

# Another axis than the keys and other functions are read off the recorded stages (`judging/reading.py`).
SOFTMAX = [
    StageEdit("softmax.twice", "twice",
         {"share": lambda masked, empty, at: stages.weights(masked).softmax(-1)}),
    StageEdit("law.value", "transposed", {"after": lambda weights, seen, at: weights.mT}),
]  # fmt: skip
