"""Mutants of a part of attention: what its definition gives with one mistake in it, on plain (len, dim)."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mask_edits import SOFTMAX
from clearhead.checking.hypotheses.recipe import Setting


class PartEdit(NamedTuple):
    """A part with a mistake; `wrong` raises where the code with the mistake does."""

    code: str
    way: str
    wrong: Callable[..., Tensor]
    values: Mapping[str, str] = {}


def _running(found: Tensor) -> Tensor:
    return found.flatten().cumsum(0).view_as(found)


def _sums(products: Callable[..., Tensor], of: Mapping[str, str]) -> Iterator[PartEdit]:
    """The mistakes of any sum of products; `products` gives (rows, columns, terms)."""

    def total(*inputs: Tensor) -> Tensor:
        return products(*inputs).sum(-1)

    for way, carried in (
        ("never", _running),
        ("never", lambda found: _running(found.mT).mT),
        ("row", lambda found: found.cumsum(-1)),
        ("column", lambda found: found.cumsum(-2)),
    ):
        yield PartEdit("sum.wrong", way, lambda *a, c=carried: c(total(*a)), of)
    yield PartEdit("sum.wrong", "last", lambda *a: products(*a)[..., -1], of)
    for way, cut in (("last", slice(0, -1)), ("first", slice(1, None))):
        yield PartEdit(
            "sum.wrong", f"{way}-term", lambda *a, c=cut: products(*a)[..., c].sum(-1), of
        )
        yield PartEdit("sum.wrong", f"{way}-column", lambda *a, c=cut: total(*a)[:, c], of)
        yield PartEdit("sum.wrong", f"{way}-row", lambda *a, c=cut: total(*a)[c], of)
    yield PartEdit("law.pairs", "turned", lambda *a: total(*a).mT, of)
    for axis in (0, (0,), (0, 1)):
        yield PartEdit(
            "law.pairs", "one-sum", lambda *a, x=axis: total(*a).sum(x, keepdim=x == (0,)), of
        )


def _pairs(query: Tensor, key: Tensor) -> Tensor:
    return query[:, None] * key[None]


def _viewed(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.reshape(key.shape[1], key.shape[0])


def _cosine(query: Tensor, key: Tensor) -> Tensor:
    return stages.scores(
        query / query.norm(dim=-1, keepdim=True), key / key.norm(dim=-1, keepdim=True)
    )


def _scores(changed: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda query, key: stages.scores(*changed(query, key))


OF_SCORES = [
    *_sums(_pairs, {"rows": "query", "columns": "key", "terms": "number", "result": "score"}),
    *(
        PartEdit("law.pairs", "one-row", _scores(lambda q, k, r=row: (q[r].expand_as(q), k)),
                   {"token": words, "side": "query"})
        for row, words in ((0, "the first"), (-1, "the last"))
    ),
    *(
        PartEdit("law.pairs", "one-row", _scores(lambda q, k, r=row: (q, k[r].expand_as(k))),
                   {"token": words, "side": "key"})
        for row, words in ((0, "the first"), (-1, "the last"))
    ),
    PartEdit("law.pairs", "one-row", _scores(lambda q, k: (q.mean(0).expand_as(q), k)),
               {"token": "the mean", "side": "query"}),
    PartEdit("law.pairs", "same-side", _scores(lambda q, k: (q, q)), {"side": "query"}),
    PartEdit("law.pairs", "same-side", _scores(lambda q, k: (k, k)), {"side": "key"}),
    PartEdit("law.pairs", "view", _viewed),
    PartEdit("law.pairs", "zip", lambda q, k: (q[: len(k)] * k[: len(q)]).sum(-1)),
    PartEdit("law.scores", "weights", lambda q, k: stages.weights(stages.scores(q, k))),
    PartEdit("law.scores", "added", lambda q, k: (q[:, None] + k[None]).sum(-1)),
    PartEdit("law.scores", "distance", lambda q, k: (q[:, None] - k[None]).norm(dim=-1)),
    PartEdit("law.scores", "distance", lambda q, k: (q[:, None] - k[None]).square().sum(-1)),
    PartEdit("law.scores", "distance", lambda q, k: -(q[:, None] - k[None]).square().sum(-1)),
    PartEdit("law.scores", "distance", lambda q, k: -(q[:, None] - k[None]).norm(dim=-1)),
    PartEdit("law.scores", "distance", lambda q, k: (q[:, None] - k[None]).abs().sum(-1)),
    PartEdit("law.scores", "cosine", _cosine),
    PartEdit("law.scores", "positive", lambda q, k: _pairs(q, k).abs().sum(-1)),
    PartEdit("law.scores", "positive", lambda q, k: stages.scores(q, k).abs()),
    PartEdit("law.scores", "positive", lambda q, k: stages.scores(q, k).relu()),
    PartEdit("law.scores", "squared", lambda q, k: _pairs(q, k).square().sum(-1)),
    PartEdit("law.scores", "squared", lambda q, k: stages.scores(q, k).square()),
    PartEdit("law.scores", "largest", lambda q, k: _pairs(q, k).amax(-1)),
    PartEdit("law.scores", "product", lambda q, k: _pairs(q, k).prod(-1)),
]  # fmt: skip


def _share(mutant: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    def wrong(scores: Tensor) -> Tensor:
        queries, keys = scores.shape
        at = Setting(Contract(), 1, 1, 1, queries, keys, 1, 1)
        return mutant(scores[None, None], "nan", at)[0, 0]

    return wrong


def _one_hot(scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


OF_ROWS = {"rows": "query", "columns": "key", "terms": "key", "result": "weight"}
# What is subtracted before exp: nothing, the largest of the row, the largest of all.
POWERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda s: s.exp(),
    lambda s: (s - s.amax(-1, keepdim=True)).exp(),
    lambda s: (s - s.amax()).exp(),
)


def _divided(by: Callable[[Tensor], Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Powers of each kind, divided by something of them."""
    for powers in POWERS:
        yield lambda s, p=powers: p(s) / by(p(s))


