"""A call of attention over tokens that ranks share, checked on all ranks before anything is sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from clearhead._common.torch_internals import is_inside_functorch
from clearhead.attention.biases import as_bias, select_bias
from clearhead.attention.mismatches import check_bias_fits_mask
from clearhead.attention.planning import choose, run
from clearhead.attention.problem import Options, Problem, make_problem, under_autocast
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from clearhead.masks.dense import as_mask
from clearhead.masks.full import Full
from clearhead.masks.selected import Selected
from clearhead.sharding.dtensors import check_plain
from clearhead.sharding.sharding import Sharding


@dataclass(frozen=True)
class ShardedCall:
    """A checked call, the same on every rank but for the tokens that it holds.

    Attributes:
        problem: this rank's queries over all keys, with mask and bias of all queries. Its key and
            value have the right sizes and no data.
        key, value: those of this rank, (batch, num_kv_heads, tokens of the rank, dim).
        of_queries, of_keys: the tokens of each rank.
        kernel: "auto", or the name of one.
    """

    problem: Problem
    key: Tensor
    value: Tensor
    of_queries: Sharding
    of_keys: Sharding
    kernel: str

    @property
    def group_size(self) -> int:
        """The number of query heads that share a key head."""
        return self.problem.num_heads // self.problem.num_kv_heads

    def part(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
        heads: slice | None = None,
    ) -> Problem:
        """Return the problem of some rows, columns and heads of the whole matrix, with these tensors.

        None selects all. Mask, bias and sinks are cut accordingly.

        Args:
            query: the queries of these rows and heads.
            key: the keys of these columns and heads.
            value: the values of these columns and heads.
            rows: int64 indices of queries.
            columns: int64 indices of keys.
            heads: the slice of query heads.
        """
        whole = self.problem
        lengths = self.of_queries.tokens, self.of_keys.tokens
        some = None if heads is None or heads == slice(0, whole.num_heads) else heads
        mask, bias, sinks = whole.mask, whole.bias, whole.sinks
        if mask is not None and not (rows is None and columns is None and some is None):
            mask = Selected(mask, *lengths, rows, columns, some)
        if bias is not None and not (rows is None and columns is None and some is None):
            bias = select_bias(bias, lengths, rows=rows, columns=columns, some_heads=some)
        if sinks is not None and some is not None:
            sinks = sinks[some]
        return whole.replace(query=query, key=key, value=value, mask=mask, bias=bias, sinks=sinks)

    def run(self, problem: Problem) -> Tensor:
        """Return the context of a part by the call's kernel; UnsupportedError if it refuses the part."""
        return run(problem, self.kernel)


def read_across(across: object) -> tuple[Sharding, Sharding]:
    """Return the sharding of the queries and that of the keys, from a pair, or from one for both.

    Raises:
        ArgumentTypeError: code `across.type`, for anything else.
        ArgumentError: code `across.pair`, for two of different process groups, ranks or methods.
    """
    pair: tuple[Any, ...] = across if isinstance(across, tuple) else (across, across)
    if len(pair) != 2 or not all(isinstance(each, Sharding) for each in pair):
        raise ArgumentTypeError(
            "across.type",
            "across must be what clearhead.across(…) returns, or a pair of two, of the queries and "
            f"of the keys; got {type(across).__name__}.",
        )
    of_queries, of_keys = pair
    same = (of_queries.world, of_queries.rank) == (of_keys.world, of_keys.rank)
    if of_queries.group is not of_keys.group or not same or of_queries.how != of_keys.how:
        raise ArgumentError(
            "across.pair",
            "the shardings of queries and keys must be of one process group, and go one way; got "
            f"world={of_queries.world} and {of_keys.world}, rank={of_queries.rank} and "
            f'{of_keys.rank}, how="{of_queries.how}" and "{of_keys.how}".',
        )
    return of_queries, of_keys


def make_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    across: object,
    kernel: str = "auto",
    **options: Unpack[Options],
) -> ShardedCall:
    """Check the arguments of a call on this rank alone, and return the call; nothing is sent.

    Raises:
        ClearheadError: as `attend` raises, for the sizes of the whole matrix.
        ShapeError: code `across.rows`, for another number of tokens than this rank has.
        UnsupportedError: codes `kernel.refused`, `across.dropout`, `across.transformed` and `dtensor.plain`.
    """
    of_queries, of_keys = read_across(across)
    is_shared = not (of_queries.is_whole and of_keys.is_whole)
    if is_shared and is_inside_functorch():
        raise UnsupportedError(
            "across.transformed",
            "across= does not go inside vmap, grad, jvp and the like of torch.func, which PyTorch's "
            "exchange between ranks is not made for. Gradients come by backward(), and a batch is an axis.",
        )
    check_plain(query, (key, value), "across=")
    whole_key, whole_value = (_without_numbers(each, of_keys) for each in (key, value))
    # They are of all tokens, and the query is not.
    mask, bias = options.pop("mask", None), options.pop("bias", None)
    problem = make_problem(query, whole_key, whole_value, **options)
    if is_shared and problem.dropout is not None:
        raise UnsupportedError(
            "across.dropout",
            "dropout must be None where ranks share a matrix, which would drop other weights on each; got "
            f"{problem.dropout}.",
        )
    missing = (None,) * (4 - problem.dims)
    key, value = under_autocast(key[missing], value[missing])
    for name, tensor, held in (
        ("query", problem.query, of_queries),
        ("key", key, of_keys),
        ("value", value, of_keys),
    ):
        if tensor.shape[2] != held.count:
            raise ShapeError(
                "across.rows",
                f"{name} must have the tokens of rank {held.rank}, {held.count} of {held.tokens}; "
                f"got {tensor.shape[2]}.",
            )
    extent = problem.extent._replace(query_len=of_queries.tokens, kv_len=of_keys.tokens)
    mask = as_mask(mask)
    if isinstance(mask, Full):
        mask = None
    if mask is not None:
        mask.check(extent)
    if bias is not None:
        bias = as_bias(bias)
        bias.check(extent)
        check_bias_fits_mask(mask, bias)
        bias = bias.within(problem.query.dtype)
    problem = problem.replace(mask=mask, bias=bias, cross=mask is not None and mask.cross)
    call = ShardedCall(problem, key, value, of_queries, of_keys, kernel)
    # A kernel that cannot run the call is refused before anything is sent.
    choose(row_problem(call), kernel)
    return call


