"""Mutants of the mask: which one is in force, and how it hides."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.mutant import Mutant, hides
from clearhead.checking.hypotheses.recipe import Setting, right_visible, visible


def moved(left: int = 0, right: int = 0) -> Any:
    """A mask with its edges moved outwards."""
    return lambda at: visible(at, at.offset, left, right)


def _without(*fields: str, mask: bool = False) -> Callable[[Setting], Tensor]:
    """The mask of the contract without some of its parts."""

    def seen(at: Setting) -> Tensor:
        contract = replace(at.contract, **dict.fromkeys(fields))
        return right_visible(at._replace(contract=contract, mask=None if mask else at.mask))

    return seen


def _inverted_beside_given(at: Setting) -> Tensor:
    seen = ~right_visible(at._replace(mask=None))
    return seen if at.mask is None else seen & at.mask


def _turned(right: int) -> Callable[[Setting], Tensor]:
    """Causal the wrong way round, and the diagonal beside where it belongs."""

    def seen(at: Setting) -> Tensor:
        past = visible(at._replace(contract=Contract(causal=True), mask=None), at.offset, 0, right)
        return ~past & _without("causal")(at)

    return seen


def _given(change: Callable[[Tensor], Tensor]) -> Callable[[Setting], Tensor]:
    """The mask handed in, changed."""

    def seen(at: Setting) -> Tensor:
        assert at.mask is not None
        return right_visible(at._replace(mask=change(at.mask)))

    return seen


def _tiled_over_heads(at: Setting) -> Tensor:
    # mask.repeat(heads, 1, 1) beside scores.view(batch * heads, …): sample and head are swapped.
    assert at.mask is not None
    mask = at.mask.expand(at.batch, 1, at.query_len, at.kv_len)
    rows = mask.repeat(at.num_heads, 1, 1, 1).view(at.batch, at.num_heads, at.query_len, at.kv_len)
    return rows & right_visible(at._replace(mask=None))


def _on_queries(at: Setting) -> Tensor:
    # A mask of keys, (batch, 1, 1, kv_len), read as one of queries.
    assert at.mask is not None
    mask = at.mask[..., :1, :].mT if at.query_len == at.kv_len else at.mask
    return right_visible(at._replace(mask=mask.expand(-1, -1, at.query_len, at.kv_len)))


def _first_head_only(at: Setting) -> Tensor:
    seen = right_visible(at).expand(at.batch, at.num_heads, at.query_len, at.kv_len).clone()
    seen[:, 1:] = True
    return seen


def _both_sides(at: Setting) -> Tensor:
    """The window as far ahead as it goes back."""
    assert at.contract.window is not None
    left = at.contract.window[0]
    contract = replace(at.contract, causal=None, window=(left, left))
    return right_visible(at._replace(contract=contract))


def _looks_back(contract: Contract) -> bool:
    """True of a window that ends at its own token and goes back by more than one: else ahead is off by one."""
    left, right = contract.window or (None, None)
    return left is not None and left > 1 and (contract.causal is True or right == 0)


def _causal(contract: Contract) -> Any:
    return contract.causal


def _windowed(contract: Contract) -> Any:
    return contract.window is not None


MASKS = [
    Mutant(
        "mask.inverted",
        "future",
        {"visible": lambda at: ~right_visible(at)},
        lambda contract: contract.causal and contract.window is None,
    ),
    Mutant("mask.inverted", "window", {"visible": lambda at: ~right_visible(at)}, _windowed),
    Mutant("mask.inverted", "diagonal", {"visible": _turned(-1)}, _causal),
    Mutant("mask.inverted", "next", {"visible": _turned(1)}, _causal),
    Mutant("mask.missing", "causal", {"visible": _without("causal")}, _causal),
    Mutant("mask.missing", "window", {"visible": _without("window")}, _windowed),
    Mutant(
        "mask.missing",
        "both",
        {"visible": _without("causal", "window")},
        lambda contract: contract.causal and contract.window is not None,
    ),
    Mutant("mask.missing", "some-heads", {"visible": _first_head_only}, hides),
    Mutant("mask.off-by-one", "next", {"visible": moved(right=1)}, _causal),
    Mutant("mask.off-by-one", "itself", {"visible": moved(right=-1)}, _causal),
    *(
        Mutant(
            "mask.window-off-by-one",
            way,
            {"visible": moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
            _windowed,
            {"sides": sides},
        )
        for by, way in ((1, "more"), (-1, "less"))
        for sides in ("back", "ahead", "back and ahead")
    ),
    Mutant("mask.missing", "ahead", {"visible": _both_sides}, _looks_back),
]

ALIGNMENT = [Mutant("mask.top-left", "rectangular", {"start": lambda at: 0}, hides)]

GIVEN = [
    Mutant("mask.inverted", "given", {"visible": _given(lambda mask: ~mask)}),
    Mutant("mask.inverted", "beside-given", {"visible": _inverted_beside_given}, hides),
    Mutant("mask.missing", "given", {"visible": _without(mask=True)}),
    Mutant("mask.missing", "beside-given", {"visible": _without("causal", "window")}, hides),
    Mutant("mask.on-queries", "given", {"visible": _on_queries}),
    *(
        Mutant("mask.batch-mixed", way, {"visible": _given(pick)})
        for way, pick in [
            ("first", lambda mask: mask[:1]),
            ("last", lambda mask: mask[-1:]),
            ("turned", lambda mask: mask.flip(0)),
            ("turned", lambda mask: mask.roll(1, 0)),
            ("turned", lambda mask: mask.roll(-1, 0)),
            ("any", lambda mask: mask.any(0, keepdim=True)),
            ("all", lambda mask: mask.all(0, keepdim=True)),
        ]
    ),
    Mutant("mask.batch-mixed", "tiled", {"visible": _tiled_over_heads}),
]


def _not_hidden(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores


def _multiplied(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores * seen


def _swapped_in_product(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return torch.where(seen, scores - 1e9, 0.0)


def _added(sign: float, scaled: bool) -> Callable[..., Tensor]:
    def hide(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
        return scores + sign * (scale if scaled else 1.0) * seen

    return hide


def _zeroed(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    return weights * seen


def _over_queries(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    kept = weights * seen
    return kept / kept.sum(-2, keepdim=True)


HIDING = [
    Mutant("mask.after-softmax", "zeroed", {"hide": _not_hidden, "after": _zeroed}),
    Mutant("softmax.axis", "sum", {"hide": _not_hidden, "after": _over_queries}),
    Mutant("mask.multiplied", "zero", {"hide": _multiplied}),
    Mutant("mask.inverted", "product", {"hide": _swapped_in_product}),
    Mutant("mask.added-as-number", "seen", {"hide": _added(1.0, False)}),
    Mutant("mask.added-as-number", "seen-scaled", {"hide": _added(1.0, True)}),
    Mutant("mask.added-as-number", "hidden", {"hide": _added(-1.0, False)}),
    Mutant("mask.added-as-number", "hidden-scaled", {"hide": _added(-1.0, True)}),
]
