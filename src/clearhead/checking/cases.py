"""The inputs that a function of query, key and value is tried on: distinct sizes, seeded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.matching import Case
from clearhead.checking.recipes import Setting, right_visible
from clearhead.checking.subject import Subject
from clearhead.errors import ModelError

# Large enough that the weights are far from uniform, small enough that none vanishes.
SPREAD = 1.3


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call; every axis another prime where nothing is declared."""

    name: str
    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    kv_len: int
    head_dim: int
    value_head_dim: int


@dataclass(frozen=True)
class Attempt:
    """A call, what came of it, and the error if nothing did."""

    sizes: Sizes
    inputs: tuple[Tensor, ...]
    output: Tensor | None
    error: Exception | None = None


def planned(contract: Contract) -> list[Sizes]:
    """The calls to make, the most telling first."""
    num_heads, num_kv_heads = contract.heads()
    head_dim, value_dim = contract.sizes.get("head_dim"), contract.sizes.get("value_head_dim")
    even = contract.rope is not None
    reach = max((side or 0) for side in contract.window) if contract.window is not None else 0
    long = contract.sizes.get("context_length", 10**9)

    def sized(
        name: str, batch: int, heads: int, lens: tuple[int, int], dim: int, value: int | None = None
    ) -> Sizes:
        width = head_dim or dim + (dim % 2 if even else 0)
        h = num_heads or (heads if num_kv_heads is None else heads * num_kv_heads)
        return Sizes(
            name,
            batch,
            h,
            num_kv_heads or h,
            min(lens[0], long),
            min(lens[1], long),
            width,
            value_dim or value or width,
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


def inputs(
    sizes: Sizes, contract: Contract, masked: bool, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Query, key, value, and a mask that leaves each query something to see."""

    def drawn(heads: int, length: int, dim: int) -> Tensor:
        shape = (sizes.batch, heads, length, dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD

    query = drawn(sizes.num_heads, sizes.query_len, sizes.head_dim)
    key = drawn(sizes.num_kv_heads, sizes.kv_len, sizes.head_dim)
    value = drawn(sizes.num_kv_heads, sizes.kv_len, sizes.value_head_dim)
    if not masked:
        return query, key, value
    shape = (sizes.batch, 1, sizes.query_len, sizes.kv_len)
    mask = torch.rand(shape, generator=generator) < 0.6
    own = torch.arange(sizes.query_len) + sizes.kv_len - sizes.query_len
    mask[..., torch.arange(sizes.query_len), own] = True
    return query, key, value, mask


def setting(sizes: Sizes, contract: Contract, mask: Tensor | None = None) -> Setting:
    """What a recipe has to know of such a call."""
    return Setting(
        contract,
        sizes.batch,
        sizes.num_heads,
        sizes.num_kv_heads,
        sizes.query_len,
        sizes.kv_len,
        sizes.head_dim,
        sizes.value_head_dim,
        mask,
    )


def attempted(subject: Subject, sizes: Sizes, contract: Contract, seed: int) -> Attempt:
    """One call with inputs of its own; the subject gets copies."""
    generator = torch.Generator().manual_seed(seed)
    made = inputs(sizes, contract, subject.takes == "qkv,mask", generator)
    try:
        output = subject(*made).detach()
    except Exception as error:  # whatever somebody's code raises
        return Attempt(sizes, made, None, error)
    return Attempt(sizes, made, output)


def attempts(subject: Subject, contract: Contract, seed: int) -> list[Attempt]:
    """Every planned call, in float64 if the subject can, else in float32.

    Raises:
        ModelError: code `check.call`, if not even the first call works.
    """
    plan = planned(contract)
    first = attempted(subject, plan[0], contract, seed)
    if first.output is None:
        subject.use(torch.float32)
        again = attempted(subject, plan[0], contract, seed)
        if again.output is None:
            subject.use(torch.float64)
        else:
            first = again
    if first.output is not None:
        first = replace(first, output=subject.settled(first.inputs, first.output))
    if first.output is None and plan[0].value_head_dim != plan[0].head_dim:
        # Only the width of the value may be what it cannot do.
        square = replace(plan[0], value_head_dim=plan[0].head_dim)
        again = attempted(subject, square, contract, seed)
        if again.output is not None:
            return [again, first]
    if first.output is None:
        first = _with_fewer_axes(subject, first, contract, seed)
    if first.output is None:
        raise cannot_call(subject, first)
    return [first, *(attempted(subject, each, contract, seed + 1) for each in plan[1:])]


def _with_fewer_axes(subject: Subject, failed: Attempt, contract: Contract, seed: int) -> Attempt:
    """The call head by head, of what takes (batch, len, dim) or (len, dim); else the one that failed."""
    at = failed.sizes
    for axes in (3, 2):
        subject.axes = axes
        again = attempted(subject, at, contract, seed)
        wanted = at.batch, at.num_heads, at.query_len, at.value_head_dim
        if again.output is not None and again.output.shape == wanted:
            return again
    subject.axes = 4
    return failed


def cannot_call(subject: Subject, attempt: Attempt) -> ModelError:
    """The error for a subject that takes none of the inputs."""
    names = ("query", "key", "value", "mask")
    shapes = "\n".join(
        f"  {name:<6} {list(each.shape)} {str(each.dtype).removeprefix('torch.')}"
        for name, each in zip(names, attempt.inputs, strict=False)
    )
    error = attempt.error
    return ModelError(
        "check.call",
        f"{subject.name} was called with takes={subject.takes!r} and raised "
        f"{type(error).__name__}: {error}\n{shapes}\n"
        "If it needs other sizes, give them: sizes=dict(num_heads=…, head_dim=…). If it projects its "
        "inputs itself, it takes tokens: takes='x'. If it is called in another way, check a function "
        "that calls it: lambda q, k, v: attention(q, k, v, …).",
    )


def as_case(attempt: Attempt, contract: Contract, dtype: torch.dtype) -> Case | None:
    """The call as a case, the output brought to (batch, heads, len, dim) or kept merged."""
    sizes, output = attempt.sizes, attempt.output
    if output is None:
        return None
    query, key, value, *rest = attempt.inputs
    mask = rest[0] if rest else None
    merged = (sizes.batch, sizes.query_len, sizes.num_heads * sizes.value_head_dim)
    apart = (sizes.batch, sizes.num_heads, sizes.query_len, sizes.value_head_dim)
    beside = (sizes.batch, sizes.query_len, sizes.num_heads, sizes.value_head_dim)
    output = output.double()
    if tuple(output.shape) == beside and apart != beside:
        output = output.transpose(1, 2)
    if tuple(output.shape) not in (merged, apart):
        return None
    return Case(sizes.name, setting(sizes, contract, mask), query, key, value, output, dtype=dtype)


def hides_anything(cases: Sequence[Case]) -> bool:
    """Whether any query is kept from any key."""
    return any(not right_visible(case.setting).all() for case in cases)
