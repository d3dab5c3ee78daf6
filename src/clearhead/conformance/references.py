"""The bank of mutants: wrong references, the definition with one function replaced by a mistake.

A subject that equals a mutant, to tolerance and on every input tried, makes that mistake. Each
mutant says in `likely` what line makes it and what line is right.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead.conformance.contract import Contract
from clearhead.conformance.recipes import (
    RIGHT,
    Recipe,
    Setting,
    declared_bias,
    right_visible,
    rotate,
    visible,
)


@dataclass(frozen=True)
class Mutant:
    """A mistake as functions that stand in for those of the definition."""

    code: str
    detail: str
    likely: str
    changes: dict[str, Callable[..., Any]]
    needs: Callable[[Contract], Any] = lambda contract: True

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this mistake in it."""
        return replace(recipe, **self.changes)


def is_masked(contract: Contract) -> bool:
    """Whether the contract hides anything by itself."""
    return bool(contract.causal) or contract.window is not None


def moved(left: int = 0, right: int = 0, start: Callable[[Setting], int] = lambda at: at.offset) -> Any:
    """A mask with moved edges, or another position for the first query."""
    return lambda at: visible(at, start(at), left, right)


def _uncaused(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=replace(at.contract, causal=None)))


def _unwindowed(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=replace(at.contract, window=None)))


def _ungiven(at: Setting) -> Tensor:
    return right_visible(at._replace(mask=None))


def _only_given(at: Setting) -> Tensor:
    return right_visible(at._replace(contract=Contract()))


def _inverted(at: Setting) -> Tensor:
    return ~right_visible(at)


def _inverted_given(at: Setting) -> Tensor:
    assert at.mask is not None
    return right_visible(at._replace(mask=~at.mask))


def _transposed(at: Setting) -> Tensor:
    return right_visible(at._replace(mask=None)).mT if at.query_len == at.kv_len else right_visible(at)


def _other_sample(pick: Callable[[Tensor], Tensor]) -> Callable[[Setting], Tensor]:
    def seen(at: Setting) -> Tensor:
        assert at.mask is not None
        return right_visible(at._replace(mask=pick(at.mask)))

    return seen


def _tiled_over_heads(at: Setting) -> Tensor:
    # mask.repeat(heads, 1, 1) beside scores.view(batch * heads, …): sample and head are swapped.
    assert at.mask is not None
    mask = at.mask.expand(at.batch, 1, at.query_len, at.kv_len)
    rows = mask.repeat(at.num_heads, 1, 1, 1).view(
        at.batch, at.num_heads, at.query_len, at.kv_len
    )
    return rows & right_visible(at._replace(mask=None))


def _given(contract: Contract) -> bool:
    # Whether a mask is handed in is known when the cases are made; without one these never run.
    return True


