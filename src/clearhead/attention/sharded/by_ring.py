"""Context parallelism by ring: key blocks travel from rank to rank, and contexts are merged by logsumexp.

Each rank sends its block to the next rank while it computes with it, so that it never has more than two blocks. A
block without a visible key is passed on and not computed. In the backward pass the gradients of a block follow it and
arrive at its rank after one round (Liu et al., 2023, https://arxiv.org/abs/2310.01889).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead import stages
from clearhead.attention.kernels import blockwise, eager
from clearhead.attention.problem import Problem
from clearhead.attention.sharded.sharded_call import ShardedCall
from clearhead.masks.tiles import portions
from clearhead.sharding.collectives import waiting_for

PORTION = 2048
"""Queries at a time, so that the contexts of a block are small next to all of them."""


def refusals(call: ShardedCall) -> list[str]:
    """Return the reasons why a ring cannot run the call; [] if it can.

    They are those of the blockwise kernel, unless the tensors are on the meta device, and another kernel that was
    named.
    """
    # A plan is made of tensors without numbers.
    reasons = [] if call.problem.query.is_meta else blockwise.refusals(call.problem)
    if call.kernel not in ("auto", blockwise.NAME):
        reasons.append(
            f'kernel="{call.kernel}": a ring merges contexts by their logsumexp, which '
            f'kernel="{blockwise.NAME}" gives with its gradient'
        )
    return reasons


def attend(call: ShardedCall) -> Tensor:
    """Return the context of this rank's queries, (batch, num_heads, tokens of the rank, value_head_dim).

    The keys go round the ring once; the share of the sinks is taken at the end.
    """
    problem = call.problem
    bias = None if problem.bias is None else problem.bias.numbers
    context, total = _Ring.apply(problem.query, call.key, call.value, bias, call)
    if problem.sinks is not None:
        share = torch.sigmoid(total - stages.upcast(problem.sinks)[:, None])
        context = context * share[..., None]
    return context.to(problem.query.dtype)


class _Ring(torch.autograd.Function):
    """Attention over the keys of all ranks, without sinks: context and logsumexp, in the precision of sums."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        call: ShardedCall,
    ) -> tuple[Tensor, Tensor]:
        """Return the context and the logsumexp, (batch, num_heads, query_len), of this rank's queries over all keys."""
        wide = stages.upcast(query[:0])
        width = value.shape[3]
        context = wide.new_zeros(*query.shape[:3], width)
        total = wide.new_full(query.shape[:3], -torch.inf)

        def merge(owner: int, block: Tensor) -> None:
            """Merge the context of one rank's keys into `context` and `total`, in chunks of queries."""
            block = stages.upcast(block)
            for some in portions(query.shape[2], PORTION):
                part = stages.upcast(query[:, :, some])
                problem = _block(call, part, block, owner, some)
                if problem is None:
                    continue
                added, sums = blockwise.context_and_logsumexp(problem)
                before = total[:, :, some]
                new = torch.logaddexp(before, sums)
                place = context[:, :, some]
                place.mul_(_share(before, new)).add_(added.mul_(_share(sums, new)))
                total[:, :, some] = new

        _Round(call, torch.cat([key, value], dim=3), "keys and values").run(merge)
        ctx.save_for_backward(query, key, value, context, total)
        ctx.call, ctx.bias = call, bias
        return context, total

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of this rank's query, key, value and bias, None for the other inputs.

        The keys go round again.
        """
        query, key, value, context, total = ctx.saved_tensors
        call: ShardedCall = ctx.call
        bias: Tensor | None = ctx.bias if ctx.needs_input_grad[3] else None
        of_context, of_total = grads
        of_query = torch.zeros_like(stages.upcast(query))
        of_bias = None if bias is None else torch.zeros_like(stages.upcast(bias.detach()))

        def spread(owner: int, block: Tensor) -> Tensor:
            """Return the gradient of one rank's keys and values; add those of query and bias to their sums."""
            block = stages.upcast(block.detach()).requires_grad_()
            of_block = torch.zeros_like(block)
            for some in portions(query.shape[2], PORTION):
                part = stages.upcast(query.detach()[:, :, some]).requires_grad_()
                with torch.enable_grad():
                    problem = _block(call, part, block, owner, some)
                    if problem is None:
                        continue
                    added, sums = blockwise.context_and_logsumexp(problem)
                share = _share(sums.detach(), total[:, :, some])
                # The context is a mean of those of the blocks, weighted by their shares.
                away = added.detach() - context[:, :, some]
                moved = torch.linalg.vecdot(of_context[:, :, some], away) + of_total[:, :, some]
                found = torch.autograd.grad(
                    [added, sums],
                    [part, block, *([] if bias is None else [bias])],
                    [of_context[:, :, some] * share, moved * share[..., 0]],
                )
                places = of_query[:, :, some], of_block, *([] if of_bias is None else [of_bias])
                for place, grad in zip(places, found, strict=True):
                    place.add_(grad)
            return of_block

        both = _Round(call, torch.cat([key, value], dim=3), "keys and values")
        of_both = both.run_back(spread, of_query.dtype)
        of_key, of_value = of_both.to(key.dtype).split([key.shape[3], value.shape[3]], dim=3)
        return (
            of_query.to(query.dtype),
            of_key,
            of_value,
            None if of_bias is None or bias is None else of_bias.to(bias.dtype),
            None,
        )


