"""Evidence of a function that ranks call together: forward and backward, on lengths that divide and on some
that do not, with large scores, and with dropout."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.attempts import NAMES, CallSizes, drawn, heads_first
from clearhead.checking.evidence.base import Settled
from clearhead.checking.evidence.training import Training
from clearhead.checking.hypotheses.matching import Explanation, Trial, explain
from clearhead.checking.hypotheses.recipe import RIGHT, right_visible
from clearhead.checking.hypotheses.stage_edit import StageEdit
from clearhead.checking.ranks import rank_gradients
from clearhead.checking.ranks.dropped import Dropped
from clearhead.checking.ranks.launching import AskedOfRanks, Outcome, failures_of
from clearhead.checking.ranks.placement import Placement, placement
from clearhead.checking.ranks.rank_calls import RankCall, RankResult, gathered, takes_dropout
from clearhead.checking.ranks.rank_gradients import RankGradients
from clearhead.checking.ranks.rank_mutants import mutants
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ModelError

LENGTHS = (23, 29)
"""Primes, which no number of ranks divides."""

OVERFLOWS = 1000.0
"""A score whose exponential is beyond float64, and beyond 0 with the other sign."""
FITS = 300.0
"""One whose exponential is not."""


@dataclass(frozen=True)
class Made:
    """A call, and what came of it on every rank."""

    sizes: CallSizes
    call: RankCall
    here: Placement
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> dict[int, Any]:
        """The failures, by rank."""
        return failures_of(self.outcomes)

    @property
    def results(self) -> list[RankResult]:
        return [each for each in self.outcomes if isinstance(each, RankResult)]

    def rows(self) -> list[Tensor | None]:
        """The context of each rank, (batch, heads, its tokens, dim), or None in another shape."""
        return [
            _as_heads(each.outputs[0], self.sizes, count)
            for each, count in zip(self.results, self.here.counts, strict=True)
        ]

    def context(self) -> Tensor | None:
        """The context of all tokens, in the order of the text; None in another shape."""
        rows = [each for each in self.rows() if each is not None]
        return gathered(rows, self.here.positions) if len(rows) == len(self.here.counts) else None

    def grads(self) -> tuple[Tensor | None, ...]:
        """The gradients of query, key and value of all tokens; None where no rank has one."""
        found: list[Tensor | None] = []
        for index, whole in enumerate(self.call.inputs[:3]):
            mine = [each.grads[index] if each.grads else None for each in self.results]
            if all(each is None for each in mine):
                found.append(None)
                continue
            parts = [
                whole.index_select(2, positions) * 0 if each is None else each
                for each, positions in zip(mine, self.here.positions, strict=True)
            ]
            found.append(gathered(parts, self.here.positions))
        return tuple(found)


def _as_heads(output: Tensor, sizes: CallSizes, count: int) -> Tensor | None:
    found = heads_first(output, sizes.num_heads, count)
    expected = sizes.batch, sizes.num_heads, count, sizes.value_head_dim
    return found if tuple(found.shape) == expected else None


@dataclass(frozen=True, eq=False)
class RanksEvidence(AskedOfRanks):
    """Evidence of f(query, key, value, …) on the tokens of each rank."""

    def _sizes(self, name: str, tokens: int, batch: int, heads: int, dim: int) -> CallSizes:
        world = self.contract.world or 1
        num_heads, num_kv_heads = self.contract.heads()
        h = num_heads or heads * world * (num_kv_heads or 1)
        width = self.contract.sizes.get("head_dim") or dim + (
            dim % 2 if self.contract.rope is not None else 0
        )
        return CallSizes(name, batch, h, num_kv_heads or h, tokens, tokens, width, width)

    @cached_property
    def plan(self) -> tuple[CallSizes, ...]:
        """Two calls whose lengths divide."""
        world = self.contract.world or 1
        reach = max((side or 0) for side in self.contract.window or (0,))
        most = 2 * world * max(5, -(-(reach + 3) // (2 * world)))
        return (
            self._sizes(f"{most} tokens", most, 2, 1, 5),
            self._sizes(f"{most - 2 * world} tokens", most - 2 * world, 1, 2, 7),
        )

    def make(self, sizes: CallSizes, seed: int, **more: Any) -> Made:
        """Make a call of these sizes; `more` are fields of it."""
        inputs = more.pop("inputs", None) or drawn(sizes, self.given.takes == "qkv,mask", seed)
        generator = torch.Generator().manual_seed(seed + 100)
        shape = (sizes.batch, sizes.num_heads, sizes.query_len, sizes.value_head_dim)
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        here = placement(sizes.query_len, self.contract)
        options = {
            "causal": bool(self.contract.causal),
            "window": self.contract.window,
            "scale": self.contract.scale,
            "softcap": self.contract.softcap,
            "layout": self.contract.layout or "contiguous",
        }
        options |= more.pop("options", {})
        call = RankCall(
            inputs,
            more.pop("grad", grad),
            here.positions,
            {name: value for name, value in options.items() if value is not None},
            **more,
        )
        return Made(sizes, call, here, tuple(self.ranks.run(self.subject, call)))

    @cached_property
    def _first(self) -> tuple[Subject, Made]:
        """The first call, in the precision in which it works."""
        made = self._within(self.given)
        if made.failures and not self._apart(made.outcomes):
            single = self.given.within(torch.float32)
            other = self._within(single)
            if not other.failures:
                return single, other
        return self.given, made

    def _within(self, subject: Subject) -> Made:
        other = replace(self)
        vars(other)["subject"] = subject
        return other.make(self.plan[0], self.seed, repeats=3)

    @cached_property
    def subject(self) -> Subject:
        """The subject in the precision in which it is called."""
        return self._first[0]

    @property
    def main(self) -> Made:
        """The first call."""
        return self._first[1]

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return self.main.outcomes

    @cached_property
    def settled(self) -> Settled:
        """The first call, as other evidence has it.

        Raises:
            ModelError: code `check.output`, if it gives something else than a context.
        """
        inputs: dict[str, Tensor] = dict(zip(NAMES, self.main.call.inputs, strict=False))
        if self.main.failures:
            words = "; ".join(f"rank {rank}: {each}" for rank, each in self.main.failures.items())
            return Settled(self.subject, inputs, error=RuntimeError(words))
        if self.main.context() is None and not self.short:
            here, sizes = self.main.here.counts, self.main.sizes
            shapes = ", ".join(str(list(each.outputs[0].shape)) for each in self.main.results)
            raise ModelError(
                "check.output",
                f"{self.given.name} must give the context of each rank's own queries, (batch, "
                f"num_heads, tokens of the rank, value_head_dim), or heads side by side; ranks with "
                f"{list(here)} tokens and {sizes.num_heads} heads gave {shapes}.",
            )
        return Settled(self.subject, inputs, self.main.context())

    def call_error(self, error: Exception) -> ModelError:
        """The error for a subject that no rank can call."""
        shapes = "\n".join(
            f"  {name:<7} {list(each.index_select(2, self.main.here.positions[0]).shape)} on rank 0"
            for name, each in zip(("query", "key", "value"), self.main.call.inputs, strict=False)
        )
        return ModelError(
            "check.ranks",
            f"{self.given.name} was called on {self.contract.world} ranks and raised on all of them. "
            f"{error}\n{shapes}\nIf it needs other sizes, give them: num_heads=…, num_kv_heads=…, "
            "sizes=dict(head_dim=…). What it takes beside query, key and value is handed over by its "
            "name: mesh, group, rank, world, tokens, positions, layout, causal, window, dropout.",
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that it was run with."""
        main = self.plan[0]
        names = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")
        return {name: getattr(main, name) for name in names}

    @cached_property
    def _made(self) -> list[Made]:
        """Every call whose outputs are held against the definition."""
        made = [self.main, self.make(self.plan[1], self.seed + 1)]
        if made[1].failures:  # it is made for the sizes of the first
            made[1] = self.make(self.plan[0], self.seed + 1)
        if self.ranks.own:
            made += self.uneven
        return made

    @cached_property
    def uneven(self) -> list[Made]:
        """Calls of lengths that no number of ranks divides; the second only where the first worked."""
        main = self.plan[0]
        found: list[Made] = []
        for number, length in enumerate(LENGTHS):
            sizes = replace(main, name=f"{length} tokens", query_len=length, kv_len=length)
            found.append(self.make(sizes, self.seed + 2 + number))
            if found[-1].failures:
                break
        return found

    @cached_property
    def short(self) -> tuple[Made, int, int] | None:
        """The first call in which a rank gives fewer rows than it has queries: which, and how many."""
        calls = [self.main] if self.main.context() is None else self._made
        for made in calls:
            if made.failures:
                continue
            for rank, (each, count) in enumerate(zip(made.results, made.here.counts, strict=True)):
                rows = [
                    rows
                    for rows in range(1, count)
                    if _as_heads(each.outputs[0], made.sizes, rows) is not None
                ]
                if made.rows()[rank] is None and rows:
                    return made, rank, rows[0]
        return None

    @cached_property
    def usable(self) -> list[Made]:
        """The calls that gave a context."""
        return [each for each in self._made if not each.failures and each.context() is not None]

    @cached_property
    def trials(self) -> list[Trial]:
        """The calls, as one process would make them."""
        found = []
        for made in self.usable:
            context = made.context()
            assert context is not None
            query, key, value, *rest = made.call.inputs
            setting = made.sizes.setting(self.contract, rest[0] if rest else None)
            found.append(
                Trial(made.sizes.name, setting, query, key, value, context, self.subject.dtype)
            )
        return found

    def mutants(self, contract: Contract) -> list[StageEdit]:
        """The mistakes that are possible under a contract."""
        masked = any(not right_visible(each.under(contract).setting).all() for each in self.trials)
        uneven = any(len(set(each.here.counts)) > 1 for each in self.usable)
        given = self.given.takes == "qkv,mask"
        return mutants(contract, given=given, masked=masked, uneven=uneven)

    @cached_property
    def explained(self) -> Explanation:
        """The recipe that it follows."""
        return explain(self.trials, self.contract, self.mutants)

    @cached_property
    def repetition(self) -> float:
        """The difference of equal calls, of the largest number."""
        worst = 0.0
        for each in self.main.results:
            first = each.outputs[0].nan_to_num()
            size = max(float(first.abs().max()) if first.numel() else 0.0, 1e-30)
            for other in each.outputs[1:]:
                if other.numel():
                    worst = max(worst, float((other.nan_to_num() - first).abs().max()) / size)
        return worst

    @cached_property
    def gradients(self) -> list[RankGradients]:
        """The gradients of every call, beside those of the recipe that it follows."""
        found = []
        for made, trial in zip(self.usable, self.trials, strict=True):
            assert made.call.grad is not None
            trial = trial.under(self.explained.contract)
            parts = rank_gradients.parts_of(trial, self.explained.recipe, made.call.grad, made.here)
            found.append(RankGradients(made.grads(), parts, made.here))
        return found

    @cached_property
    def gradients_explained(self) -> Mapping[str, list[tuple[str, str]]]:
        """For query, key and value, where they are not right, the mistakes that give the same."""
        return rank_gradients.explained(self.gradients)

    @cached_property
    def large(self) -> list["Large"]:
        """Two calls with scores beyond what an exponential bears."""
        return [self._large(self.plan[number], self.seed + 7 + number) for number in range(2)]

    def _large(self, sizes: CallSizes, seed: int) -> "Large":
        query, key, value, *rest = drawn(sizes, self.given.takes == "qkv,mask", seed)
        at = sizes.setting(self.explained.contract, rest[0] if rest else None)
        # Each query has its own size of score, and every key the same number to be multiplied by.
        wanted = torch.tensor([OVERFLOWS, FITS, -OVERFLOWS, -FITS]).repeat(sizes.query_len)
        wanted = wanted[: sizes.query_len].double() / RIGHT.scale(at)
        query[..., 0], key[..., 0] = wanted, 1.0
        made = self.make(sizes, seed, inputs=(query, key, value, *rest), grad=None)
        expected = RIGHT.styled("zero").heads(query, key, value, at)
        beyond = (wanted.abs() * RIGHT.scale(at)) > 700
        context = None if made.failures else made.context()
        return Large(context, expected, beyond)

    @cached_property
    def dropped(self) -> tuple[Dropped, ...]:
        """The weights that fall in two calls whose ranks have seeds of their own, and in one whose ranks
        have the same."""
        if not self.contract.dropout or not takes_dropout(self.given):
            return ()
        world = self.contract.world or 1
        seeds = [tuple(range(first, first + world)) for first in (11, 51)]
        return tuple(
            each
            for each in (self._dropped(some) for some in (*seeds, (7,) * world))
            if each is not None
        )

    @property
    def written(self) -> tuple[str, ...]:
        """The inputs that are written to, on any rank."""
        return tuple(dict.fromkeys(name for each in self.main.results for name in each.written))

    @cached_property
    def training(self) -> Training:
        """The effects of dropout, where it is declared."""
        if not self.dropped:
            return Training("dropout-ranks")
        varies = any(bool(each.gone.any()) for each in self.dropped)
        places = ("weights",) * varies
        kept = self.dropped[0].kept
        return Training(varies=varies, places=places, kept=kept, still="no-zeros")

    def _dropped(self, seeds: tuple[int, ...]) -> Dropped | None:
        sizes = replace(self.plan[0], value_head_dim=self.plan[0].kv_len)
        query, key, _, *rest = drawn(sizes, self.given.takes == "qkv,mask", self.seed)
        eye = torch.eye(sizes.kv_len, dtype=torch.float64)
        value = eye.expand(sizes.batch, sizes.num_kv_heads, -1, -1).contiguous()
        made = self.make(
            sizes,
            self.seed,
            inputs=(query, key, value, *rest),
            grad=None,
            seeds=seeds,
            training=True,
            options={"dropout": self.contract.dropout},
        )
        context = None if made.failures else made.context()
        if context is None:
            return None
        at = sizes.setting(self.explained.contract, rest[0] if rest else None)
        weights = RIGHT.weights(query, key, at)
        return Dropped(context, weights, made.here)


@dataclass(frozen=True)
class Large:
    """A call with large scores: its context, None if it failed, what the definition gives, and the
    queries whose exponential is beyond float64."""

    context: Tensor | None
    expected: Tensor
    beyond: Tensor
