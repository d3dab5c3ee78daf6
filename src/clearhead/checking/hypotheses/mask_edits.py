"""Edits of the mask and of the softmax: which pattern hides, what hides, and what is normalised."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import (
    Setting,
    right_visible,
    visible,
)
from clearhead.checking.hypotheses.stage_edit import (
    Stage,
    StageEdit,
    causal,
    hides,
    looks_back,
    windowed,
)

# Patterns of the mask.


def _moved(left: int = 0, right: int = 0) -> Stage:
    """Return a `visible` stage: the mask with its edges moved outwards by `left` and `right` keys."""
    return lambda at: visible(at, at.offset, left, right)


def _without(*fields: str, mask: bool = False) -> Stage:
    """Return a `visible` stage: the mask without these fields of the contract; `mask` drops the given mask too."""

    def seen(at: Setting) -> Tensor:
        """Return the mask of the contract without the fields."""
        contract = replace(at.contract, **dict.fromkeys(fields))
        return right_visible(at._replace(contract=contract, mask=None if mask else at.mask))

    return seen


def _inverted_diagonal(right: int) -> Stage:
    """Return a `visible` stage that shows only the keys more than `right` positions after the query."""

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

    AssertionError without a given one.
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
    StageEdit("mask.inverted", "window", {"visible": _inverted}, windowed),
    StageEdit("mask.inverted", "diagonal", {"visible": _inverted_diagonal(-1)}, causal),
    StageEdit("mask.inverted", "next", {"visible": _inverted_diagonal(1)}, causal),
    StageEdit("mask.missing", "causal", {"visible": _without("causal")}, causal),
    StageEdit("mask.missing", "window", {"visible": _without("window")}, windowed),
    StageEdit("mask.missing", "both", {"visible": _without("causal", "window")},
         lambda contract: contract.causal and contract.window is not None),
    StageEdit("mask.missing", "documents", {"visible": _without("documents")},
         lambda contract: contract.documents is not None),
    StageEdit("mask.missing", "some-heads", {"visible": _first_head_only}, hides),
    StageEdit("mask.off-by-one", "next", {"visible": _moved(right=1)}, causal),
    StageEdit("mask.off-by-one", "itself", {"visible": _moved(right=-1)}, causal),
    *(
        StageEdit("mask.off-by-one", way,
             {"visible": _moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
             windowed, {"sides": sides})
        for by, way in ((1, "more"), (-1, "less"))
        for sides in ("back", "ahead", "back and ahead")
    ),
    StageEdit("mask.missing", "ahead", {"visible": _both_sides}, looks_back),
]  # fmt: skip

ALIGNMENT = [StageEdit("mask.top-left", "rectangular", {"start": lambda at: 0}, hides)]


def _next_to(by: int) -> Callable[[Tensor], Tensor]:
    """Return a function that shifts a mask by `by` keys and hides the keys beyond the ends."""
    return lambda mask: functional.pad(mask, (max(by, 0), max(-by, 0)))[
        ..., max(-by, 0) : mask.shape[-1] + max(-by, 0)
    ]


GIVEN = [
    *(
        StageEdit("mask.off-by-one", way, {"visible": _given(moved)})
        for way, moved in (
            ("padding-more", lambda mask: mask | _next_to(1)(mask)),
            (
                "padding-more",
                lambda mask: (mask | _next_to(1)(mask)) & _next_to(1)(torch.ones_like(mask)),
            ),
            ("padding-less", lambda mask: mask & _next_to(-1)(mask)),
            ("padding-first", lambda mask: mask & _next_to(1)(torch.ones_like(mask))),
        )
    ),
    StageEdit("mask.inverted", "given", {"visible": _given(lambda mask: ~mask)}),
    StageEdit("mask.inverted", "with-given", {"visible": _inverted_with_given}, hides),
    StageEdit("mask.missing", "given", {"visible": _without(mask=True)}),
    StageEdit("mask.missing", "with-given", {"visible": _without("causal", "window")}, hides),
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
    """Return the weights with hidden ones set to 0, normalised over the queries."""
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

# The softmax: scores in which −∞ is hidden → weights.


def _over(axis: int, *, safely: bool = False) -> Stage:
    """Return a `share` stage, the softmax over `axis`; `safely` fills hidden scores with -1e9 instead of -inf."""

    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        """Return the softmax of the masked scores over the axis."""
        hidden = masked == -torch.inf
        return torch.softmax(masked.masked_fill(hidden, -1e9) if safely else masked, axis)

    return share


def _flat(start: int, end: int) -> Stage:
    """Return a `share` stage, one softmax over the axes from `start` to `end` together.

    It raises AssertionError from axis 0 on if there is one head, where it equals another stage.
    """

    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        """Return the softmax over all of these axes at once, in the shape of the scores."""
        assert start != 0 or at.num_heads > 1  # with one head that is another axis
        return torch.softmax(masked.flatten(start, end), start).view_as(masked)

    return share


def _raw(masked: Tensor, empty: str = "", at: Setting | None = None) -> Tensor:
    """Return the masked scores with 0 instead of -inf; the other arguments are ignored."""
    return masked.masked_fill(masked == -torch.inf, 0.0)


def _by_sum(numbers: Tensor) -> Tensor:
    """Return the values divided by their sum over the last axis."""
    return numbers / numbers.sum(-1, keepdim=True)


def share(weigh: Callable[[Tensor], Tensor]) -> Stage:
    """Return a `share` stage that replaces the softmax by a function of the masked scores."""
    return lambda masked, empty, at: weigh(masked)


# Functions instead of the softmax, as they are or divided by their sum: the name, the sentence, the function.
NORMALISERS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "raw": ("raw", _raw),
    "exp": ("exp", torch.exp),
    "sigmoid": ("sigmoid", torch.sigmoid),
    "log": ("log", lambda masked: _raw(torch.log_softmax(masked, -1))),
    "relu": ("relu", torch.relu),
    "exp, the largest subtracted,": ("operation", lambda s: (s - s.amax(-1, keepdim=True)).exp()),
    "square": ("operation", lambda masked: _raw(masked).square()),
    **{
        name: ("operation", getattr(functional, name))
        for name in ("softplus", "elu", "gelu", "silu")
    },
}
BY_SUM = {"raw": "by-sum", "relu": "relu"}
SOFTMAX = [
    *(
        StageEdit("softmax.axis", "over", {"share": share}, values={"axis": name})
        for name, share in (
            ("queries", _over(-2)),
            ("heads", _over(1)),
            ("batch", _over(0)),
            ("samples and heads together", _flat(0, 1)),
            ("queries", _over(-2, safely=True)),
            ("heads", _over(1, safely=True)),
            ("batch", _over(0, safely=True)),
            ("queries and keys together", _flat(2, 3)),
            ("whole tensor", _flat(0, 3)),
        )
    ),
    *(
        StageEdit("softmax.missing", way, {"share": share(weigh)}, values={"operation": name})
        for name, (way, function) in NORMALISERS.items()
        for way, weigh in (
            (way, function),
            (BY_SUM.get(name, "operation"), lambda s, f=function: _by_sum(f(s))),
        )
        if not (name.startswith("exp") and weigh is not function)  # that is the softmax
    ),
    StageEdit("softmax.axis", "sum",
         {"share": share(lambda s: (w := s.softmax(-1)) / w.sum(-2, keepdim=True))}),
    StageEdit("softmax.twice", "twice", {"share": share(lambda s: stages.weights(s).softmax(-1))}),
    StageEdit("law.value", "transposed", {"after": lambda weights, seen, at: weights.mT}),
]  # fmt: skip
