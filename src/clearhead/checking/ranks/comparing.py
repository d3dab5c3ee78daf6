"""Compare the outputs and gradients of all ranks with the definition on one process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead._common.layouts import layout_of
from clearhead.checking import words
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.attempts import CallSizes, drawn
from clearhead.checking.hypotheses.matching import contracts
from clearhead.checking.hypotheses.recipe import RIGHT, band
from clearhead.checking.ranks.launching import CallersRanks, StartedRanks
from clearhead.checking.ranks.rank_calls import KNOWN, Failure, Outcome, RankCall, RankResult
from clearhead.checking.report import Finding, Report
from clearhead.checking.reporting import defined_at
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import FAR, SUMMED
from clearhead.errors import ArgumentError, ModelError

MOST = 64
"""Processes that are started."""
UNEVEN = 23
"""A prime number of tokens, which no number of ranks divides."""
LARGE = 1000.0
"""A factor of the queries by which the exponentials of most scores are beyond float64."""

Ranks = CallersRanks | StartedRanks


@dataclass(frozen=True, eq=False)
class Compared:
    """A call on all ranks, to be compared with the same call of the definition.

    `outcomes` has one entry for each rank: its result, or the failure.
    """

    name: str
    call: RankCall
    sizes: CallSizes
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> dict[int, Failure]:
        """The failures, by the rank."""
        return {n: each for n, each in enumerate(self.outcomes) if isinstance(each, Failure)}

    @property
    def results(self) -> list[RankResult]:
        """The results, one for each rank that has one."""
        return [each for each in self.outcomes if isinstance(each, RankResult)]

    @property
    def misshapen(self) -> str:
        """A sentence on the ranks whose output is not the context of their own queries; "" if there are none.

        Every rank must have a result.
        """
        s, texts = self.sizes, []
        for rank, (each, here) in enumerate(zip(self.results, self.call.positions, strict=True)):
            if each.output.shape != (s.batch, s.num_heads, len(here), s.value_head_dim):
                texts.append(
                    f"rank {rank} has {len(here)} queries and returns {[*each.output.shape]}"
                )
        return "; ".join(texts)

    def differences(self, contract: Contract) -> Iterator[tuple[str, str, str]]:
        """Yield (code, name, places) for the output and each gradient that differs from the definition.

        Code is "differs" or "grad.wrong", name "output", "query", "key" or "value". Every rank must have a result.
        Without `grad` the tolerance is larger, and no gradient is compared.
        """
        leaves = [each.clone().requires_grad_() for each in self.call.inputs[:3]]
        setting = self.sizes.setting(contract, *self.call.inputs[3:])
        output = RIGHT.styled("zero").heads(leaves[0], leaves[1], leaves[2], setting)
        share = FAR if self.call.grad is None else SUMMED
        if text := self._places([each.output for each in self.results], output, share):
            yield "differs", "output", text
        if self.call.grad is None:
            return
        wanted = torch.autograd.grad(output, leaves, self.call.grad)
        for index, name in enumerate(("query", "key", "value")):
            grads = [each.grads[index] for each in self.results]
            if all(each is None for each in grads):
                yield "grad.wrong", name, f"{self.name}: no rank has one"
            elif text := self._places(grads, wanted[index], SUMMED):
                yield "grad.wrong", name, text

    def _places(self, parts: Sequence[Tensor | None], expected: Tensor, share: float) -> str:
        """Return in words the tokens of each rank that differ by more than a share of the largest number.

        "" if none do. A part that is None counts as 0, and NaN as a difference.
        """
        texts = []
        for rank, (part, here) in enumerate(zip(parts, self.call.positions, strict=True)):
            wanted = expected[:, :, here]
            gaps = wanted.abs() if part is None else (part - wanted).abs().nan_to_num(torch.inf)
            gaps = gaps.amax((0, 1, 3)) / expected.abs().max().clamp_min(1e-30)
            if (bad := gaps > share).any():
                at, gap = _runs(here[bad]), f"{float(gaps.max()):.2g}"
                texts.append(f"rank {rank} at tokens {at}, by up to {gap} of the largest number")
        return f"{self.name}: {'; '.join(texts)}" if texts else ""


def _runs(numbers: Tensor) -> str:
    """Return numbers in order as text, consecutive ones as runs: "0 to 3, 7"."""
    groups = groupby(enumerate(sorted(numbers.tolist())), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in groups]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def positions_of(tokens: int, contract: Contract) -> tuple[Tensor, ...]:
    """Return the tokens of each rank, a tensor of indices each, by the layout of the contract.

    "balanced" counts the pairs that causal and the window leave.
    """
    left, right = contract.window or (None, None)
    ahead = min([0] * bool(contract.causal) + ([] if right is None else [right]), default=None)
    name = contract.layout or "contiguous"
    pairs = band(tokens, tokens, 0, left, ahead).sum(-1).double()
    order, counts = layout_of(name, tokens, contract.world or 1, lambda: pairs)
    return order.split(counts)


def call_ranks(
    subject: Subject, ranks: Ranks, sizes: CallSizes, seed: int, factor: float = 1.0
) -> Compared:
    """Make a call with random inputs on all ranks, and return it with its outcomes.

    A factor of the queries other than 1 makes large scores, and leaves out the gradient.
    """
    contract, tokens = subject.contract, sizes.query_len
    query, *others = drawn(sizes, subject.takes == "qkv,mask", seed)
    generator = torch.Generator().manual_seed(seed + 100)
    grad = torch.randn(query.shape, generator=generator, dtype=torch.float64)
    options = {name: getattr(contract, name) for name in ("window", "scale", "softcap")}
    options |= {"causal": bool(contract.causal), "layout": contract.layout or "contiguous"}
    inputs, places = (query * factor, *others), positions_of(tokens, contract)
    call = RankCall(inputs, grad if factor == 1 else None, places, options)
    name = f"{tokens} tokens{', large scores' * (factor != 1)}"
    return Compared(name, call, sizes, ranks.run(subject, call))


def report_of(subject: Subject, seed: int, ranks: Ranks) -> Report:
    """Return the report about a subject on ranks, called in float64, or in float32 if it raises on all of them.

    A rank without a result in the first call is a finding. Of later calls, with large scores and of other sizes, a
    failure is a note, and an output of another shape a finding.

    Raises:
        ModelError: code `check.ranks`, if it raises on all ranks in both, or the ranks cannot be started;
            `check.output`, if an output of the first call has another shape.
    """
    contract, world = subject.contract, subject.contract.world or 1
    num_heads, num_kv_heads = contract.heads()
    reach = max((side or 0) for side in contract.window or (0,))
    even = 2 * world * max(5, -(-(reach + 3) // (2 * world)))

    def sizes(tokens: int, batch: int, heads: int, dim: int) -> CallSizes:
        """Return the sizes of a call; declared heads and head_dim replace `heads` (per rank) and `dim`."""
        h = num_heads or heads * world * (num_kv_heads or 1)
        dim = contract.sizes.get("head_dim") or dim + (dim % 2 if contract.rope is not None else 0)
        return CallSizes("", batch, h, num_kv_heads or h, tokens, tokens, dim, dim)

    for used in (subject, subject.within(torch.float32)):
        main = call_ranks(used, ranks, sizes(even, 2, 1, 5), seed)
        if [each.kind for each in main.failures.values()] != ["raises"] * world:
            break
    else:
        errors = "; ".join(f"rank {rank} {each}" for rank, each in main.failures.items())
        raise ModelError(
            "check.ranks",
            f"{subject.name} was called on {world} ranks and raised on all of them: {errors}. If it needs "
            f"other sizes, give them: num_heads=…, num_kv_heads=…, sizes=dict(head_dim=…). Passed by name: {KNOWN}.",
        )
    told: list[str] = []
    if main.failures:
        findings = [_stuck(main.failures, world)]
    elif main.misshapen:
        raise ModelError(
            "check.output",
            f"{subject.name} must return the context of each rank's own queries, (batch, num_heads, "
            f"tokens of the rank, value_head_dim), or with heads merged: {main.misshapen}.",
        )
    else:
        calls = [main, call_ranks(used, ranks, main.sizes, seed + 7, LARGE)]
        calls += [call_ranks(used, ranks, sizes(even - 2 * world, 1, 2, 7), seed + 1)]
        # In a group of the caller's a rank that fails would take the others with it.
        calls += [call_ranks(used, ranks, sizes(UNEVEN, 2, 1, 5), seed + 2)] if ranks.own else []
        refused = [(each.name, *min(each.failures.items())) for each in calls if each.failures]
        told += [f"{name}: rank {rank} {why}" for name, rank, why in refused]
        findings, filled = _findings([each for each in calls if not each.failures], contract)
        if contract.causal is None and not findings:
            told.append(words.filled("note", "causal", {"causal": filled.causal}))
    ticks = f"{world} ranks, {contract.layout or 'contiguous'}", "outputs", "gradients"
    names = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")
    return Report(
        subject.name,
        tuple(findings),
        () if findings else ticks,
        tuple(told),
        sizes=tuple((name, getattr(main.sizes, name)) for name in names),
        unverified=("dropout: it is not checked on ranks",) if contract.dropout else (),
        place=defined_at(subject),
    )


def _findings(calls: Sequence[Compared], contract: Contract) -> tuple[list[Finding], Contract]:
    """Return what differs from the definition, and the contract that leaves the fewest differences.

    Without declared causality both are compared. Gradients are reported only if no output differs.
    """
    texts = [f"{each.name}: {each.misshapen}" for each in calls if each.misshapen]
    if texts:
        return [_finding("differs", texts)], contract
    found = [
        ([wrong for each in calls for wrong in each.differences(filled)], filled)
        for filled in contracts(contract)
    ]
    wrong, filled = min(found, key=lambda each: len(each[0]))
    kinds = dict.fromkeys(each[:2] for each in wrong)
    kinds = [each for each in kinds if each[0] == "differs"] or kinds
    return [
        _finding(kind[0], [each[2] for each in wrong if each[:2] == kind], names=kind[1])
        for kind in kinds
    ], filled


def _stuck(failures: Mapping[int, Failure], world: int) -> Finding:
    """Return the finding for ranks without a result, about the first kind of failure that one of them has.

    The order of kinds is "ended", "raises", "runs", "hangs".
    """
    kinds = [each.kind for each in failures.values()]
    kind = min(kinds, key=("ended", "raises", "runs", "hangs").index)
    first = {rank: each for rank, each in failures.items() if each.kind == kind}
    text = "; ".join(f"rank {n} {failures.get(n, 'returned')}" for n in range(world))
    found = _finding(
        "call.raises",
        [text],
        "alone" if kind == "raises" else kind,
        ranks=" and ".join(map(str, first)),
    )
    return replace(found, place=next(iter(first.values())).at)


def _finding(code: str, texts: Sequence[str], way: str = "ranks", **values: Any) -> Finding:
    """Return a finding on ranks, measured by the first text; the names of the other texts follow it."""
    sentence, likely = words.sentence(code, way, values), words.likely(code, way, values)
    others = "; also with ".join(["", *(each.partition(":")[0] for each in texts[1:])])
    return Finding(code, sentence, texts[0] + others, likely)


def on_ranks(subject: Subject, seed: int) -> Report:
    """Return the report about a subject on ranks that are started for it, or on those of the caller's process group.

    Every rank of the caller gets the same report. The contract must declare `world`.

    Raises:
        ArgumentError: codes `check.takes`, `check.world`.
        ModelError: as `report_of`, and if the ranks cannot be started.
    """
    world = subject.contract.world
    assert world is not None
    if not subject.takes.startswith("qkv"):
        text = f'ranks are given query, key and value, takes="qkv" or "qkv,mask"; got {subject.takes!r}.'
        raise ArgumentError("check.takes", text)
    if dist.is_available() and dist.is_initialized():
        if (size := dist.get_world_size()) != world:
            text = f"world must be that of the process group, {size}; got {world}."
            raise ArgumentError("check.world", text)
        return report_of(subject, seed, CallersRanks())
    if world > MOST:
        text = f"world must be {MOST} or less, each a process; got {world}."
        raise ArgumentError("check.world", text)
    with closing(StartedRanks(subject, world)) as ranks:
        return report_of(subject, seed, ranks)
