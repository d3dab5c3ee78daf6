"""Both passes of the blockwise kernel, tile by tile."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import softmax_backward_
from clearhead.attention.biases import Bias, DenseBias, SelectedBias
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.attention.kernels._blockwise_work import (
    Buffer,
    Folded,
    HeadSlice,
    Pattern,
    Work,
    by_head,
    finish_scores,
    parts,
)
from clearhead.attention.kernels._kept import shown_mask
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import Tile, length


def _with_tensor(bias: Bias | None, tensor: Tensor | None) -> Bias | None:
    """Return a copy of the bias that is made of `tensor`, as autograd saved it; the bias itself if the tensor is None.

    The bias is a tensor, relative, alibi or a selection of one of these.
    """
    if tensor is None:
        return bias
    if isinstance(bias, DenseBias):
        return DenseBias(tensor)
    if isinstance(bias, SelectedBias):
        made = _with_tensor(bias.bias, tensor)
        assert made is not None
        return replace(bias, bias=made)
    return Relative(tensor) if isinstance(bias, Relative) else Alibi(tensor, follows=False)


class Sums(NamedTuple):
    """The logsumexp of each query, sinks included, as a sum of two that does not round them.

    exp((score − top) − rest) is the weight again, however large the scores are. An empty row has
    rest = ∞, and a row that sees no number has top = NaN as well. Each is (batch, num_heads,
    query_len).
    """

    top: Tensor
    rest: Tensor


def attend_small(problem: Problem) -> Tensor:
    """Return the context of a small problem without tiles, (batch, num_heads, query_len, value_head_dim), upcast.

    Bias, sinks and dropout are ignored. Queries that see no key get zeros.
    """
    query, key, value = (
        stages.upcast(each) for each in (problem.query, problem.key, problem.value)
    )
    folded = problem.batch, problem.num_kv_heads, -1, problem.query.shape[3]
    scores = (query * problem.scale).reshape(folded) @ key.mT
    scores = stages.capped_scores(scores, problem.softcap)
    seen = None
    if problem.mask is not None:
        visible, seen = shown_mask(problem)
        of_heads = scores.view(problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
        of_heads.masked_fill_(~visible, -torch.inf)
    context = torch.softmax(scores, dim=-1) @ value
    context = context.view(*problem.query.shape[:3], value.shape[3])
    return context if seen is None else context.masked_fill(~seen, 0.0)


def forward(
    work: Work, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor, Sums]:
    """Return the context, the logsumexp including the sinks, and the sums for `backward`, all in the precision of sums.

    The context is (batch, num_heads, query_len, value_head_dim), the logsumexp (batch, num_heads, query_len). A query
    that sees nothing has context 0 and the logsumexp of its sink, or −∞; one whose scores hold NaN or +∞ has NaN in
    both.
    """
    like = stages.upcast(query[:0])
    # Tokens before heads in memory: what a layer wants next.
    batch, num_heads, query_len, *_ = work.extent
    context = like.new_zeros(batch, query_len, num_heads, value.shape[3])
    context = context.transpose(1, 2)
    total = like.new_full((batch, num_heads, query_len), -torch.inf)
    if sinks is not None:
        sinks = stages.upcast(sinks)[:, None]
        total = total.copy_(sinks)
    kept = Sums(torch.zeros_like(total), torch.full_like(total, torch.inf))
    folded, buffer = Folded(work, query, key, value), Buffer(work, like)
    pattern = None if work.dropout is None else Pattern(work, like)
    for number, (tile, part, hidden, added) in enumerate(parts(work, work.bias)):
        some_query = folded.queries(tile, part)
        some_key, some_value = folded.keys(tile, part)
        shape = (*some_query.shape[:2], some_key.shape[1])
        scores = torch.bmm(some_query, some_key.mT, out=buffer.view(*shape))
        if work.softcap is not None:
            scores.tanh_().mul_(work.softcap)
        finish_scores(part, hidden, added, scores)
        place = part.rows, part.heads, tile.queries
        top = scores.amax(dim=2, keepdim=True)
        empty, broken = top == -torch.inf, ~(top < torch.inf)
        if sinks is not None:
            sink = sinks[part.heads].expand(length(part.rows), -1, length(tile.queries))
            sink = sink.reshape(top.shape)
            top = torch.where(broken, top, torch.maximum(top, sink))
        else:
            sink = None
        # Nothing may come of −∞ − −∞.
        base = top.masked_fill(empty & (top == -torch.inf), 0.0)
        weights = scores.sub_(base).exp_()
        sums = weights.sum(dim=2, keepdim=True)
        if sink is not None:
            sums += torch.exp(sink - base)
        rest = sums.log()
        for each, rows in (
            (total, (base + rest).masked_fill(broken, torch.nan)),
            (kept.top, base.masked_fill(broken, torch.nan)),
            (kept.rest, rest.masked_fill(broken | (sums == 0.0), torch.inf)),
        ):
            each[place] = rows.view(each[place].shape)
        if pattern is not None:
            weights.mul_(pattern.view(number, shape))
        mixed = torch.bmm(weights, some_value)
        mixed.div_(sums.masked_fill(empty, 1.0).masked_fill(broken, torch.nan))
        context[place] = mixed.view(context[place].shape)
    return context, total, kept


class Saved(NamedTuple):
    """The tensors between the passes.

    `tensor` is that of the bias, `context` is stored only with sinks, `top` and `rest` are the `Sums`; the others are
    the inputs.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None
    tensor: Tensor | None
    context: Tensor | None
    top: Tensor
    rest: Tensor


