"""A recipe: attention as the stages of the definition; any stage can be replaced by another function.

The right recipe is `stages.py`. A wrong one has one of its functions replaced by the mistake, on the same query, key
and value. The sizes, the contract and the mask of a call are its `Setting`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract

EMPTY_STYLES = ("nan", "fill", "add", "zero")


class Setting(NamedTuple):
    """The sizes, contract and mask of a call, for a recipe.

    Attributes:
        mask: bool, True for visible pairs, broadcastable to (batch, heads, query_len, kv_len); None without one.
        d_in: the width of the input; None if unknown.
    """

    contract: Contract
    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    head_dim: int
    value_head_dim: int
    mask: Tensor | None = None
    d_in: int | None = None

    @property
    def offset(self) -> int:
        """The position of the first query: the last one belongs to the last key."""
        return self.kv_len - self.query_len


def right_merge(context: Tensor, at: Setting) -> Tensor:
    """Return the context, (batch, heads, len, dim), merged to (batch, len, heads · dim)."""
    return context.transpose(1, 2).flatten(2)


def right_arrange(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    """Return query, key and value unchanged, as a tuple."""
    return query, key, value


def right_end(context: Tensor, at: Setting) -> Tensor:
    """Return the context of separate heads unchanged."""
    return context


def right_around(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    """Return the context that `inner` computes, (batch, heads, len, dim)."""
    return inner(query, key, value, at)


def right_group(tensor: Tensor, at: Setting) -> Tensor:
    """Return a key or value tensor with a head for each query head, repeated as in grouped attention."""
    return stages.repeat_kv_heads(tensor, at.num_heads)


def rotated(tensor: Tensor, start: int, base: float, layout: str) -> Tensor:
    """Return a tensor (…, len, dim) rotated by positions from `start` on, one more for each row, as float64.

    Su et al., 2021, https://arxiv.org/abs/2104.09864. `layout` is "half" or "interleaved"; an odd last column stays.
    """
    width = tensor.shape[-1] // 2 * 2
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    places = torch.arange(start, start + tensor.shape[-2], dtype=torch.float64)
    angles = places[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    if layout == "half":
        first, second = tensor[..., : width // 2], tensor[..., width // 2 : width]
    else:
        first, second = tensor[..., 0:width:2], tensor[..., 1:width:2]
    one, two = first * cos - second * sin, first * sin + second * cos
    turned = (
        torch.cat([one, two], -1) if layout == "half" else torch.stack([one, two], -1).flatten(-2)
    )
    return torch.cat([turned, tensor[..., width:]], -1)


def right_rotate(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """Return query and key rotated by their positions; unchanged if no rotation is declared."""
    return rotate(query, key, at, at.offset)


def rotate(
    query: Tensor, key: Tensor, at: Setting, start: int, layout: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return query and key rotated, the first query at `start`, the first key at 0, in `layout` or the declared one.

    Unchanged if no rotation is declared.
    """
    rope = at.contract.rope
    if rope is None:
        return query, key
    base, kind = float(rope.get("base", 10000.0)), layout or str(rope.get("layout", "half"))
    return rotated(query, start, base, kind), rotated(key, 0, base, kind)


def right_scale(at: Setting) -> float:
    """Return the declared scale, or 1/√head_dim."""
    return at.contract.scale if at.contract.scale is not None else 1 / math.sqrt(at.head_dim)


def right_visible(at: Setting) -> Tensor:
    """Return bool, True where contract and mask let a query see a key; see `visible` for the shape."""
    return visible(at, at.offset)


def visible(at: Setting, offset: int, left: int = 0, right: int = 0) -> Tensor:
    """Return bool, True where contract and mask let a query see a key, the first query at position `offset`.

    (query_len, kv_len), or the shape of the mask broadcast with it. `left` and `right` move the edges of causal and
    window outwards. The result may be cached: do not modify it.
    """
    before, after = at.contract.window or (None, None)
    ahead = [right] if at.contract.causal else []
    if after is not None and not (ahead and after == 0):
        ahead.append(after + right)
    back = None if before is None else before + left
    seen = band(at.query_len, at.kv_len, offset, back, min(ahead, default=None))
    documents = at.contract.documents_of(at.kv_len)
    if documents is not None:
        seen = seen & (documents[offset : offset + at.query_len, None] == documents)
    return seen if at.mask is None else seen & at.mask


@lru_cache(maxsize=256)
def band(query_len: int, kv_len: int, offset: int, back: int | None, ahead: int | None) -> Tensor:
    """Return bool (query_len, kv_len), True within `back` keys before and `ahead` after a query's position.

    None for a side means unbounded. Cached: do not modify it.
    """
    places = torch.arange(offset, offset + query_len, device="cpu")[:, None]
    distance = torch.arange(kv_len, device="cpu") - places
    seen = torch.ones(query_len, kv_len, dtype=torch.bool, device="cpu")
    if ahead is not None:
        seen &= distance <= ahead
    if back is not None:
        seen &= distance >= -back
    return seen


def declared_bias(at: Setting) -> Tensor | None:
    """Return the sum of bias and ALiBi, float64 that broadcasts to (heads, query_len, kv_len); None if undeclared."""
    total = None
    if at.contract.bias is not None:
        total = at.contract.bias(at.query_len, at.kv_len).double()
    if at.contract.alibi_slopes is not None:
        places = torch.arange(at.offset, at.offset + at.query_len)[:, None]
        distance = (places - torch.arange(at.kv_len)).abs()
        slopes = -at.contract.alibi_slopes.double()[:, None, None] * distance
        total = slopes if total is None else total + slopes
    return total


