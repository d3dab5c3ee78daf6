"""A reading of a module as cases: its query, key and value in the shapes that a recipe takes.

What is not declared leaves several ways: which heads lie where in a fused projection, how many
heads there are, whether positions are rotated. Any way in which the module is right is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.matching import Case
from clearhead.checking.reading import Reading, read
from clearhead.checking.recipes import Setting
from clearhead.checking.subject import Subject

# Numbers in a matrix from which their spread can be judged.
FEW = 64
# Orders in which a fused projection may hold its parts, beside one after the other.
FUSED = ("heads first", "heads, dims, qkv", "dims, heads, qkv", "qkv, dims, heads")


@dataclass
class Way:
    """One way to read a module, for every input; `sure` if nothing was guessed, `fused` if only the
    order in a fused projection was."""

    contract: Contract
    cases: list[Case] = field(default_factory=list)
    told: tuple[str, ...] = ()
    sure: bool = True
    fused: bool = False
    plain: bool = False
    spread: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Parts:
    """Query, key and value of one call: (batch, len, width) side by side, or heads apart."""

    query: Tensor
    key: Tensor
    value: Tensor
    flat: bool
    num_heads: int
    num_kv_heads: int


def cases_of(
    subject: Subject,
    inputs: Sequence[tuple[Tensor, ...]],
    num_heads: int | None,
    contract: Contract,
    d_in: int,
    *,
    padded: bool = False,
) -> list[Way]:
    """Every way to read the module, the most likely first; none if nothing can be read."""
    ways: dict[tuple[object, ...], Way] = {}
    calls = 0
    for given in inputs:
        found = read(subject, given)
        calls += 1
        for index, reading in enumerate(found):
            for key, case, told, sure in _ways(
                reading, given, subject, num_heads, contract, d_in, padded
            ):
                fused = key[0] in FUSED and not told and key[2] != "residual"
                way = ways.setdefault(
                    (index, *key), Way(case.setting.contract, told=told, sure=sure, fused=fused)
                )
                way.cases.append(case)
                way.plain = reading.plain
                way.spread = _spread(reading)
    return [way for way in ways.values() if len(way.cases) == calls]


def _ways(
    reading: Reading,
    given: tuple[Tensor, ...],
    subject: Subject,
    num_heads: int | None,
    contract: Contract,
    d_in: int,
    padded: bool,
) -> Iterator[tuple[tuple[object, ...], Case, tuple[str, ...], bool]]:
    x = given[0]
    assert reading.output is not None
    targets = {"context": reading.context} if reading.context is not None else {}
    targets["output"] = reading.output
    if reading.output.shape == x.shape and reading.context is None:
        targets["residual"] = reading.output - x.to(reading.output.dtype)
    for name, parts in _after_norms(reading, num_heads, contract):
        for rope, told in _ropes(contract, reading, parts):
            for where, target in targets.items():
                if where == "output" and "context" in targets and reading.finish is None:
                    continue
                shaped = _shaped(target, parts)
                if shaped is None:
                    continue
                setting = _setting(parts, rope, d_in)
                if padded:
                    setting = setting._replace(mask=given[1][:, None, None, :])
                case = Case(
                    f"{x.shape[-2]} tokens",
                    setting,
                    parts.query.double(),
                    parts.key.double(),
                    parts.value.double(),
                    shaped.double(),
                    flat=parts.flat,
                    finish=reading.finish,
                    dtype=subject.dtype,
                    kept=given[1] if padded else None,
                )
                sure = num_heads is None or name in ("read", "heads", "chunks")
                sure &= where != "residual"
                yield (name, told, where), case, told, sure


def _parts(
    reading: Reading, num_heads: int | None, contract: Contract
) -> Iterator[tuple[str, Parts]]:
    roles = reading.by_role
    declared_kv = contract.heads()[1]
    if "qkv" in roles:
        yield from _fused(roles["qkv"][0], num_heads, declared_kv)
        return
    if "kv" in roles and "q" in roles:
        key, value = _batched(roles["kv"][0]).chunk(2, -1)
        yield from _apart("chunks", _batched(roles["q"][0]), key, value, num_heads)
        return
    if not {"q", "k", "v"} <= set(roles):
        return
    queries, keys, values = ([_batched(each) for each in roles[which]] for which in "qkv")
    if len(queries) > 1:
        if len(queries) % len(keys) or len(keys) != len(values):
            return
        same = all(len({each.shape for each in some}) == 1 for some in (queries, keys, values))
        if same:
            stacked = [torch.stack(some, 1) for some in (queries, keys, values)]
            yield "heads", Parts(*stacked, False, len(queries), len(keys))  # type: ignore[arg-type]
        return
    query, key, value = queries[0], keys[0], values[0]
    yield from _apart("read", query, key, value, num_heads)


def _after_norms(
    reading: Reading, num_heads: int | None, contract: Contract
) -> Iterator[tuple[str, Parts]]:
    """The parts, after the norms of query and key where there are any, and before them."""
    for name, parts in _parts(reading, num_heads, contract):
        apart = _normed(reading, parts) if reading.normed and parts.flat else None
        if apart is not None:
            yield name, apart
        yield (name if apart is None else f"{name}, before its norms"), parts


def _apart(
    name: str, query: Tensor, key: Tensor, value: Tensor, num_heads: int | None
) -> Iterator[tuple[str, Parts]]:
    width = query.shape[-1]
    guesses = (
        [num_heads] if num_heads is not None else [1, *(n for n in range(2, 17) if width % n == 0)]
    )
    for index, heads in enumerate(guesses):
        if heads is None or width % heads:
            continue
        dim = width // heads
        if key.shape[-1] % dim:
            continue
        num_kv_heads = key.shape[-1] // dim
        if heads % num_kv_heads or value.shape[-1] % num_kv_heads:
            continue
        yield (
            (name if index == 0 else f"{heads} heads"),
            Parts(query, key, value, True, heads, num_kv_heads),
        )


def _fused(
    whole: Tensor, num_heads: int | None, num_kv_heads: int | None
) -> Iterator[tuple[str, Parts]]:
    whole = _batched(whole)
    width = whole.shape[-1]
    if num_heads is not None and num_kv_heads is not None and num_kv_heads != num_heads:
        dim = width // (num_heads + 2 * num_kv_heads)
        parts = whole.split([num_heads * dim, num_kv_heads * dim, num_kv_heads * dim], -1)
        yield from _apart("chunks", *parts, num_heads)  # type: ignore[misc]
        return
    if width % 3:
        return
    yield from _apart("chunks", *whole.chunk(3, -1), num_heads)  # type: ignore[misc]
    heads = num_heads or 1
    if width % (3 * heads) == 0 and heads > 1:
        by_head = whole.unflatten(-1, (heads, 3, -1)).transpose(-3, -2).flatten(-2)
        yield FUSED[0], _three(by_head.unbind(-2), heads)
        last = whole.unflatten(-1, (heads, -1, 3)).movedim(-1, 2).flatten(-2)
        yield FUSED[1], _three(last.unbind(2), heads)
        dims = whole.unflatten(-1, (-1, heads, 3)).permute(0, 1, 4, 3, 2).flatten(-2)
        yield FUSED[2], _three(dims.unbind(2), heads)
        mixed = whole.unflatten(-1, (3, -1, heads)).transpose(-1, -2).flatten(-2)
        yield FUSED[3], _three(mixed.unbind(2), heads)


def _three(parts: Sequence[Tensor], heads: int) -> Parts:
    query, key, value = parts
    return Parts(query, key, value, True, heads, heads)


def _normed(reading: Reading, parts: Parts) -> Parts | None:
    """Query and key after their norms, heads apart."""

    def heads(which: str, plain: Tensor, count: int) -> Tensor | None:
        found = reading.normed.get(which)
        if found is None:
            return plain.unflatten(-1, (count, -1)).transpose(1, 2)
        if found.ndim == 4 and found.shape[1] == count:
            return found
        if found.ndim == 4 and found.shape[2] == count:
            return found.transpose(1, 2)
        if found.shape == plain.shape:
            return found.unflatten(-1, (count, -1)).transpose(1, 2)
        return None

    query = heads("q", parts.query, parts.num_heads)
    key = heads("k", parts.key, parts.num_kv_heads)
    if query is None or key is None:
        return None
    value = parts.value.unflatten(-1, (parts.num_kv_heads, -1)).transpose(1, 2)
    return replace(parts, query=query, key=key, value=value, flat=False)


def _ropes(
    contract: Contract, reading: Reading, parts: Parts
) -> Iterator[tuple[Contract, tuple[str, ...]]]:
    """With rotary positions, where none are declared, as a way that is told."""
    yield contract, ()
    width = parts.query.shape[-1] // (parts.num_heads if parts.flat else 1)
    if contract.rope is None and width % 2 == 0 and not reading.by_role.get("qkv"):
        for layout in ("half", "interleaved"):
            rope = {"base": 10000.0, "layout": layout}
            yield replace(contract, rope=rope), (f"rotary positions, layout {layout}",)


def _setting(parts: Parts, contract: Contract, d_in: int) -> Setting:
    query_len, kv_len = parts.query.shape[-2], parts.key.shape[-2]
    dim = parts.query.shape[-1] // (parts.num_heads if parts.flat else 1)
    value_dim = parts.value.shape[-1] // (parts.num_kv_heads if parts.flat else 1)
    return Setting(
        contract,
        parts.query.shape[0],
        parts.num_heads,
        parts.num_kv_heads,
        query_len,
        kv_len,
        dim,
        value_dim,
        None,
        d_in,
    )


def _batched(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim > 2 else tensor[None]


def _shaped(target: Tensor, parts: Parts) -> Tensor | None:
    """The target as (batch, len, all heads side by side), if it can be."""
    batch, query_len = parts.query.shape[0], parts.query.shape[-2]
    if target.numel() % (batch * query_len):
        return None
    if target.shape[-2] != query_len and target.numel() != batch * query_len * target.shape[-1]:
        return None
    return target.reshape(batch, query_len, -1)


def _spread(reading: Reading) -> tuple[float, float, float]:
    """How large the matrices of query and key are, with what scales their inputs, and how large
    PyTorch makes them. Too few numbers tell nothing: then all three are the same."""
    query, key = reading.matrices.get("q"), reading.matrices.get("k")
    if query is None or key is None or min(query.numel(), key.numel()) < FEW:
        return 1.0, 1.0, 1.0
    sources = [reading.fed[which][0] for which in "qk"]
    scaled = 1.0
    if sources[0].shape == sources[1].shape:
        scaled = (sources[0].std() / sources[1].std().clamp_min(1e-30)).item()
    usual = (3 * sources[0].shape[-1]) ** -0.5
    return query.std().item() * scaled, key.std().item(), usual