WORDS = 1 << 20
"""Words of a mask that are summed at a time, so that memory is bounded."""


def describe(call: ShardedCall) -> str:
    """Return a text of the call that is equal on every rank if the calls agree.

    It has the sizes, the options, and checksums of the tensors of mask, bias and sinks, which sync the device.
    """
    problem = call.problem
    batch, heads, _, width = problem.query.shape
    named = {"query": problem.query, "key": call.key, "value": call.value}
    trained = [name for name, each in named.items() if each.requires_grad]
    mask, bias = (
        None if part is None else part.describe() for part in (problem.mask, problem.bias)
    )
    # Descriptions are for people, who want no long list.
    shared = {"mask": problem.mask, "bias": problem.bias, "sinks": problem.sinks}
    tensors = [(name, each) for name, part in shared.items() for each in _tensors_of(part)]
    tensors = [(name, each) for name, each in tensors if not each.is_meta]
    sums = checksums([each for _, each in tensors], problem.device)
    numbers = (f"numbers of {name}={each}, " for (name, _), each in zip(tensors, sums, strict=True))
    return (
        f"how={call.of_queries.how}, kernel={call.kernel}, batch={batch}, num_heads={heads}, "
        f"num_kv_heads={problem.num_kv_heads}, head_dim={width}, "
        f"value_head_dim={call.value.shape[3]}, {problem.query.dtype}, {problem.device.type}, "
        f"keys={call.of_keys.tokens}, gradients={trained if torch.is_grad_enabled() else []}, "
        f"scale={problem.scale}, softcap={problem.softcap}, "
        f"mask={mask}, bias={bias}, sinks={problem.sinks is not None}, {''.join(numbers)}"
        f"layout of keys={call.of_keys.fingerprint}"
    )


def _tensors_of(part: object) -> Iterator[Tensor]:
    """Yield the tensors in a mask or bias, also in fields of dataclasses; lists of integers are yielded as tensors.

    Nothing is yielded for any other object.
    """
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list):  # of whole numbers
        yield torch.tensor(part, dtype=torch.int64, device="cpu")
    elif is_dataclass(part):
        for each in fields(part):
            yield from _tensors_of(getattr(part, each.name))


def checksums(tensors: Sequence[Tensor], device: torch.device) -> list[int]:
    """Return the checksum of each tensor, with a single device sync; tensors on the meta device are left out."""
    sums = [_checksum(each).to(device) for each in tensors if not each.is_meta]
    return torch.stack(sums).tolist() if sums else []


def _checksum(tensor: Tensor) -> Tensor:
    """Return a sum of 8-byte words weighted by position, modulo 2⁶⁴, int64 of no dimension; the dtype does not count.

    A broadcast axis counts once. The sum is exact in any order.
    """
    for axis, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[axis]:  # broadcast
            tensor = tensor.narrow(axis, 0, 1)
    octets = tensor.detach().flatten().contiguous().view(torch.uint8)
    if len(octets) % 8 or octets.storage_offset() % 8:
        octets = torch.cat([octets, octets.new_zeros(-len(octets) % 8)])
    words = octets.view(torch.int64)
    total = words.new_zeros(())
    for some in words.split(WORDS):
        total = total * 31 + (some * torch.arange(1, len(some) + 1, device=some.device)).sum()
    return total


def row_problem(call: ShardedCall) -> Problem:
    """Return the problem of this rank's rows over all keys; key and value have the right sizes and no data."""
    problem = call.problem
    return call.part(problem.query, problem.key, problem.value, rows=call.of_queries.positions)


def _without_numbers(tensor: Any, held: Sharding) -> Any:
    """Return an expanded 0 of the shape of a tensor with the tokens of all ranks, in its dtype and on its device.

    Returned unchanged: objects other than a strided tensor of at least two dimensions, which a later check refuses.
    """
    if not isinstance(tensor, Tensor) or tensor.ndim < 2 or tensor.layout != torch.strided:
        return tensor
    sizes = (*tensor.shape[:-2], held.tokens, tensor.shape[-1])
    return tensor.detach().new_zeros(()).expand(sizes)
