"""The table of edits: the definition with one of its stages replaced by a mistake.

A row names the mistake, the way of its sentence, and the stage that is another one. The nearest script of at most two
rows that gives the subject's numbers on every call is the name of the mistake (`matching.py`). A new case is a new row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import (
    Recipe,
    Setting,
    declared_bias,
    right_prepare,
    right_rotate,
    right_scale,
    right_visible,
    rotate,
    rotated,
    visible,
)
from clearhead.recording.weighing import Weighing

Stage = Callable[..., Any]


@dataclass(frozen=True)
class Edit:
    """One edit of the definition.

    Attributes:
        code: the name of the mistake.
        way: which of the sentences of the catalogue says it.
        changes: the stages that are other functions, by the names that `Recipe` has for them.
        needs: whether it makes sense under a contract.
        values: what the sentence is filled with.
    """

    code: str
    way: str
    changes: Mapping[str, Stage]
    needs: Callable[[Contract], Any] = lambda contract: True
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """The stage that it is about."""
        return self.code.partition(".")[0]

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this edit."""
        return replace(recipe, **self.changes)


def _causal(contract: Contract) -> Any:
    return contract.causal


def _windowed(contract: Contract) -> Any:
    return contract.window is not None


def hides(contract: Contract) -> bool:
    """True if the contract hides anything by itself."""
    return bool(contract.causal) or contract.window is not None


def _biased(contract: Contract) -> bool:
    return contract.bias is not None or contract.alibi_slopes is not None


def _capped(contract: Contract) -> bool:
    return contract.softcap is not None


def _sunk(contract: Contract) -> bool:
    return contract.sinks is not None


def _rotary(contract: Contract) -> bool:
    return contract.rope is not None


def grouped(contract: Contract) -> bool:
    """True if fewer heads of keys than of queries are declared."""
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


def _looks_back(contract: Contract) -> bool:
    """True for a window that ends at its own token and goes back by more than one."""
    left, right = contract.window or (None, None)
    return left is not None and left > 1 and (contract.causal is True or right == 0)


# Patterns of the mask.


def _moved(left: int = 0, right: int = 0) -> Stage:
    """A mask with its edges moved outwards."""
    return lambda at: visible(at, at.offset, left, right)


def _without(*fields: str, mask: bool = False) -> Stage:
    """The mask of the contract without some of its parts."""

    def seen(at: Setting) -> Tensor:
        contract = replace(at.contract, **dict.fromkeys(fields))
        return right_visible(at._replace(contract=contract, mask=None if mask else at.mask))

    return seen


def _inverted_diagonal(right: int) -> Stage:
    """Causal the wrong way round, with the diagonal where it belongs."""

    def seen(at: Setting) -> Tensor:
        past = visible(at._replace(contract=Contract(causal=True), mask=None), at.offset, 0, right)
        return ~past & _without("causal")(at)

    return seen


def _inverted_with_given(at: Setting) -> Tensor:
    seen = ~right_visible(at._replace(mask=None))
    return seen if at.mask is None else seen & at.mask


def _given(change: Callable[[Tensor], Tensor]) -> Stage:
    """The given mask, changed."""

    def seen(at: Setting) -> Tensor:
        assert at.mask is not None
        return right_visible(at._replace(mask=change(at.mask)))

    return seen


def _tiled_over_heads(at: Setting) -> Tensor:
    # mask.repeat(heads, 1, 1) next to scores.view(batch * heads, …): sample and head are swapped.
    assert at.mask is not None
    shape = (at.batch, at.num_heads, at.query_len, at.kv_len)
    mask = at.mask.expand(at.batch, 1, *shape[2:]).repeat(at.num_heads, 1, 1, 1).view(shape)
    return mask & right_visible(at._replace(mask=None))


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
    assert at.contract.window is not None
    left = at.contract.window[0]
    contract = replace(at.contract, causal=None, window=(left, left))
    return right_visible(at._replace(contract=contract))


def _inverted(at: Setting) -> Tensor:
    return ~right_visible(at)


