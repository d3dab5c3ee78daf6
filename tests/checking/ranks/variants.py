"""Sharded attention as people write it, by an all-gather, round a ring and by heads (Ulysses): right, and
with one mistake each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

import clearhead as ch


class Gather(torch.autograd.Function):
    """The rows of all ranks, (ranks, batch, heads, rows, dim), of equally many rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, backward: str) -> Tensor:
        ctx.group, ctx.backward_is = group, backward
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        rank, world = dist.get_rank(ctx.group), len(grad)
        own, grad = grad[rank].clone(), grad.contiguous()
        if ctx.backward_is == "own":
            return own, None, None
        dist.all_reduce(grad, group=ctx.group)
        found = {
            "": grad[rank],
            "mean": grad[rank] / world,
            "large": grad[rank] * world,
            "own twice": grad[rank] + own,
            "others": grad[rank] - own,
            "neighbour": grad[(rank + 1) % world],
            "bf16": grad[rank].bfloat16().to(grad.dtype),
        }[ctx.backward_is]
        return found, None, None


class Pass(torch.autograd.Function):
    """A block handed to the next rank; its gradient comes back the same way."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return shifted(block, group, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return shifted(grad, ctx.group, -1), None


def shifted(block: Tensor, group: Any, steps: int) -> Tensor:
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    arriving = torch.empty_like(block)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, block.contiguous(), (rank + steps) % world, group),
            dist.P2POp(dist.irecv, arriving, (rank - steps) % world, group),
        ]
    )
    for each in works:
        each.wait()
    return arriving


class Swap(torch.autograd.Function):
    """Part i of the first axis sent to rank i; the gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        found = torch.empty_like(parts)
        dist.all_to_all_single(found, parts.contiguous(), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        found = torch.empty_like(grad)
        dist.all_to_all_single(found, grad.contiguous(), group=ctx.group)
        return found, None


def rotated(x: Tensor, places: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = places[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    one, two = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


def visible(q: Tensor, k: Tensor, causal: bool, window: tuple[int, int] | None) -> Tensor:
    distance = q[:, None] - k
    seen = torch.ones(distance.shape, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= (distance <= window[0]) & (distance >= -window[1])
    return seen


@dataclass(frozen=True)
class Call:
    """The arguments of a call that a rank has."""

    group: Any
    rank: int
    world: int
    counts: list[int]
    places: list[Tensor]
    causal: bool
    window: tuple[int, int] | None

    @property
    def here(self) -> Tensor:
        return self.places[self.rank]

    @property
    def first(self) -> int:
        return sum(self.counts[: self.rank])


@dataclass(frozen=True)
class Sharded:
    """One way to share attention, with a mistake or without."""

    how: str
    mistake: str = ""
    rope: bool = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        group: Any,
        rank: int,
        world_size: int,
        positions: Tensor,
        causal: bool = False,
        window: tuple[int, int] | None = None,
    ) -> Tensor:
        counts: list[Any] = [None] * world_size
        dist.all_gather_object(counts, positions, group=group)
        call = Call(group, rank, world_size, list(map(len, counts)), counts, causal, window)
        if self.mistake == "detached":
            query, key, value = query.detach(), key.detach(), value.detach()
        if self.rope:
            places = positions
            if self.mistake == "local positions":
                places = torch.arange(len(positions))
            if self.mistake == "positions in a row":
                places = torch.arange(len(positions)) + call.first
            query, key = rotated(query, places), rotated(key, places)
        return {"gather": gather, "ring": ring, "heads": heads}[self.how](
            query, key, value, call, self.mistake
        )


def longest(tensor: Tensor, call: Call) -> Tensor:
    return F.pad(tensor, (0, 0, 0, max(call.counts) - tensor.shape[2]))


def spread(tensor: Tensor, heads: int) -> Tensor:
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def gather(query: Tensor, key: Tensor, value: Tensor, call: Call, mistake: str) -> Tensor:
    backward = mistake.removeprefix("grad ") if mistake.startswith("grad ") else ""
    counts, most = call.counts, max(call.counts)
    if mistake == "no autograd":
        with torch.no_grad():
            both = [Gather.apply(longest(each, call), call.group, "") for each in (key, value)]
    elif mistake == "sent in bf16":
        both = [
            Gather.apply(longest(each, call).bfloat16(), call.group, "").to(each.dtype)
            for each in (key, value)
        ]
    else:
        both = [Gather.apply(longest(each, call), call.group, backward) for each in (key, value)]
    kept = {"trim": [min(counts)] * call.world, "padding": [most] * call.world}.get(mistake, counts)
    if mistake == "blocks":
        kept = [count // 4 * 4 for count in counts]
    keys, values = (
        spread(
            torch.cat([part[:, :, :n] for part, n in zip(each, kept, strict=True)], 2),
            query.shape[1],
        )
        for each in both
    )
    k_places = torch.cat([each[:n] for each, n in zip(call.places, kept, strict=True)])
    q_places, row = call.here, torch.arange(keys.shape[2])
    local = torch.arange(query.shape[2])
    if mistake == "padding":
        q_places, k_places = local + call.rank * most, row
    if mistake == "top left":
        q_places, k_places = local, row
    if mistake == "lower right":
        q_places, k_places = local + len(row) - len(local), row
    if mistake == "local":
        q_places, k_places = local, torch.cat([torch.arange(n) for n in counts])
    if mistake == "keys in a row":
        k_places = row
    if mistake == "in a row":
        q_places, k_places = local + call.first, row
    causal, window = call.causal, call.window
    if mistake == "no mask":
        causal = False
    if mistake == "no window":
        window = None
    seen = visible(q_places, k_places, causal, window)
    if mistake == "inverted":
        seen = ~seen
    if mistake == "far":
        seen = visible(q_places, k_places, causal, None) & ~visible(
            q_places, k_places, False, window
        )
    if mistake == "own":
        seen = seen & torch.isin(k_places, call.here)
    scale = 1.0 if mistake == "no scale" else query.shape[-1] ** -0.5
    scores = (query @ keys.mT * scale).masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ values
    return out[:, :, : min(counts)] if mistake == "rows" else out


def ring(query: Tensor, key: Tensor, value: Tensor, call: Call, mistake: str) -> Tensor:
    both = torch.cat([key, value], -1)
    both = longest(both, call)
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    total = query.new_full((*query.shape[:3], 1), -torch.inf)
    if mistake == "merge by exp":
        total = torch.zeros_like(total)
    partial = torch.bfloat16 if mistake == "merged in bf16" else None
    for step in range(call.world - (mistake == "one step short")):
        owner = (call.rank - step) % call.world
        n = call.counts[owner]
        k, v = both[:, :, :n].split([key.shape[3], value.shape[3]], -1)
        k, v = spread(k, query.shape[1]), spread(v, query.shape[1])
        seen = visible(call.here, call.places[owner], call.causal, call.window)
        local = torch.arange(query.shape[2])
        if mistake == "local":
            seen = visible(local, torch.arange(n), call.causal, call.window)
        if mistake in ("own block only", "earlier blocks", "later blocks"):
            whole = {
                "own block only": True,
                "earlier blocks": owner < call.rank,
                "later blocks": owner > call.rank,
            }[mistake]
            seen = torch.full_like(seen, whole)
            if step == 0:
                seen = visible(local, torch.arange(n), call.causal, call.window)
        if mistake == "window in own block" and step:
            seen = visible(call.here, call.places[owner], call.causal, None)
        scores = (query @ k.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
        sums = scores.logsumexp(-1, keepdim=True)
        some = (scores - sums.nan_to_num(neginf=0.0)).exp() @ v
        if mistake in ("mean", "sum", "last"):
            out = (
                some if mistake == "last" else out + some / (call.world if mistake == "mean" else 1)
            )
        elif mistake == "merge by exp":
            out, total = out + some * sums.exp(), total + sums.exp()
        else:
            new = torch.logaddexp(total, sums)
            safe = new.nan_to_num(neginf=0.0)
            if partial is not None:
                some = some.to(partial).to(some.dtype)
            out = out * (total - safe).exp() + some * (sums - safe).exp()
            if mistake == "kept in bf16":
                out = out.bfloat16().to(query.dtype)
            total = new
        if step < call.world - 1 and mistake != "own":
            both = Pass.apply(both, call.group)
    return out / total if mistake == "merge by exp" else out


def heads(query: Tensor, key: Tensor, value: Tensor, call: Call, mistake: str) -> Tensor:
    world, count = call.world, query.shape[1]
    if len(set(call.counts)) > 1:
        raise ValueError(f"{sum(call.counts)} tokens are no multiple of {world} ranks")
    if mistake == "heads padded":
        query, key, value = (
            F.pad(each, (0, 0, 0, 0, 0, -each.shape[1] % world)) for each in (query, key, value)
        )
    else:
        key, value = (
            spread(each, count) if each.shape[1] % world else each for each in (key, value)
        )
        if count % world:
            raise ValueError(f"{count} heads are no multiple of {world} ranks")
    order = torch.cat(call.places)

    def to_heads(each: Tensor) -> Tensor:
        parts = torch.stack(each.chunk(world, 1))
        return torch.cat(list(Swap.apply(parts, call.group)), 2)

    query, key, value = map(to_heads, (query, key, value))
    if mistake not in ("rank order", "order of rows"):
        query, key, value = (each[:, :, order.argsort()] for each in (query, key, value))
    places = torch.arange(len(order))
    if mistake == "order of rows":
        # Keys and queries lie as ranks have them, and are masked so; the way back supposes the text.
        query, key, value = (each[:, :, order.argsort()] for each in (query, key, value))
    seen = visible(places, places, call.causal, call.window)
    key, value = (
        each.repeat_interleave(max(1, query.shape[1] // each.shape[1]), 1) for each in (key, value)
    )
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ value
    if mistake not in ("rank order", "order of rows"):
        out = out[:, :, order]
    parts = torch.stack(out.chunk(world, 2))
    return torch.cat(list(Swap.apply(parts, call.group)), 1)[:, :count]


@dataclass(frozen=True)
class Ours:
    """`attend` across the ranks."""

    how: str = "gather"
    mask: Callable[[], Any] | None = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mesh: Any,
        tokens: int,
        layout: str,
        causal: bool = False,
        window: tuple[int, int] | None = None,
    ) -> Tensor:
        mask = ch.causal() if causal else None
        if window is not None:
            near = ch.sliding_window(left=window[0], right=window[1])
            mask = near if mask is None else mask & near
        where = ch.across(mesh, tokens=tokens, mask=mask, layout=layout, how=self.how)
        return ch.attend(
            query,
            key,
            value,
            mask=mask,
            across=where,
        )
