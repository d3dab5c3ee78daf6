"""Calls with query, key and value: their sizes, their inputs, and what came of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.cases import called
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import SPREAD_HEADS

NAMES: tuple[str, ...] = ("query", "key", "value", "mask")


class CallSizes(NamedTuple):
    """The sizes of one call; every axis another prime where nothing is declared."""

    name: str
    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    head_dim: int
    value_head_dim: int

    def setting(self, contract: Contract, mask: Tensor | None = None) -> Setting:
        """Return the setting of a recipe for such a call."""
        return Setting(contract, *self[1:], mask)


@dataclass(frozen=True)
class Attempt:
    """A call: its sizes and inputs, the output, or None and the error."""

    sizes: CallSizes
    inputs: tuple[Tensor, ...]
    output: Tensor | None
    error: Exception | None = None


def planned(contract: Contract, head_dim: int | None = None) -> list[CallSizes]:
    """Return the sizes of six calls, the most telling first: "main", "other", "rectangular", "value", "long", "one".

    Declared heads, widths and the greatest length replace those of the plan; `head_dim` replaces a declared one.
    """
    num_heads, num_kv_heads = contract.heads()
    head_dim = head_dim or contract.sizes.get("head_dim")
    value_dim = contract.sizes.get("value_head_dim")
    even = contract.rope is not None
    reach = max((side or 0) for side in contract.window) if contract.window is not None else 0
    long = contract.sizes.get("context_length", 10**9)

    def sized(
        name: str, batch: int, heads: int, lens: tuple[int, int], dim: int, value: int | None = None
    ) -> CallSizes:
        """Return the sizes of one call, with declared ones instead of these.

        One more token, up to the greatest length, if several heads would be as many as queries.
        """
        width = head_dim or dim + (dim % 2 if even else 0)
        h = num_heads or (heads if num_kv_heads is None else heads * num_kv_heads)
        # As many queries as heads would not show which of the two comes first.
        more = int(lens[0] == h > 1)
        lengths = min(lens[0] + more, long), min(lens[1] + more, long)
        return CallSizes(
            name, batch, h, num_kv_heads or h, *lengths, width, value_dim or value or width
        )

    main = max(7, reach + 5)
    return [
        sized("main", 2, 3, (main, main), 5),
        sized("other", 3, 2, (main + 4, main + 4), 13),
        sized("rectangular", 2, 3, (4, main + 2), 7),
        sized("value", 2, 3, (main, main), 5, 11),
        sized("long", 1, 2, (67, 67), 11),
        sized("one", 2, 3, (1, 1), 5),
    ]


def drawn(sizes: CallSizes, masked: bool, seed: int) -> tuple[Tensor, ...]:
    """Return random query, key and value in float64, (batch, heads, len, dim), and a bool mask if `masked`.

    The mask is (batch, 1, query_len, kv_len), and each query sees a key. The same sizes and seed give the same inputs.
    """
    generator = torch.Generator().manual_seed(seed)

    def numbers(heads: int, length: int, dim: int) -> Tensor:
        """Return random numbers (batch, heads, length, dim) in float64."""
        shape = (sizes.batch, heads, length, dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    query = numbers(sizes.num_heads, sizes.query_len, sizes.head_dim)
    key = numbers(sizes.num_kv_heads, sizes.kv_len, sizes.head_dim)
    value = numbers(sizes.num_kv_heads, sizes.kv_len, sizes.value_head_dim)
    if not masked:
        return query, key, value
    shape = (sizes.batch, 1, sizes.query_len, sizes.kv_len)
    mask = torch.rand(shape, generator=generator) < 0.6
    own = torch.arange(sizes.query_len) + sizes.kv_len - sizes.query_len
    mask[..., torch.arange(sizes.query_len), own] = True
    return query, key, value, mask


def attempted(subject: Subject, sizes: CallSizes, seed: int) -> Attempt:
    """Return one call of a subject with inputs drawn from the seed; an error of it is caught."""
    made = drawn(sizes, subject.takes == "qkv,mask", seed)
    output = called(subject, made)
    if isinstance(output, Exception):
        return Attempt(sizes, made, None, output)
    return Attempt(sizes, made, output)


def heads_first(output: Tensor, heads: int, tokens: int) -> Tensor:
    """Return an output as (batch, heads, len, dim), if its heads are merged or on axis 2.

    Any other is returned unchanged, and heads on axis 2 are not recognised if there are as many as tokens.
    """
    if output.ndim == 3 and output.shape[-1] % heads == 0:
        return output.unflatten(-1, (heads, -1)).transpose(1, 2)
    behind = output.shape[1:3] == (tokens, heads) and tokens != heads
    return output.transpose(1, 2) if behind else output


def as_trial(attempt: Attempt, contract: Contract, dtype: torch.dtype) -> Trial | None:
    """Return the call as a trial, with the output in float64, as (batch, heads, len, dim) or merged.

    None if the call failed, or the output has another shape.
    """
    sizes, output = attempt.sizes, attempt.output
    if output is None:
        return None
    query, key, value, *rest = attempt.inputs
    merged = (sizes.batch, sizes.query_len, sizes.num_heads * sizes.value_head_dim)
    apart = (sizes.batch, sizes.num_heads, sizes.query_len, sizes.value_head_dim)
    if output.ndim != 3:
        output = heads_first(output, sizes.num_heads, sizes.query_len)
    output = output.double()
    if tuple(output.shape) not in (merged, apart):
        return None
    setting = sizes.setting(contract, rest[0] if rest else None)
    return Trial(sizes.name, setting, query, key, value, output, dtype)


class MeasuredWeights(NamedTuple):
    """The weights of a call, (batch, heads, query_len, kv_len), and q·k next to them."""

    weights: Tensor
    products: Tensor


def measure_weights(
    run: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *rest: Tensor
) -> MeasuredWeights:
    """Return the weights, from calls whose value is a part of the identity, as wide as the given value.

    Errors of the call are raised.
    """
    width, kv_len = value.shape[-1], key.shape[-2]
    blocks = []
    for start in range(0, kv_len, width):
        block = torch.eye(kv_len, dtype=value.dtype)[:, start : start + width]
        spare = width - block.shape[1]
        block = torch.nn.functional.pad(block, (0, spare)).expand(*value.shape[:2], -1, -1)
        output = run(query.clone(), key.clone(), block.clone(), *(each.clone() for each in rest))
        output = heads_first(output, *query.shape[1:3]).detach().double()
        blocks.append(output[..., : width - spare])
    products = stages.scores(query, stages.repeat_kv_heads(key, query.shape[1]))
    return MeasuredWeights(torch.cat(blocks, -1), products)


def slope_of(measured: MeasuredWeights, seen: Tensor) -> float | None:
    """Return the slope of the log-weights over q·k, which is the scale that was used.

    None if they form no line, or q·k does not vary. `seen`: True for the weights to use, if they are above 0.
    """
    weights, products = measured.weights, measured.products
    usable = (weights > 0) & seen.expand_as(weights)
    logs = torch.where(usable, weights.clamp_min(1e-300).log(), 0.0)
    count = usable.sum(-1, keepdim=True).clamp_min(1)
    x = torch.where(usable, products - (products * usable).sum(-1, keepdim=True) / count, 0.0)
    y = torch.where(usable, logs - logs.sum(-1, keepdim=True) / count, 0.0)
    spread = (x * x).sum()
    if spread < 1e-20:
        return None
    found = ((x * y).sum() / spread).item()
    left_over = (y - found * x).abs().max().item()
    return found if left_over < 1e-3 * max(1.0, y.abs().max().item()) else None