MASKS = [
    Edit("mask.inverted", "future", {"visible": _inverted},
         lambda contract: contract.causal and contract.window is None),
    Edit("mask.inverted", "window", {"visible": _inverted}, _windowed),
    Edit("mask.inverted", "diagonal", {"visible": _inverted_diagonal(-1)}, _causal),
    Edit("mask.inverted", "next", {"visible": _inverted_diagonal(1)}, _causal),
    Edit("mask.missing", "causal", {"visible": _without("causal")}, _causal),
    Edit("mask.missing", "window", {"visible": _without("window")}, _windowed),
    Edit("mask.missing", "both", {"visible": _without("causal", "window")},
         lambda contract: contract.causal and contract.window is not None),
    Edit("mask.missing", "some-heads", {"visible": _first_head_only}, hides),
    Edit("mask.off-by-one", "next", {"visible": _moved(right=1)}, _causal),
    Edit("mask.off-by-one", "itself", {"visible": _moved(right=-1)}, _causal),
    *(
        Edit("mask.window-off-by-one", way,
             {"visible": _moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
             _windowed, {"sides": sides})
        for by, way in ((1, "more"), (-1, "less"))
        for sides in ("back", "ahead", "back and ahead")
    ),
    Edit("mask.missing", "ahead", {"visible": _both_sides}, _looks_back),
]  # fmt: skip

ALIGNMENT = [Edit("mask.top-left", "rectangular", {"start": lambda at: 0}, hides)]

GIVEN = [
    Edit("mask.inverted", "given", {"visible": _given(lambda mask: ~mask)}),
    Edit("mask.inverted", "beside-given", {"visible": _inverted_with_given}, hides),
    Edit("mask.missing", "given", {"visible": _without(mask=True)}),
    Edit("mask.missing", "beside-given", {"visible": _without("causal", "window")}, hides),
    Edit("mask.on-queries", "given", {"visible": _on_queries}),
    *(
        Edit("mask.batch-mixed", way, {"visible": _given(pick)})
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
    Edit("mask.batch-mixed", "tiled", {"visible": _tiled_over_heads}),
]

# What hides: scores, seen, scale, empty → scores; weights, seen, at → weights.


def _shown(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores


def _added(sign: float, scaled: bool) -> Stage:
    return lambda scores, seen, scale, empty: scores + sign * (scale if scaled else 1.0) * seen


def _over_queries(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    kept = weights * seen
    return kept / kept.sum(-2, keepdim=True)


HIDING = [
    Edit("mask.after-softmax", "zeroed",
         {"hide": _shown, "after": lambda weights, seen, at: weights * seen}),
    Edit("softmax.axis", "sum", {"hide": _shown, "after": _over_queries}),
    Edit("mask.multiplied", "zero", {"hide": lambda scores, seen, scale, empty: scores * seen}),
    Edit("mask.inverted", "product",
         {"hide": lambda scores, seen, scale, empty: torch.where(seen, scores - 1e9, 0.0)}),
    Edit("mask.added-as-number", "seen", {"hide": _added(1.0, False)}),
    Edit("mask.added-as-number", "seen-scaled", {"hide": _added(1.0, True)}),
    Edit("mask.added-as-number", "hidden", {"hide": _added(-1.0, False)}),
    Edit("mask.added-as-number", "hidden-scaled", {"hide": _added(-1.0, True)}),
]  # fmt: skip

# The softmax: scores in which −∞ is hidden → weights.


def _over(axis: int, *, safely: bool = False) -> Stage:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        hidden = masked == -torch.inf
        return torch.softmax(masked.masked_fill(hidden, -1e9) if safely else masked, axis)

    return share


def _flat(start: int, end: int) -> Stage:
    """The softmax over several axes as one."""

    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        assert start != 0 or at.num_heads > 1  # with one head that is another axis
        return torch.softmax(masked.flatten(start, end), start).view_as(masked)

    return share


def _raw(masked: Tensor, empty: str = "", at: Setting | None = None) -> Tensor:
    return masked.masked_fill(masked == -torch.inf, 0.0)


def _by_sum(numbers: Tensor) -> Tensor:
    return numbers / numbers.sum(-1, keepdim=True)


def _share(weigh: Callable[[Tensor], Tensor]) -> Stage:
    return lambda masked, empty, at: weigh(masked)


SOFTMAX = [
    *(
        Edit("softmax.axis", "over", {"share": share}, values={"axis": name})
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
        Edit("softmax.missing", way, {"share": _share(weigh)})
        for way, weigh in (
            ("raw", _raw),
            ("by-sum", lambda masked: _by_sum(_raw(masked))),
            ("exp", torch.exp),
            ("sigmoid", torch.sigmoid),
            ("log", lambda masked: _raw(torch.log_softmax(masked, -1))),
            ("relu", torch.relu),
            ("relu", lambda masked: _by_sum(masked.relu())),
        )
    ),
    *(
        Edit("softmax.missing", "operation", {"share": _share(weigh)}, values={"operation": name})
        for name, weigh in (
            ("exp", lambda masked: (masked - masked.amax(-1, keepdim=True)).exp()),
            *(
                (name, weigh)
                for name in ("softplus", "elu", "gelu", "silu")
                for weigh in (
                    getattr(torch.nn.functional, name),
                    lambda s, f=name: _by_sum(getattr(torch.nn.functional, f)(s)),
                )
            ),
            ("square", lambda masked: _by_sum(_raw(masked).square())),
            ("square", lambda masked: _raw(masked).square()),
        )
    ),
    Edit("softmax.axis", "sum",
         {"share": _share(lambda s: (w := s.softmax(-1)) / w.sum(-2, keepdim=True))}),
    Edit("softmax.twice", "twice", {"share": _share(lambda s: stages.weights(s).softmax(-1))}),
    Edit("law.value", "transposed", {"after": lambda weights, seen, at: weights.mT}),
]  # fmt: skip

# The sizes that a scale is made of by mistake.
SIZES: list[tuple[str, Callable[[Setting], float]]] = [
    ("1/head_dim", lambda at: 1 / at.head_dim),
    ("1/√num_heads", lambda at: at.num_heads**-0.5),
    ("1/√num_kv_heads", lambda at: at.num_kv_heads**-0.5),
    (
        "1/√(num_heads · head_dim), the whole width,",
        lambda at: (at.num_heads * at.head_dim) ** -0.5,
    ),
    ("1/√query_len", lambda at: at.query_len**-0.5),
    ("1/√kv_len", lambda at: at.kv_len**-0.5),
    ("1/√batch", lambda at: at.batch**-0.5),
    ("1/√value_head_dim", lambda at: at.value_head_dim**-0.5),
    ("1/√d_in, the width of the input,", lambda at: (at.d_in or at.head_dim) ** -0.5),
    ("1/√√head_dim", lambda at: at.head_dim**-0.25),
    ("1/√(head_dim / 2)", lambda at: (at.head_dim / 2) ** -0.5),
    ("1/√(2 · head_dim)", lambda at: (at.head_dim * 2) ** -0.5),
    ("1/num_heads", lambda at: 1 / at.num_heads),
    (
        "1/(num_heads · head_dim), the whole width without its root,",
        lambda at: 1 / (at.num_heads * at.head_dim),
    ),
    ("√num_heads/√head_dim", lambda at: (at.num_heads / at.head_dim) ** 0.5),
    ("1/√head_dim times log 2", lambda at: math.log(2) * at.head_dim**-0.5),
    ("1/√head_dim times log₂ e", lambda at: math.log2(math.e) * at.head_dim**-0.5),
]


def _late(factor: Callable[[Setting], float]) -> Stage:
    return lambda weights, seen, at: weights * factor(at)


SCALES = [
    Edit("scale.missing", "missing", {"scale": lambda at: 1.0}),
    Edit("scale.inverse", "root", {"scale": lambda at: math.sqrt(at.head_dim)}),
    Edit("scale.inverse", "whole", {"scale": lambda at: at.head_dim}),
    Edit("scale.wrong", "size", {"scale": lambda at: at.head_dim**-0.5},
         lambda contract: contract.scale is not None, {"size": "1/√head_dim"}),
    *(Edit("scale.wrong", "size", {"scale": scale}, values={"size": name}) for name, scale in SIZES),
    Edit("scale.missing", "late", {"scale": lambda at: 1.0, "after": _late(right_scale)}),
]  # fmt: skip


# Cap, bias and sinks: raw scores, seen, scale, at, recipe → masked scores.


def _prepared(*order: str) -> Stage:
    """Scores prepared in another order of scale, cap, bias and hide."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        bias, cap = declared_bias(at), at.contract.softcap or 1.0
        steps: dict[str, Callable[[Tensor], Tensor]] = {
            "scale": lambda x: x * scale,
            "cap": lambda x: stages.capped_scores(x, at.contract.softcap),
            "bend": lambda x: (x / cap).tanh(),
            "stretch": lambda x: x.tanh() * cap,
            "hide": lambda x: recipe.hide(x, seen, scale, recipe.empty),
            "hide-finite": lambda x: x.masked_fill(~seen, -1e9),
            "bias": lambda x: x if bias is None else x + bias,
            "unbias": lambda x: x if bias is None else x - bias,
        }
        for step in order:
            raw = steps[step](raw)
        return raw

    return prepare


def _repeated_bias(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
    bias = declared_bias(at)
    scores = stages.capped_scores(raw * scale, at.contract.softcap)
    if bias is not None:
        scores = scores + bias.repeat_interleave(at.batch, 0).view(at.batch, *bias.shape)
    return recipe.hide(scores, seen, scale, recipe.empty)


def _other_slopes(first: int) -> Stage:
    """ALiBi's formula for powers of two, used for any number of heads."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        heads = torch.arange(first, first + at.num_heads, dtype=torch.float64)
        contract = replace(at.contract, alibi_slopes=2 ** (-8 * heads / at.num_heads))
        return right_prepare(raw, seen, scale, at._replace(contract=contract), recipe)

    return prepare


def _bias_after(only_seen: bool) -> Stage:
    def after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
        bias = declared_bias(at)
        total = weights if bias is None else weights + bias
        return total * seen if only_seen else total

    return after


def _first_column_dropped(masked: Tensor, empty: str, at: Setting) -> Tensor:
    """Instead of the column of the sink, that of the first key is dropped."""
    assert at.contract.sinks is not None
    shares = stages.weights(masked, at.contract.sinks.double())
    return torch.cat([shares[..., 1:], 1 - shares.sum(-1, keepdim=True)], -1)


ORDER = [
    Edit("bias.scaled", "scaled", {"prepare": _prepared("bias", "scale", "cap", "hide")}, _biased),
    *(
        Edit("bias.after-softmax", "after",
             {"prepare": _prepared("scale", "cap", "hide"), "after": _bias_after(seen)}, _biased)
        for seen in (False, True)
    ),
    Edit("differs", "no-bias", {"prepare": _prepared("scale", "cap", "hide")}, _biased),
    Edit("bias.sign", "sign", {"prepare": _prepared("scale", "cap", "unbias", "hide")}, _biased),
    *(
        Edit("softcap.order", "mask", {"prepare": _prepared(*order)}, _capped)
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    Edit("softcap.order", "scale", {"prepare": _prepared("cap", "scale", "bias", "hide")}, _capped),
    Edit("softcap.order", "bias", {"prepare": _prepared("scale", "bias", "cap", "hide")},
         lambda contract: _capped(contract) and _biased(contract)),
    Edit("differs", "no-softcap", {"prepare": _prepared("scale", "bias", "hide")}, _capped),
    Edit("differs", "bent", {"prepare": _prepared("scale", "bend", "bias", "hide")}, _capped),
    Edit("differs", "stretched", {"prepare": _prepared("scale", "stretch", "bias", "hide")}, _capped),
    Edit("differs", "bias-repeated", {"prepare": _repeated_bias}, _biased),
    *(
        Edit("differs", "slopes", {"prepare": _other_slopes(first)},
             lambda contract: contract.alibi_slopes is not None, {"first": first})
        for first in (1, 0)
    ),
    Edit("differs", "no-sinks", {"share": _share(stages.weights)}, _sunk),
    Edit("differs", "sink-kept", {"share": _first_column_dropped}, _sunk),
]  # fmt: skip


# Heads: query, key, value, at → the three; tensor, at → heads of keys; context, at → output.


def _taking(*which: int) -> Stage:
    """Some of query, key and value in the places of all three."""
    return lambda query, key, value, at: tuple((query, key, value)[each] for each in which)


def _same(*which: int) -> Stage:
    """Every head reads what the first reads, of query (0), key (1), value (2)."""
    return lambda query, key, value, at: tuple(
        each[:, :1].expand_as(each) if index in which else each
        for index, each in enumerate((query, key, value))
    )


def _viewed(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    return query, key.reshape(*key.shape[:2], key.shape[3], key.shape[2]).mT, value


def _heads_as_tokens(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    other = at._replace(
        num_heads=at.query_len,
        num_kv_heads=at.kv_len,
        query_len=at.num_heads,
        kv_len=at.num_kv_heads,
    )
    return inner(*(each.transpose(1, 2) for each in (query, key, value)), other).transpose(1, 2)


def _view_merge(context: Tensor, at: Setting) -> Tensor:
    return context.reshape(at.batch, at.query_len, -1)


GROUPS = [
    Edit("heads.gqa-tiled", "tiled",
         {"group": lambda x, at: x.repeat(1, at.num_heads // x.shape[1], 1, 1)}, grouped),
    Edit("heads.identical", "first-key",
         {"group": lambda x, at: x[:, :1].expand(-1, at.num_heads, -1, -1)}, grouped),
    Edit("law.pairs", "viewed", {"arrange": _viewed}),
]  # fmt: skip

HEADS = [
    *(
        Edit("heads.identical", "same", {"arrange": _same(*which)}, values={"what": name})
        for name, which in (
            ("query, key and value", (0, 1, 2)),
            ("key and value", (1, 2)),
            ("query", (0,)),
            ("key", (1,)),
            ("value", (2,)),
            ("query and key", (0, 1)),
        )
    ),
    Edit("heads.layout", "tokens", {"around": _heads_as_tokens},
         lambda contract: not grouped(contract)),
]  # fmt: skip

MERGES = [
    Edit("heads.merge", "viewed", {
        "merge": _view_merge,
        "end": lambda x, at: _view_merge(x, at).unflatten(-1, (at.num_heads, -1)).transpose(1, 2),
    }),
    Edit("heads.merge", "transposed", {
        "merge": lambda x, at: x.mT.reshape(at.batch, at.query_len, -1),
        "end": lambda x, at: x.transpose(1, 2).reshape(x.shape),
    }),
]  # fmt: skip

TAKEN = [
    Edit("parameter.dead", "keys", {"arrange": _taking(0, 1, 1)}),
    Edit("parameter.dead", "queries", {"arrange": _taking(0, 1, 0)}),
    Edit("parameter.dead", "to-queries", {"arrange": _taking(0, 0, 2)}),
    Edit("parameter.dead", "to-keys", {"arrange": _taking(1, 1, 2)}),
    Edit("law.value", "swapped", {"arrange": _taking(0, 2, 1)}),
]


# Rotation: query, key, at → both.


def _rope(at: Setting) -> tuple[float, str]:
    rope = at.contract.rope or {}
    return float(rope.get("base", 10000.0)), str(rope.get("layout", "half"))


def _other_layout(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    layout = "half" if _rope(at)[1] == "interleaved" else "interleaved"
    return rotate(query, key, at, at.offset, layout)


def _mixed(pairs: Callable[[Tensor], Tensor], layout: str) -> Stage:
    """Pairs of one layout with the angles of the other."""

    def one(x: Tensor, start: int, base: float) -> Tensor:
        rates = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        places = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
        angles = places[:, None] * rates
        angles = angles.repeat(1, 2) if layout == "half" else angles.repeat_interleave(2, -1)
        return x * angles.cos() + pairs(x) * angles.sin()

    return lambda query, key, at: (one(query, at.offset, _rope(at)[0]), one(key, 0, _rope(at)[0]))


def _of_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _of_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)


def _neighbours_as_halves(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 1::2], x[..., 0::2]], -1)


def _backwards(*which: int) -> Stage:
    """Query (0) or key (1) rotated by the negative of its positions."""

    def back(x: Tensor, start: int, at: Setting) -> Tensor:
        # From the last token on, places count down.
        return rotated(x.flip(-2), 1 - start - x.shape[-2], *_rope(at)).flip(-2)

    def both(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        other = right_rotate(query, key, at)
        query = back(query, at.offset, at) if 0 in which else other[0]
        return query, back(key, 0, at) if 1 in which else other[1]

    return both


def _with_base(base: float) -> Stage:
    def both(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        contract = replace(at.contract, rope={**(at.contract.rope or {}), "base": base})
        return right_rotate(query, key, at._replace(contract=contract))

    return both


def _value_too(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    return query, key, rotate(value, value, at, 0)[1]


def _whole_width(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """All heads rotated as one vector."""

    def flat(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)[:, None]

    def apart(x: Tensor, like: Tensor) -> Tensor:
        return x[:, 0].unflatten(-1, (like.shape[1], -1)).transpose(1, 2)

    one, other = right_rotate(flat(query), flat(key), at)
    return apart(one, query), apart(other, key)


ROPE = [
    *(
        Edit(code, way, {"rotate": turned}, _rotary, values)
        for code, way, turned, values in (
            ("rope.layout", "other", _other_layout, {}),
            ("rope.offset", "zero", lambda q, k, at: rotate(q, k, at, 0), {}),
            ("rope.offset", "one", lambda q, k, at: rotate(q, k, at, at.offset + 1), {}),
            ("differs", "not-rotated", lambda q, k, at: (q, k), {}),
            ("rope.layout", "mixed", _mixed(_of_halves, "interleaved"), {}),
            ("rope.layout", "mixed", _mixed(_of_neighbours, "half"), {}),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "half"), {}),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "interleaved"), {}),
            ("differs", "one-rotated", lambda q, k, at: (right_rotate(q, k, at)[0], k),
             {"which": "query"}),
            ("differs", "one-rotated", lambda q, k, at: (q, right_rotate(q, k, at)[1]),
             {"which": "key"}),
            ("differs", "backwards", _backwards(0), {"which": "query is"}),
            ("differs", "backwards", _backwards(1), {"which": "key is"}),
            ("differs", "backwards", _backwards(0, 1), {"which": "query and the key are"}),
            ("rope.before-split", "whole", _whole_width, {}),
        )
    ),
    Edit("rope.values", "value", {"arrange": _value_too}, _rotary),
    *(
        Edit("differs", "base", {"rotate": _with_base(base)},
             lambda contract, base=base: (
                 contract.rope is not None and contract.rope.get("base", 10000.0) != base),
             {"base": f"{base:,.0f}"})
        for base in (10000.0, 500000.0, 1000000.0, 1000.0, 100.0)
    ),
]  # fmt: skip


def fitted(scale: float | None, weighed: Weighing | None) -> list[Edit]:
    """Edits whose parameter is a number that was measured: the scale, and what hidden scores are filled or moved by."""
    found = []
    fill, moved = (None if weighed is None else weighed.number(x) for x in ("fill", "number"))
    if moved is not None:
        for way, hidden in (("seen", False), ("hidden", True)):
            hide = lambda scores, seen, _, empty, to=hidden: scores + moved * (seen ^ to)  # noqa: E731
            found.append(Edit("mask.added-as-number", way, {"hide": hide}))
    if fill is not None and abs(fill) != torch.inf:
        way = "zero" if abs(fill) < 1e-3 else "number"
        hide = lambda scores, seen, _, empty: scores.masked_fill(~seen, fill)  # noqa: E731
        found.append(Edit("mask.multiplied", way, {"hide": hide}, values={"number": f"{fill:.4g}"}))
    if scale is not None and math.isfinite(scale):
        values = {"used": f"{scale:.4g}", "square": f"{scale**-2:.4g}" if scale else "∞"}
        found.append(Edit("scale.wrong", "constant", {"scale": lambda at: scale}, values=values))
    return found


def edits(
    contract: Contract,
    *,
    given: bool,
    masked: bool,
    whole: bool = True,
    numbers: Sequence[Edit] = (),
) -> list[Edit]:
    """The edits that make sense for a contract, the nearest first.

    Args:
        contract: what is declared.
        given: a mask is handed in.
        masked: something is hidden.
        whole: heads are shared and merged by what is judged; else it is what happens inside.
        numbers: edits with a parameter that was measured.
    """
    found = [
        *MASKS,
        *(HIDING if masked else ()),
        *SOFTMAX,
        *SCALES,
        *ORDER,
        *GROUPS,
        *([*HEADS, *MERGES, *TAKEN] if whole else ()),
        *ROPE,
        *ALIGNMENT,
        *(GIVEN if given else ()),
        *numbers,
    ]
    return [edit for edit in found if edit.needs(contract)]