def right_prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: "Recipe") -> Tensor:
    """Return the raw scores scaled, capped, with the declared bias, and hidden by `recipe.hide`."""
    scores = stages.capped_scores(stages.scaled_scores(raw, scale), at.contract.softcap)
    bias = declared_bias(at)
    if bias is not None:
        scores = scores + bias
    return recipe.hide(scores, seen, scale, recipe.empty)


def right_hide(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    """Return the scores with -inf where hidden.

    A row that sees no key is all 0 for `empty` "fill", keeps its scores for "add", and is all -inf otherwise.
    """
    if empty == "fill":
        scores = scores.masked_fill(~seen.any(-1, keepdim=True), 0.0)
        return scores.masked_fill(~seen & seen.any(-1, keepdim=True), -torch.inf)
    if empty == "add":
        return scores.masked_fill(~seen & seen.any(-1, keepdim=True), -torch.inf)
    return stages.masked_scores(scores, None, seen)


def right_share(masked: Tensor, empty: str, at: Setting) -> Tensor:
    """Return the softmax over the keys, with the declared sinks.

    A row of -inf is NaN for `empty` "nan" if no sinks are declared, else 0.
    """
    sinks = None if at.contract.sinks is None else at.contract.sinks.double()
    if empty == "nan" and sinks is None:
        return torch.softmax(masked, -1)
    return stages.weights(masked, sinks)


def right_after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    """Return the weights unchanged."""
    return weights


@dataclass(frozen=True)
class Recipe:
    """Attention as a row of functions, each a stage that an edit can replace.

    `empty` is what a row that sees nothing becomes: "nan", "fill" (uniform), "add" (unmasked), "zero". Every stage has
    the parameters of its `right_…` function.
    """

    around: Callable[..., Tensor] = right_around
    arrange: Callable[..., Any] = right_arrange
    group: Callable[..., Tensor] = right_group
    rotate: Callable[..., tuple[Tensor, Tensor]] = right_rotate
    scale: Callable[[Setting], float] = right_scale
    visible: Callable[[Setting], Tensor] = right_visible
    prepare: Callable[..., Tensor] = right_prepare
    hide: Callable[..., Tensor] = right_hide
    share: Callable[..., Tensor] = right_share
    after: Callable[..., Tensor] = right_after
    merge: Callable[..., Tensor] = right_merge
    end: Callable[..., Tensor] = right_end
    empty: str = "nan"

    def weights(self, query: Tensor, key: Tensor, at: Setting) -> Tensor:
        """Return the weights, (batch, num_heads, query_len, kv_len), by the stages from `rotate` to `after`.

        The heads are split, the key heads not yet repeated, and nothing is rotated yet.
        """
        query, key = self.rotate(query, self.group(key, at), at)
        seen = self.visible(at)
        # Where all is finite, what keeps a NaN to itself changes nothing.
        plain = stages.rows_finite(query) and stages.rows_finite(key)
        scores = stages.matmul(query, key.mT) if plain else stages.scores(query, key)
        masked = self.prepare(scores, seen, self.scale(at), at, self)
        return self.after(self.share(masked, self.empty, at), seen, at)

    def heads(self, query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Tensor:
        """Return the context, (batch, num_heads, query_len, value_head_dim), by all stages but `merge` and `end`.

        The heads are split, the key heads not yet repeated, and nothing is rotated yet.
        """
        return self.around(self._inner, query, key, value, at)

    def _inner(self, query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Tensor:
        """Return the context, (batch, num_heads, query_len, value_head_dim), by the stages inside `around`."""
        query, key, value = self.arrange(query, key, value, at)
        return self.weights(query, key, at) @ self.group(value, at)

    def styled(self, empty: str) -> "Recipe":
        """Return the recipe with another treatment of rows that see no key."""
        return replace(self, empty=empty)


RIGHT = Recipe()


Stage = Callable[..., Any]


@dataclass(frozen=True)
class StageEdit:
    """One edit of the definition.

    Attributes:
        code: the name of the mistake.
        way: the variant of its sentence in the catalogue.
        changes: the functions that replace stages, by the names of the fields of `Recipe`.
        needs: returns a true value if the edit is possible under a contract.
        values: the values of the sentence.
    """

    code: str
    way: str
    changes: Mapping[str, Stage]
    needs: Callable[[Contract], Any] = lambda contract: True
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """The part of the code before the dot."""
        return self.code.partition(".")[0]

    def applied(self, recipe: Recipe) -> Recipe:
        """Return a copy of the recipe with this edit."""
        return replace(recipe, **self.changes)


def declared(*fields: str) -> Callable[[Contract], bool]:
    """Return a function that is True for a contract with one of these fields neither None nor False."""
    return lambda contract: any(
        getattr(contract, each) is not None and getattr(contract, each) is not False
        for each in fields
    )


def grouped(contract: Contract) -> bool:
    """Return True if the declared numbers of key heads and query heads differ, or only the first is declared."""
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


def looks_back(contract: Contract) -> bool:
    """Return True for a window that goes back by more than one token and, by itself or by causality, not ahead."""
    left, right = contract.window or (None, None)
    return left is not None and left > 1 and (contract.causal is True or right == 0)