def backward(
    work: Work,
    wanted: tuple[bool, ...],
    saved: Saved,
    grad_context: Tensor | None,
    grad_total: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value, sinks and the bias tensor, each in its shape and dtype.

    A gradient is None where `wanted`, five booleans, is False. None for grad_context or grad_total means zeros.
    """
    query, key, value, sinks, tensor, context, top, rest = saved
    like = top[:0]
    bias = _with_tensor(work.bias, tensor)
    grad_query = torch.zeros_like(query) if wanted[0] else None
    grad_key, grad_value = (
        torch.zeros(each.flatten(0, 1).shape, dtype=like.dtype, device=work.extent.device)
        if want
        else None
        for each, want in ((key, wanted[1]), (value, wanted[2]))
    )
    grad_sinks = like.new_zeros(work.extent.num_heads) if wanted[3] else None
    grad_bias = _GradBias(work, bias, tensor) if wanted[4] else None
    folded = Folded(work, query, key, value)
    buffers = [Buffer(work, like) for _ in range(2 if work.softcap is None else 3)]
    pattern = None if work.dropout is None else Pattern(work, like)
    broken = top.isnan()
    some_broken = bool(broken.any())
    sums = Sums(top.masked_fill(broken, 0.0), rest)
    for number, (tile, part, hidden, added) in enumerate(parts(work, bias)):
        some_query = folded.queries(tile, part)
        some_key, some_value = folded.keys(tile, part)
        shape = (*some_query.shape[:2], some_key.shape[1])
        place = part.rows, part.heads, tile.queries
        rows = (*shape[:2], 1)
        capped = None
        # The very product of the forward pass: another order of summation would round otherwise, and
        # the exponential of the difference can be anything where scores are large.
        scores = torch.bmm(some_query, some_key.mT, out=buffers[0].view(*shape))
        if work.softcap is not None:
            capped = torch.tanh(scores, out=buffers[2].view(*shape))
            torch.mul(capped, work.softcap, out=scores)
        finish_scores(part, hidden, added, scores)
        scores.sub_(sums.top[place].reshape(rows)).sub_(sums.rest[place].reshape(rows))
        if some_broken:
            scores.masked_fill_(broken[place].reshape(rows), -torch.inf)
        weights = scores.exp_()
        grads = buffers[1].view(*shape)
        if grad_context is None:
            grads.zero_()
        else:
            toward = grad_context[place].reshape(*shape[:2], -1)
            torch.bmm(toward, some_value.mT, out=grads)
            if grad_sinks is not None:
                grad_sinks[part.heads] -= _negated_sink_grad(
                    sinks, context, grad_context, sums, place
                )
            dropped = weights
            if pattern is not None:
                kept = pattern.view(number, shape)
                grads.mul_(kept)
                dropped = kept.mul_(weights)
            if grad_value is not None:
                _add_to_keys(grad_value[part.folded], tile, dropped.mT, toward)
            # Weights · (gradients − Σ weights · gradients). Context · gradient is that sum too, but
            # rounded differently: where one weight is 1 the difference would not be 0.
            softmax_backward_(grads, weights)
        if grad_total is not None:
            grads.addcmul_(weights, grad_total[place].reshape(rows))
        if grad_bias is not None:
            grad_bias.add(tile, part, by_head(part, grads))
        if capped is not None:
            grads.addcmul_(grads, capped.square_(), value=-1.0)
        if grad_query is not None:
            some_grad = torch.bmm(grads, some_key).mul_(work.scale)
            grad_query[place] = some_grad.view(grad_query[place].shape).to(query.dtype)
        if grad_key is not None:
            _add_to_keys(grad_key[part.folded], tile, grads.mT, some_query, work.softcap or 1.0)
    return (
        grad_query,
        None if grad_key is None else grad_key.view(key.shape).to(key.dtype),
        None if grad_value is None else grad_value.view(value.shape).to(value.dtype),
        None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype),
        None if grad_bias is None else grad_bias.result(),
    )


def _negated_sink_grad(
    sinks: Tensor | None,
    context: Tensor | None,
    grad_context: Tensor,
    sums: Sums,
    place: tuple[slice, slice, slice],
) -> Tensor:
    """Return minus the gradient with respect to the sink logits, (heads of `place`,), from the queries of `place`.

    Args:
        sinks: (num_heads,); not None.
        context: that of the forward pass, (batch, num_heads, query_len, value_head_dim); not None.
        grad_context: its gradient.
        sums: those of the forward pass.
        place: the slices of samples, heads and queries.
    """
    assert sinks is not None
    assert context is not None
    share = stages.upcast(sinks)[place[1], None] - sums.top[place] - sums.rest[place]
    share = share.exp()
    # A query that is broken has no share in the sinks, and NaN as its context.
    lost = (grad_context[place] * context[place]).sum(dim=-1).masked_fill(share == 0.0, 0.0)
    return (share * lost).sum(dim=(0, 2))


def _add_to_keys(to: Tensor, tile: Tile, left: Tensor, right: Tensor, factor: float = 1.0) -> None:
    """Add factor · (left @ right), (heads, keys of the tile, width), to the keys of a tile in `to`, in place.

    `to` is (heads, kv_len, width).
    """
    before = 0
    for run in tile.keys:
        to[:, run].baddbmm_(left[:, before : before + length(run)], right, alpha=factor)
        before += length(run)


class _GradBias:
    """Sums the gradient of the tensor that a bias is made of over the parts of all tiles.

    Args:
        work: the work.
        bias: the bias, not None.
        tensor: its tensor, whose shape the gradient has; not None.
    """

    def __init__(self, work: Work, bias: Bias | None, tensor: Tensor | None) -> None:
        """Start with a sum of zeros, of the shape of `tensor`; neither bias nor tensor may be None."""
        assert bias is not None
        assert tensor is not None
        self.work, self.bias, self.tensor = work, bias, tensor
        # Numbers that are written once need no precision of sums.
        dtype = tensor.dtype if tensor.shape == work.extent[:4] else stages.upcast(tensor[:0]).dtype
        self.grad = torch.zeros_like(tensor, dtype=dtype)

    def add(self, tile: Tile, part: HeadSlice, grads: Tensor) -> None:
        """Add to the sum the gradients of the scores of a part, (samples, heads, queries, keys of the tile)."""
        before = 0
        for run in tile.keys:
            some = grads[..., before : before + length(run)]
            before += length(run)
            if isinstance(self.bias, DenseBias):
                places = (part.rows, part.heads, tile.queries, run)
                sizes = self.tensor.shape
                to = self.grad[
                    tuple(
                        place if size > 1 else slice(None)
                        for place, size in zip(places, sizes, strict=True)
                    )
                ]
                to.add_(some.sum_to_size(to.shape))
            else:
                self._add_described(tile, part, run, some)

    def _add_described(self, tile: Tile, part: HeadSlice, run: slice, grads: Tensor) -> None:
        """Add the gradients of the scores of one run of keys for a bias that is not a tensor.

        It is differentiated through its `block`.
        """
        work = self.work
        with torch.enable_grad():
            tensor = self.tensor.detach().requires_grad_()
            bias = _with_tensor(self.bias, tensor)
            assert bias is not None
            added = bias.block(tile.queries, run, work.extent)
        summed = grads.new_zeros(added.shape)
        if added.shape[1] == 1:
            summed += grads.sum(dim=(0, 1), keepdim=True)
        else:
            summed[:, part.heads] = grads.sum(dim=0, keepdim=True)
        (grad,) = torch.autograd.grad(added, tensor, summed.to(added.dtype))
        self.grad.add_(grad)

    def result(self) -> Tensor:
        """Return the sum, in the shape and dtype of the bias's tensor."""
        return self.grad.to(self.tensor.dtype)