def _shares() -> Iterator[PartEdit]:
    """Powers that are divided by something else than the sum of their row."""
    for code, way, by in (
        ("softmax.axis", "sum", lambda p: p.sum(-1)),
        ("softmax.axis", "sum", lambda p: p.sum(-2, keepdim=True)),
        ("softmax.axis", "whole", lambda p: p.sum()),
        ("softmax.missing", "exp", lambda p: torch.ones_like(p)),
        ("softmax.missing", "by-largest", lambda p: p.amax(-1, keepdim=True)),
        ("sum.wrong", "row", lambda p: p.sum(-1, keepdim=True).cumsum(0)),
        ("sum.wrong", "last", lambda p: p[:, -1:]),
        ("sum.wrong", "last-term", lambda p: p[:, :-1].sum(-1, keepdim=True)),
        ("sum.wrong", "first-term", lambda p: p[:, 1:].sum(-1, keepdim=True)),
    ):
        for wrong in _divided(by):
            yield PartEdit(code, way, wrong, OF_ROWS)


OF_WEIGHTS = [
    *(
        PartEdit(each.code, each.way, _share(each.changes["share"]), each.values)
        for each in SOFTMAX
        if "share" in each.changes
        and each.way != "operation"
        and each.values.get("axis") not in ("heads", "batch")
    ),
    *_shares(),
    PartEdit("softmax.axis", "largest", lambda s: (s - s.amax(-1)).softmax(-1)),
    PartEdit("softmax.axis", "both", lambda s: (p := (s - s.amax(-1)).exp()) / p.sum(-1)),
    PartEdit("softmax.axis", "largest", lambda s: (s - s.amax(0)).softmax(-1)),
    PartEdit("softmax.missing", "by-sum", lambda s: s.abs() / s.abs().sum(-1, keepdim=True)),
    PartEdit("softmax.missing", "by-sum", lambda s: s.square() / s.square().sum(-1, keepdim=True)),
    PartEdit("softmax.missing", "by-sum", lambda s: s / s.sum()),
    PartEdit("softmax.missing", "by-sum", lambda s: s / s.sum(0)),
    *(
        PartEdit("softmax.missing", "smallest", lambda s, low=low: (p := s - low(s)) / p.sum(-1, True))
        for low in (lambda s: s.amin(-1, keepdim=True), lambda s: s.min())
    ),
    *(
        PartEdit("softmax.missing", "other-sum", lambda s, p=powers, o=other: p(s) / o(s).sum(-1, True))
        for powers in POWERS for other in POWERS if powers is not other
    ),
    *(
        PartEdit("softmax.twice", "exp", lambda s, p=powers: p(s).softmax(-1)) for powers in POWERS
    ),
    PartEdit("softmax.missing", "by-largest", lambda s: s / s.amax(-1, keepdim=True)),
    *(
        PartEdit("softmax.missing", "scores-below", lambda s, p=powers, o=below: p(s) / o(s).sum(-1, True))
        for powers in POWERS for below in (torch.clone, lambda s, p=powers: p(s).log())
    ),
    PartEdit("softmax.missing", "relu", lambda s: s.relu() / s.relu().sum(-1, keepdim=True)),
    PartEdit("softmax.missing", "largest-only", _one_hot),
    PartEdit("law.value", "count", lambda s: s.softmax(-1) / s.shape[-1]),
    PartEdit("law.value", "count", lambda s: s.softmax(-1) * s.shape[-1]),
    PartEdit("law.pairs", "one-row", lambda s: s[0].softmax(-1).expand_as(s),
               {"token": "the first", "side": "query"}),
    PartEdit("law.pairs", "one-row", lambda s: s[-1].softmax(-1).expand_as(s),
               {"token": "the last", "side": "query"}),
    PartEdit("law.pairs", "turned", lambda s: s.softmax(-1).mT, OF_ROWS),
]  # fmt: skip


