"""DTensors, PyTorch's tensors that know which rank has which part of them, at the boundary of a call."""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead.errors import ArgumentError, UnsupportedError
from clearhead.sharding.sharding import Sharding

T = TypeVar("T")


def is_dtensor(tensor: object) -> bool:
    """Return True for a DTensor; its module is not imported, because that takes long.

    Without it nothing is a DTensor.
    """
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def check_plain(query: object, others: Sequence[object], options: str) -> None:
    """Raise an error unless query, key and value are all plain, or all DTensors without options in `options`.

    Args:
        query: of a call without `across=`.
        others: its key and value.
        options: the names of the options given as plain tensors, joined by commas; "" for none.

    Raises:
        UnsupportedError: code `dtensor.plain`.
    """
    given = [is_dtensor(each) for each in (query, *others)]
    if any(given) and (options or not all(given)):
        raise UnsupportedError(
            "dtensor.plain",
            "without across= DTensors go into attend all three, and with no mask, bias or sinks; got "
            f"{sum(given)} of three{options and ', with ' + options}. Share tokens by "
            "across=, or give this rank's samples or heads alone: query.to_local().",
        )


def local_tokens(name: str, tensor: T, held: Sharding) -> T:
    """Return this rank's tokens of a DTensor (…, tokens, dim); any other object unchanged.

    Args:
        name: the name of the argument, for the error.
        tensor: the argument.
        held: the sharding of its tokens.

    Raises:
        ArgumentError: code `across.dtensor`, if its placement differs from the sharding.
    """
    if not is_dtensor(tensor):
        return tensor
    given: Any = tensor
    reasons = list(_mismatches(given, held))
    if reasons:
        raise ArgumentError(
            "across.dtensor",
            f"{name} is a DTensor that does not lie as across= says: {'; '.join(reasons)}. Redistribute "
            "it, or give this rank's tokens alone, as across.shard makes them.",
        )
    return given.to_local()


def _mismatches(tensor: Any, held: Sharding) -> Iterator[str]:
    """Yield the reasons why a DTensor (…, tokens, dim) is not distributed as a sharding describes; nothing if it is."""
    placements, mesh, axis = tensor.placements, tensor.device_mesh, tensor.ndim - 2
    if mesh.ndim != 1:
        yield f"its mesh has {mesh.ndim} dimensions, and must have one"
        return
    if not placements[0].is_shard() or placements[0].dim % tensor.ndim != axis:
        yield f"its placement is {placements[0]!r}, and must be its tokens, Shard(dim={axis})"
        return
    if tensor.shape[axis] != held.tokens:
        yield f"it has {tensor.shape[axis]} tokens, and must have {held.tokens}"
    if held.group is None or dist.get_process_group_ranks(held.group) != mesh.mesh.tolist():
        yield f"its mesh has the ranks {mesh.mesh.tolist()}, and must have those of the sharding"
    chunk = math.ceil(held.tokens / held.world)
    even = [min(chunk, max(0, held.tokens - rank * chunk)) for rank in range(held.world)]
    if not held.is_in_order or list(held.counts) != even:
        yield 'it holds tokens in their order, which is layout="contiguous"'


def as_given(tensor: Tensor, given: object, held: Sharding) -> Tensor:
    """Return this rank's tokens of a result, (…, tokens of the rank, dim), as a DTensor if `given` was one.

    Otherwise the tensor is returned unchanged. Nothing is sent.
    """
    if not is_dtensor(given):
        return tensor
    from torch.distributed.tensor import DTensor, Shard

    like: Any = given
    shape = torch.Size((*tensor.shape[:-2], held.tokens, tensor.shape[-1]))
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return DTensor.from_local(
        tensor,
        like.device_mesh,
        [Shard(tensor.ndim - 2)],
        run_check=False,
        shape=shape,
        stride=strides,
    )