MASKS = [
    Mutant(
        "mask.inverted",
        "what must be visible is hidden, and what must be hidden is visible",
        "masked_fill fills where its mask is True, and torch.tril is True on what must stay "
        "visible: use torch.triu(…, diagonal=1), or ~mask",
        {"visible": _inverted},
        is_masked,
    ),
    Mutant(
        "mask.inverted",
        "the future is visible and the past hidden, the token itself visible",
        "torch.triu where torch.tril is meant, or the mask transposed: the mask to keep is "
        "torch.tril(torch.ones(n, n))",
        {"visible": _transposed},
        is_masked,
    ),
    Mutant(
        "mask.missing",
        "no mask is in force: every token sees every other",
        "nothing hides the future: scores.masked_fill(torch.triu(ones, diagonal=1).bool(), "
        "-torch.inf) before the softmax, or is_causal=True. masked_fill returns a new tensor, "
        "masked_fill_ writes in place",
        {"visible": _ungiven if False else _uncaused},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.missing",
        "the window is not in force",
        "hide what is farther than the window as well: (query_position - key_position) > left",
        {"visible": _unwindowed},
        lambda contract: contract.window is not None,
    ),
    Mutant(
        "mask.missing",
        "neither causal nor the window is in force",
        "no mask reaches the scores before the softmax",
        {"visible": _only_given},
        lambda contract: contract.window is not None and contract.causal,
    ),
    Mutant(
        "mask.off-by-one",
        "each token also sees the next one",
        "the diagonal is moved by one: torch.triu(…, diagonal=1) hides what comes after the "
        "token, diagonal=2 leaves the next one visible",
        {"visible": moved(right=1)},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.off-by-one",
        "a token does not see itself",
        "the diagonal is moved by one: torch.triu(…, diagonal=1) hides what comes after the "
        "token, diagonal=0 hides the token itself too",
        {"visible": moved(right=-1)},
        lambda contract: contract.causal,
    ),
    Mutant(
        "mask.top-left",
        "with more keys than queries, the first query sees the first key only",
        "the mask counts from the first key. With kv_len > query_len shift it: "
        "torch.triu(ones, diagonal=1 + kv_len - query_len); PyTorch has causal_lower_right",
        {"visible": moved(start=lambda at: 0)},
        lambda contract: contract.causal or contract.window is not None,
    ),
    *(
        Mutant(
            "mask.window-off-by-one",
            f"the window reaches {'one token more' if by > 0 else 'one token less'} "
            f"{' and '.join(sides)}",
            "W counts the token itself in one place and not in another: left=W sees W + 1 tokens",
            {"visible": moved(by if "back" in sides else 0, by if "ahead" in sides else 0)},
            lambda contract: contract.window is not None,
        )
        for by in (1, -1)
        for sides in (("back",), ("ahead",), ("back", "ahead"))
    ),
]