def _terms(weights: Tensor, value: Tensor) -> Tensor:
    """(queries, dimensions, keys)."""
    return weights[:, None, :] * value.mT[None]


def _of_the_query(weights: Tensor, value: Tensor) -> Tensor:
    own = value[torch.arange(len(weights))]
    return weights.sum(-1, keepdim=True) * own


OF_CONTEXT = [
    *_sums(_terms, {"rows": "query", "columns": "dimension", "terms": "key", "result": "context"}),
    PartEdit("law.value", "transposed", lambda w, v: w.mT @ v),
    PartEdit("law.value", "count", lambda w, v: w @ v / w.shape[1]),
    PartEdit("law.value", "count", lambda w, v: w @ v / w.shape[0]),
    PartEdit("law.value", "count", lambda w, v: w @ v / v.shape[1]),
    PartEdit("law.value", "count", lambda w, v: w @ v * w.shape[1]),
    PartEdit("law.value", "even", lambda w, v: v.mean(0).expand(len(w), -1)),
    PartEdit("law.value", "even", lambda w, v: v.sum(0).expand(len(w), -1)),
    PartEdit("law.value", "unweighted", lambda w, v: v[torch.arange(len(w))]),
    PartEdit("law.value", "of-the-query", _of_the_query),
    PartEdit("law.value", "own-added", lambda w, v: w @ v + v[torch.arange(len(w))]),
    *(
        PartEdit("law.pairs", "one-row", lambda w, v, r=row: w[r].expand_as(w) @ v,
                   {"token": words, "side": "query"})
        for row, words in ((0, "the first"), (-1, "the last"))
    ),
    *(
        PartEdit("law.value", "one-value", lambda w, v, r=row: w @ v[r].expand_as(v),
                   {"token": words})
        for row, words in ((0, "the first"), (-1, "the last"))
    ),
    PartEdit("softmax.twice", "again", lambda w, v: w.softmax(-1) @ v),
    PartEdit("law.value", "reversed", lambda w, v: w.flip(-1) @ v),
    PartEdit("law.value", "largest", lambda w, v: v[w.argmax(-1)]),
    PartEdit("law.value", "largest", lambda w, v: _terms(w, v).amax(-1)),
    PartEdit("law.value", "added", lambda w, v: (w[:, None, :] + v.mT[None]).sum(-1)),
    PartEdit("law.value", "not-summed", lambda w, v: (_terms(w, v)).mT),
]  # fmt: skip

MUTANTS: Mapping[str, list[PartEdit]] = {
    "query,key": OF_SCORES,
    "scores": OF_WEIGHTS,
    "weights,value": OF_CONTEXT,
}