class RingRounds:
    """The keys of a matrix in a ring, for statistics: each call of a method sends them round once.

    Args:
        call: the call.
    """

    def __init__(self, call: ShardedCall) -> None:
        """Store the call; nothing is sent."""
        self.call = call
        self._logsumexp: Tensor | None = None

    def each(self, use: Callable[[Problem, Tensor], None]) -> None:
        """Call `use(problem, positions)` for each rank's keys, but those that the spans hide from all queries here.

        The problem has this rank's queries and those keys, also as its value, detached; the positions are those of the
        keys. Every rank must call it.
        """
        call = self.call
        query, every = call.problem.query, slice(0, call.problem.query_len)

        def problem_of(owner: int, key: Tensor) -> None:
            """Call `use` with the problem of one rank's keys, unless no query sees one."""
            problem = _block(call, query, key, owner, every)
            if problem is not None:
                use(problem.replace(value=problem.key), call.of_keys.positions_of(owner))

        _Round(call, call.key.detach(), "keys").run(problem_of)

    def logsumexp(self) -> Tensor:
        """Return the logsumexp of this rank's queries over all keys, (batch, num_heads, query_len), detached.

        The first call passes the keys around the ring, so that every rank must make it.
        """
        if self._logsumexp is None:
            query = self.call.problem.query
            total = stages.upcast(query[:0]).new_full(query.shape[:3], -torch.inf)

            def add(problem: Problem, places: Tensor) -> None:
                """Merge the logsumexp over some keys into `total`, in place."""
                exact = eager if blockwise.refusals(problem) else blockwise
                torch.logaddexp(total, exact.logsumexp(problem), out=total)

            with torch.no_grad():
                self.each(add)
            self._logsumexp = total
        return self._logsumexp

    def gather(self) -> Tensor:
        """Return the keys of all ranks, (batch, num_kv_heads, kv_len, head_dim), on every rank, with gradients.

        All must call it.
        """
        return self.call.of_keys.gather_unchecked(self.call.key, 2, "keys")


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Return exp(part − whole) with a last axis of size 1 added; 0 where `part` is −∞."""
    return torch.exp(part - whole).masked_fill(part == -torch.inf, 0.0)[..., None]


def _block(
    call: ShardedCall, query: Tensor, both: Tensor, owner: int, some: slice
) -> Problem | None:
    """Return the problem, without sinks, of some of this rank's queries over the keys of rank `owner`.

    None if there are no queries or keys, or if the spans show that no query sees a key.

    Args:
        call: the call.
        query: the queries of the slice `some`.
        both: keys and values of the owner, concatenated along the last axis.
        owner: a rank.
        some: a slice of this rank's queries.
    """
    rows, columns = call.of_queries.positions[some], call.of_keys.positions_of(owner)
    width = call.problem.key.shape[3]
    key, value = both[..., :width], both[..., width:]
    problem = call.part(query, key, value, rows=rows, columns=columns)
    # The share of the sinks is taken of the whole.
    problem = problem.replace(sinks=None)
    if not problem.query_len or not problem.kv_len:
        return None
    spans = problem.spans
    if spans is not None and not bool((spans.stop > spans.start).any()):
        return None
    return problem


class _Round:
    """One round of the blocks of all ranks, which runs once: this rank's block is freed when it was passed on.

    Args:
        call: the call.
        block: this rank's, (batch, num_kv_heads, tokens of the rank, dim).
        what: what goes round, for errors.
    """

    def __init__(self, call: ShardedCall, block: Tensor, what: str) -> None:
        """Store this rank's block, made contiguous; nothing is sent."""
        self.held, self.what, self.shape = call.of_keys, what, block.shape
        self.own = [block.contiguous()]

    def run(self, use: Callable[[int, Tensor], None]) -> None:
        """Call `use(rank, block)` with each rank's block, starting with this rank's own.

        The next block arrives meanwhile.
        """
        block = self.own.pop()
        for step in range(self.held.world):
            moved, wait = self._pass(block, step)
            use(self._owner(step), block)
            wait()
            block = moved

    def run_back(self, use: Callable[[int, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        """Return the sum, in `dtype`, of the gradients of this rank's block that `use(rank, block)` returns.

        Each rank computes its part, and the sum travels behind the block.
        """
        block, travelling = self.own.pop(), None
        mine = block.new_zeros(self.shape, dtype=dtype)
        for step in range(self.held.world):
            moved, wait = self._pass(block, step)
            found = use(self._owner(step), block)
            if step == 0:
                mine += found
            else:
                if travelling is None:
                    travelling = block.new_zeros(block.shape, dtype=dtype)
                travelling += found
                travelling, arrive = self._send(travelling, step, f"the gradients of {self.what}")
                arrive()
            wait()
            block = moved
        return mine if travelling is None else mine + travelling

    def _owner(self, step: int) -> int:
        """Return the rank whose block is here after `step` steps."""
        return (self.held.rank - step) % self.held.world

    def _pass(self, block: Tensor, step: int) -> tuple[Tensor, Callable[[], None]]:
        """Start to send a block to the next rank; return the block that arrives, and a function that waits for it.

        In the last step nothing is sent: the block itself, and a no-op.
        """
        if step == self.held.world - 1:
            return block, lambda: None
        return self._send(block, step, self.what)

    def _send(self, tensor: Tensor, step: int, what: str) -> tuple[Tensor, Callable[[], None]]:
        """Start to send a block to the next rank; return the block that arrives, and a function that waits for it.

        The arriving block, (batch, heads, tokens of its owner, dim), has the same dtype, and is undefined until then.
        Waiting raises RankError if a rank is lost. `what` names the block in that error.
        """
        held = self.held
        batch, heads, _, width = self.shape
        count = held.counts[self._owner(step + 1)]
        arriving = tensor.new_empty(batch, heads, count, width)
        operations = [
            dist.P2POp(call, each, group=held.group, group_peer=(held.rank + ahead) % held.world)
            for call, each, ahead in ((dist.isend, tensor, 1), (dist.irecv, arriving, -1))
            if each.numel()
        ]

        def wait() -> None:
            """Wait until the block has been sent and the other one has arrived; raise RankError if a rank is lost."""
            with waiting_for(what):
                for each in works:
                    each.wait()

        with waiting_for(what):
            works = dist.batch_isend_irecv(operations) if operations else []
        return arriving, wait