GIVEN = [
    Mutant(
        "mask.inverted",
        "the mask handed in is read the other way round: True is hidden",
        "here True means that the key may be attended to; masked_fill wants the hidden ones: "
        "scores.masked_fill(~mask, -torch.inf)",
        {"visible": _inverted_given},
    ),
    Mutant(
        "mask.missing",
        "the mask handed in has no effect",
        "the mask is taken and not used, or masked_fill's result is thrown away: "
        "scores = scores.masked_fill(~mask, -torch.inf)",
        {"visible": _ungiven},
    ),
    Mutant(
        "mask.missing",
        "causal is dropped as soon as a mask is handed in",
        "combine both: visible = mask & causal",
        {"visible": _only_given},
        is_masked,
    ),
    Mutant(
        "mask.batch-mixed",
        "every sample gets the mask of the first",
        "mask[0] is spread over the batch; keep the batch axis: (batch, 1, query_len, kv_len)",
        {"visible": _other_sample(lambda mask: mask[:1])},
    ),
    Mutant(
        "mask.batch-mixed",
        "every sample gets the mask of the last",
        "mask[-1] is spread over the batch; keep the batch axis: (batch, 1, query_len, kv_len)",
        {"visible": _other_sample(lambda mask: mask[-1:])},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is turned around; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.flip(0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is rolled; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.roll(1, 0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "samples get each other's masks",
        "the batch axis of the mask is rolled; index it as the query's",
        {"visible": _other_sample(lambda mask: mask.roll(-1, 0))},
    ),
    Mutant(
        "mask.batch-mixed",
        "only what all samples hide is hidden",
        "the masks of the samples are merged with any(); keep the batch axis",
        {"visible": _other_sample(lambda mask: mask.any(0, keepdim=True))},
    ),
    Mutant(
        "mask.batch-mixed",
        "what one sample hides is hidden for all",
        "the masks of the samples are merged with all(); keep the batch axis",
        {"visible": _other_sample(lambda mask: mask.all(0, keepdim=True))},
    ),
    Mutant(
        "mask.batch-mixed",
        "with heads and samples in one axis, the mask is tiled where it must be repeated",
        "mask.repeat(heads, 1, 1) goes sample by sample; beside scores.view(batch · heads, …) "
        "it must be mask.repeat_interleave(heads, dim=0)",
        {"visible": _tiled_over_heads},
    ),
]


def _after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    return weights * seen


def _not_hidden(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores


def _multiplied(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores * seen


def _added(sign: float, scaled: bool) -> Callable[..., Tensor]:
    def hide(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
        return scores + sign * (scale if scaled else 1.0) * seen

    return hide


HIDING = [
    Mutant(
        "mask.after-softmax",
        "hidden weights are set to zero after the softmax, and the others do not sum to one",
        "hide before the softmax: scores.masked_fill(hidden, -torch.inf); or divide by the sum of "
        "what is left",
        {"hide": _not_hidden, "after": _after},
    ),
    Mutant(
        "mask.multiplied",
        "hidden scores are 0, not −∞, so that hidden keys keep exp(0) of the weight",
        "scores * mask, or masked_fill(hidden, 0) or 1e-9, before the softmax: fill with "
        "-torch.inf instead",
        {"hide": _multiplied},
    ),
    Mutant(
        "mask.added-as-number",
        "the mask is added to the scores as ones and zeros: a hidden key is only e times smaller",
        "scores + mask adds 1 where the mask is True: scores.masked_fill(~mask, -torch.inf)",
        {"hide": _added(1.0, False)},
    ),
    Mutant(
        "mask.added-as-number",
        "the mask is added to the scores as ones and zeros, before they are scaled",
        "scores + mask adds 1 where the mask is True: scores.masked_fill(~mask, -torch.inf)",
        {"hide": _added(1.0, True)},
    ),
    Mutant(
        "mask.added-as-number",
        "the hidden keys get 1 added to their scores",
        "a tensor of ones and zeros is no bias: multiply it by -inf first, with torch.where, or "
        "use masked_fill",
        {"hide": _added(-1.0, False)},
    ),
    Mutant(
        "mask.added-as-number",
        "the hidden keys get 1 added to their scores, before they are scaled",
        "a tensor of ones and zeros is no bias: multiply it by -inf first, with torch.where, or "
        "use masked_fill",
        {"hide": _added(-1.0, True)},
    ),
]


def _over(axis: int) -> Callable[..., Tensor]:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        return torch.softmax(masked, axis)

    return share


def _safely_over(axis: int) -> Callable[..., Tensor]:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        hidden = masked == -torch.inf
        return torch.softmax(masked.masked_fill(hidden, -1e9), axis)

    return share


def _raw(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.masked_fill(masked == -torch.inf, 0.0)


def _by_sum(masked: Tensor, empty: str, at: Setting) -> Tensor:
    raw = _raw(masked, empty, at)
    return raw / raw.sum(-1, keepdim=True)


def _exponential(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.exp()


def _sigmoid(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.sigmoid()


def _over_all(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(masked.flatten(-2), -1).view_as(masked)


def _exp_over_all(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(masked.flatten(), 0).view_as(masked)


SOFTMAX = [
    *(
        Mutant(
            "softmax.axis",
            f"the weights sum to one over the {name}, not over the keys",
            "softmax over the last axis: torch.softmax(scores, dim=-1)",
            {"share": share},
        )
        for name, share in [
            ("queries", _over(-2)),
            ("heads", _over(1)),
            ("batch", _over(0)),
            ("queries", _safely_over(-2)),
            ("heads", _safely_over(1)),
            ("batch", _safely_over(0)),
            ("queries and keys together", _over_all),
            ("whole tensor", _exp_over_all),
        ]
    ),
    *(
        Mutant("softmax.missing", detail, "weights = torch.softmax(scores, dim=-1)", {"share": share})
        for detail, share in [
            ("the scores themselves are the weights", _raw),
            ("the scores are divided by their sum, without exp", _by_sum),
            ("exp is taken, and not divided by the sum", _exponential),
            ("a sigmoid stands in place of the softmax", _sigmoid),
        ]
    ),
]


def _wrong_scales() -> Iterator[tuple[str, str, str, Callable[[Setting], float]]]:
    right = "scores / math.sqrt(query.shape[-1])"
    yield "scale.missing", "the scores are not scaled", right, lambda at: 1.0
    yield (
        "scale.inverse",
        "the scores are multiplied by √head_dim, not divided",
        right,
        lambda at: math.sqrt(at.head_dim),
    )
    yield "scale.inverse", "the scores are multiplied by head_dim", right, lambda at: at.head_dim
    sizes: list[tuple[str, Callable[[Setting], float]]] = [
        ("1/head_dim", lambda at: 1 / at.head_dim),
        ("1/√num_heads", lambda at: at.num_heads**-0.5),
        ("1/√num_kv_heads", lambda at: at.num_kv_heads**-0.5),
        ("1/√(num_heads · head_dim), the whole width,", lambda at: (at.num_heads * at.head_dim) ** -0.5),
        ("1/√query_len", lambda at: at.query_len**-0.5),
        ("1/√kv_len", lambda at: at.kv_len**-0.5),
        ("1/√batch", lambda at: at.batch**-0.5),
        ("1/√value_head_dim", lambda at: at.value_head_dim**-0.5),
        ("1/√d_in, the width of the input,", lambda at: (at.d_in or at.head_dim) ** -0.5),
        ("1/√head_dim twice, on query and on key,", lambda at: 1 / at.head_dim),
        ("1/√√head_dim", lambda at: at.head_dim**-0.25),
        ("1/√(head_dim / 2)", lambda at: (at.head_dim / 2) ** -0.5),
        ("1/√(2 · head_dim)", lambda at: (at.head_dim * 2) ** -0.5),
        ("1/num_heads", lambda at: 1 / at.num_heads),
        ("1/(num_heads · head_dim), the whole width without its root,",
         lambda at: 1 / (at.num_heads * at.head_dim)),
        ("√num_heads/√head_dim", lambda at: (at.num_heads / at.head_dim) ** 0.5),
        ("the right one times log 2", lambda at: math.log(2) * at.head_dim**-0.5),
        ("the right one times log₂ e", lambda at: math.log2(math.e) * at.head_dim**-0.5),
    ]
    for words, scale in sizes:
        yield "scale.wrong", f"the scores are scaled by {words} instead of 1/√head_dim", right, scale


def _scaled_after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    return weights * at.head_dim**-0.5


SCALES = [
    *(
        Mutant(code, detail, likely, {"scale": scale})
        for code, detail, likely, scale in _wrong_scales()
    ),
    Mutant(
        "scale.missing",
        "the weights are scaled, after the softmax, and the scores are not",
        "scale before the softmax: torch.softmax(scores / math.sqrt(head_dim), dim=-1)",
        {"scale": lambda at: 1.0, "after": _scaled_after},
    ),
]


def _prepared(*order: str) -> Callable[..., Tensor]:
    """Scores prepared in another order of scale, cap, bias and hide."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        bias = declared_bias(at)
        for step in order:
            if step == "scale":
                raw = raw * scale
            elif step == "cap":
                raw = stages.capped_scores(raw, at.contract.softcap)
            elif step == "hide":
                raw = recipe.hide(raw, seen, scale, recipe.empty)
            elif step == "hide-finite":
                raw = raw.masked_fill(~seen, -1e9)
            elif bias is not None:
                raw = raw + (bias if step == "bias" else -bias)
        return raw

    return prepare


def _bias_after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    bias = declared_bias(at)
    return weights if bias is None else weights + bias


def _bias_after_seen(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    bias = declared_bias(at)
    return weights if bias is None else (weights + bias) * seen


def _has_bias(contract: Contract) -> bool:
    return contract.bias is not None or contract.alibi_slopes is not None


def _has_cap(contract: Contract) -> bool:
    return contract.softcap is not None


ORDER = [
    Mutant(
        "bias.scaled",
        "the bias is scaled together with the scores",
        "scale first, then add: scores * scale + bias",
        {"prepare": _prepared("bias", "scale", "cap", "hide")},
        _has_bias,
    ),
    *(
        Mutant(
            "bias.after-softmax",
            "the bias is added to the weights, after the softmax",
            "torch.softmax(scores * scale + bias, dim=-1)",
            {"prepare": _prepared("scale", "cap", "hide"), "after": after},
            _has_bias,
        )
        for after in (_bias_after, _bias_after_seen)
    ),
    Mutant(
        "differs",
        "the declared bias is not added",
        "scores * scale + bias",
        {"prepare": _prepared("scale", "cap", "hide")},
        _has_bias,
    ),
    Mutant(
        "differs",
        "the bias is subtracted",
        "scores * scale + bias",
        {"prepare": _prepared("scale", "cap", "unbias", "hide")},
        _has_bias,
    ),
    *(
        Mutant(
            "softcap.order",
            "the cap is applied after the mask, so that hidden keys keep some weight",
            "cap first, hide then: masked_fill after softcap * tanh(scores / softcap)",
            {"prepare": _prepared(*order)},
            _has_cap,
        )
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    Mutant(
        "softcap.order",
        "the cap is applied before the scale",
        "scale first: softcap * tanh(scores * scale / softcap)",
        {"prepare": _prepared("cap", "scale", "bias", "hide")},
        _has_cap,
    ),
    Mutant(
        "softcap.order",
        "the cap is applied after the bias",
        "cap the scaled scores, then add the bias",
        {"prepare": _prepared("scale", "bias", "cap", "hide")},
        lambda contract: _has_cap(contract) and _has_bias(contract),
    ),
    Mutant(
        "differs",
        "the declared softcap is not applied",
        "scores = softcap * torch.tanh(scores / softcap)",
        {"prepare": _prepared("scale", "bias", "hide")},
        _has_cap,
    ),
]


def _no_sinks(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return stages.weights(masked)


SINKS = [
    Mutant(
        "differs",
        "the declared sinks take no share",
        "softmax over the scores and the sink, and drop its column",
        {"share": _no_sinks},
        lambda contract: contract.sinks is not None,
    )
]


def _view_split(flat: Tensor, num_heads: int) -> Tensor:
    return flat.reshape(flat.shape[0], num_heads, flat.shape[1], -1)


def _interleaved_split(flat: Tensor, num_heads: int) -> Tensor:
    return flat.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def _view_merge(context: Tensor, at: Setting) -> Tensor:
    return context.reshape(at.batch, at.query_len, -1)


def _interleaved_merge(context: Tensor, at: Setting) -> Tensor:
    return context.permute(0, 2, 3, 1).flatten(2)


def _transposed_merge(context: Tensor, at: Setting) -> Tensor:
    return context.mT.reshape(at.batch, at.query_len, -1)


def _same(*which: int) -> Callable[..., Any]:
    """Every head reads what the first reads, of query (0), key (1), value (2)."""

    def arrange(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
        return tuple(
            each[:, :1].expand_as(each) if index in which else each
            for index, each in enumerate((query, key, value))
        )

    return arrange


def _tiled(tensor: Tensor, at: Setting) -> Tensor:
    return tensor.repeat(1, at.num_heads // tensor.shape[1], 1, 1)


def _first_only(tensor: Tensor, at: Setting) -> Tensor:
    return tensor[:, :1].expand(-1, at.num_heads, -1, -1)


def _heads_as_tokens(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    turned = at._replace(
        num_heads=at.query_len, num_kv_heads=at.kv_len, query_len=at.num_heads, kv_len=at.num_kv_heads
    )
    return inner(*(each.transpose(1, 2) for each in (query, key, value)), turned).transpose(1, 2)


HEADS = [
    *(
        Mutant(
            "heads.identical",
            f"every head reads the same {name}",
            "index the head's own slice: x[:, head], or view(batch, len, num_heads, head_dim)",
            {"arrange": _same(*which)},
        )
        for name, which in [
            ("query, key and value", (0, 1, 2)),
            ("key and value", (1, 2)),
            ("query", (0,)),
            ("key", (1,)),
            ("value", (2,)),
            ("query and key", (0, 1)),
        ]
    ),
    Mutant(
        "heads.gqa-tiled",
        "query head h reads key head h % num_kv_heads instead of h // groups",
        "repeat each key head for its group: key.repeat_interleave(groups, dim=1), not "
        "key.repeat(1, groups, 1, 1)",
        {"group": _tiled},
        lambda contract: _grouped(contract),
    ),
    Mutant(
        "heads.identical",
        "every query head reads the first key head",
        "key.repeat_interleave(groups, dim=1)",
        {"group": _first_only},
        lambda contract: _grouped(contract),
    ),
    Mutant(
        "heads.layout",
        "heads are mixed and tokens are not: the axes of heads and tokens are taken for each other",
        "bring the tensors to (batch, heads, len, dim) first: transpose(1, 2)",
        {"around": _heads_as_tokens},
        lambda contract: not _grouped(contract),
    ),
]


def _grouped(contract: Contract) -> bool:
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


SPLITS = [
    Mutant(
        "heads.split",
        "a head is made of other tokens' numbers: split without a transpose",
        "x.view(batch, len, num_heads, head_dim).transpose(1, 2), not "
        "x.view(batch, num_heads, len, head_dim)",
        {"split": _view_split},
    ),
    Mutant(
        "heads.split",
        "a head is made of other tokens' numbers, and merged the same way",
        "x.view(batch, len, num_heads, head_dim).transpose(1, 2), not "
        "x.view(batch, num_heads, len, head_dim)",
        {"split": _view_split, "merge": _view_merge},
    ),
]

MERGES = [
    Mutant(
        "heads.merge",
        "heads are merged without a transpose, so that output i holds other tokens' context",
        "context.transpose(1, 2).reshape(batch, len, -1), not context.reshape(batch, len, -1)",
        {"merge": _view_merge},
    ),
    Mutant(
        "heads.merge",
        "heads are merged with the wrong transpose",
        "context.transpose(1, 2).reshape(batch, len, -1)",
        {"merge": _transposed_merge},
    ),
]


def _start(first: Callable[[Setting], int], layout: str | None = None) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        return rotate(query, key, at, first(at), layout)

    return turned


def _other_layout(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    assert at.contract.rope is not None
    other = "half" if at.contract.rope.get("layout", "half") == "interleaved" else "interleaved"
    return rotate(query, key, at, at.offset, other)


def _has_rope(contract: Contract) -> bool:
    return contract.rope is not None


ROPE = [
    Mutant(
        "rope.layout",
        "the pairs that are rotated lie in the other layout",
        "one layout rotates x[:d/2] with x[d/2:], the other x[0::2] with x[1::2]; weights made for "
        "one do not fit the other",
        {"rotate": _other_layout},
        _has_rope,
    ),
    Mutant(
        "rope.offset",
        "the positions of the queries start at 0, though earlier keys are there",
        "rotate the query at its own position: kv_len - query_len + i",
        {"rotate": _start(lambda at: 0)},
        _has_rope,
    ),
    Mutant(
        "rope.offset",
        "the positions of the queries are one off those of the keys",
        "give query and key of one token the same position",
        {"rotate": _start(lambda at: at.offset + 1)},
        _has_rope,
    ),
    Mutant(
        "differs",
        "query and key are not rotated, though rope is declared",
        "rotate query and key before their product",
        {"rotate": lambda query, key, at: (query, key)},
        _has_rope,
    ),
]


def bank(contract: Contract, *, given: bool, flat: bool, masked: bool) -> list[Mutant]:
    """The mutants that make sense for a contract.

    Args:
        contract: what is declared.
        given: whether a mask is handed to the subject.
        flat: whether heads are split and merged by the subject.
        masked: whether anything is hidden at all.
    """
    found = [*MASKS, *SOFTMAX, *SCALES, *ORDER, *SINKS, *HEADS, *MERGES, *ROPE]
    if given:
        found += GIVEN
    if masked:
        found += HIDING
    if flat:
        found += SPLITS
    return [mutant for mutant in found if mutant.needs(contract)]


__all__ = ["RIGHT", "Mutant", "bank"]
