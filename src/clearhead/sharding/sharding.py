"""A sharding: which rank of a process group holds which tokens.

Every layout is data, the positions of each rank, so that nothing else knows of layouts.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clearhead._common.checks import as_int, check_length, check_tensor
from clearhead._common.elements import Drawn
from clearhead._common.hints import with_hints
from clearhead._common.layouts import RankLayout, layout_of
from clearhead._common.memory import bytes_of, within_memory
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, RankError, ShapeError
from clearhead.masks.base import Mask
from clearhead.masks.blocks import pairs_of_queries
from clearhead.masks.dense import as_mask
from clearhead.sharding.collectives import GatherRows, SumOverRanks, all_gather

T = TypeVar("T")

WAYS = ("gather", "ring", "heads")

MOST_RANKS = 1 << 20

MESSAGE = 1024
"""Bytes by which ranks compare a call."""

AGREES, REFUSES = "=", "!"
"""The first letter of such a message; 16 of the layout follow, and the description."""


class Sharding(Drawn):
    """The tokens of each rank, made by `clearhead.across`.

    Attributes:
        tokens: the number of tokens on all ranks together.
        world: the number of ranks.
        rank: this one.
        group: the process group; None for a plan without processes.
        how: the method of communication, "gather", "ring" or "heads".

    Example:
        >>> import torch, clearhead as ch
        >>> where = ch.across(world=4, tokens=11, mask=ch.causal(), rank=1)
        >>> where
        Sharding [tokens=11, world=4, rank=1] with 2 tokens here
        >>> where.positions
        tensor([6, 7])
        >>> where.shard(torch.arange(11) ** 2, dim=0)
        tensor([36, 49])
    """

    def __init__(self, layout: RankLayout, rank: int, group: Any, how: str = "gather") -> None:
        """Store a layout, this rank, the process group or None, and the method; `across` checks them."""
        self._order, self.counts = layout
        self.how = how
        self.tokens = len(self._order)
        self.world, self.rank, self.group = len(self.counts), rank, group

    def positions_of(self, rank: int) -> Tensor:
        """Return the positions of a rank's tokens in the text, int64, (tokens of the rank,), on the CPU; do not modify.

        Raises:
            ArgumentError: code `across.no-rank`, for anything but 0 to world − 1.
        """
        if as_int(rank) not in range(self.world):
            raise ArgumentError(
                "across.no-rank", f"rank must be 0 to {self.world - 1}; got {shown(rank)}."
            )
        first = sum(self.counts[:rank])
        return self._order[first : first + self.counts[rank]]

    @cached_property
    def positions(self) -> Tensor:
        """The positions of this rank's tokens in the text, int64, (tokens of the rank,)."""
        return self.positions_of(self.rank)

    @property
    def count(self) -> int:
        """The number of tokens that this rank holds."""
        return self.counts[self.rank]

    @cached_property
    def is_whole(self) -> bool:
        """True if one rank holds all tokens in order, so that nothing is sent."""
        return self.world == 1 and bool((self._order.diff() == 1).all())

    @cached_property
    def _place(self) -> Tensor:
        """The index of each token in the concatenation of all ranks, int64, (tokens,)."""
        return self._order.argsort()

    @cached_property
    def fingerprint(self) -> str:
        """A hash, 16 hexadecimal digits, that is equal on two ranks only if they have the same layout."""
        numbers = torch.cat([self._order, torch.tensor(self.counts, dtype=torch.int64)])
        return hashlib.sha256(bytes_of(numbers)).hexdigest()[:16]

    def shard(self, tensor: Tensor, dim: int = -2) -> Tensor:
        """Return this rank's tokens of a tensor of all tokens, a copy, in the order of `positions`.

        Args:
            tensor: (…, tokens, dim), the same on every rank.
            dim: the axis of the tokens.

        Raises:
            ShapeError: code `across.rows`, for another number of tokens or no such axis.
            ArgumentTypeError: codes `tensor.type` and `tensor.layout`.
        """
        self.check_rows(tensor, dim, self.tokens, "all ranks together have")
        return tensor.index_select(dim, self.positions.to(tensor.device))

    def gather(self, tensor: Tensor, dim: int = -2) -> Tensor:
        """Return the tokens of all ranks in the order of the text, on every rank; every rank must call it.

        The gradient of each token is the sum over the ranks.

        Args:
            tensor: (…, tokens of the rank, dim).
            dim: the axis of the tokens.

        Raises:
            ShapeError, ArgumentTypeError: as `shard`; on the other ranks RankError.
            ArgumentError: code `across.group`, for a plan without processes.
            RankError: codes `across.rank`, `across.differ`, `across.lost`.
        """

        def check() -> tuple[None, str]:
            """Check the tokens of the tensor; return None and a text of its sizes, dtype and gradients."""
            self.check_rows(tensor, dim, self.count, f"rank {self.rank} has")
            sizes = list(tensor.shape)
            sizes[dim] = -1
            grad = torch.is_grad_enabled() and tensor.requires_grad
            return None, f"gather a tensor of {sizes}, dim={dim}, {tensor.dtype}, gradients={grad}"

        self.agree(check, tensor)
        return self.gather_unchecked(tensor, dim, "a tensor")

    def gather_unchecked(self, tensor: Tensor, dim: int, what: str) -> Tensor:
        """Return what `gather` does, without its checks: the sizes and the calls of all ranks must agree.

        `what` names the tensor in errors. Raises ArgumentError, code `across.group`, and RankError, code `across.lost`.
        """
        if self.world == 1:
            rows = tensor.movedim(dim, 0)
        else:
            self._check_group()
            rows = GatherRows.apply(tensor.movedim(dim, 0), self.counts, self.group, what)
        return self.in_order(rows).movedim(0, dim)

    def in_order(self, rows: Tensor) -> Tensor:
        """Permute the first axis from the order of the ranks to the order of the text; unchanged if they are equal."""
        return rows if self.is_in_order else rows.index_select(0, self._place.to(rows.device))

    def by_rank(self, rows: Tensor) -> Tensor:
        """Permute the first axis from the order of the text to the order of the ranks; unchanged if they are equal."""
        return rows if self.is_in_order else rows.index_select(0, self._order.to(rows.device))

    @cached_property
    def is_in_order(self) -> bool:
        """True if the ranks, one after the other, hold the tokens in the order of the text."""
        return bool((self._order.diff() == 1).all())

    def sum(self, tensor: Tensor, what: str = "sums") -> Tensor:
        """Return the sum of a tensor over the ranks, on every rank, with gradients; the tensor itself for one rank.

        Every rank must call it. Raises ArgumentError for a plan without processes, and RankError, code `across.lost`.
        """
        if self.world == 1:
            return tensor
        self._check_group()
        return SumOverRanks.apply(tensor, self.group, what)

    def agree(self, make: Callable[[], tuple[T, str]], tensor: object = None) -> T:
        """Run a check on every rank and return its result; raise on all if one raises ClearheadError or they differ.

        Any other exception is raised on its rank alone, and the others wait.

        Args:
            make: returns a result, and a text that must be the same on all ranks; it must not communicate.
            tensor: a tensor of the call, whose device is used for the message with nccl.

        Raises:
            ClearheadError: that of `make`, and code `across.group` for a plan without processes.
            RankError: codes `across.rank`, if it failed on another rank, `across.differ` and `across.lost`.
        """
        failed, made, text = None, None, ""
        try:
            result, text = make()
            made = (result,)
            text = f"{AGREES}{self.fingerprint}{self.tokens} tokens, {text}"
        except ClearheadError as error:
            failed, text = error, f"{REFUSES}{self.fingerprint}{error}"
        if self.world > 1:
            self._check_group()
            texts = self._texts(text, tensor)
            if failed is None:
                _compare(texts, self.rank)
        if made is None:
            assert failed is not None
            raise failed
        return made[0]

    def _texts(self, text: str, tensor: object) -> list[str]:
        """Return the text of each rank; one of more than MESSAGE bytes is cut and ends in its hash."""
        sent = text.encode()
        if len(sent) > MESSAGE:
            digest = hashlib.sha256(sent).hexdigest()[:16].encode()
            sent = sent[: MESSAGE - len(digest) - 3] + b".. " + digest
        device = torch.device("cpu")
        if dist.get_backend(self.group) == "nccl":
            device = tensor.device if isinstance(tensor, Tensor) else torch.device("cuda")
        message = torch.tensor(list(sent.ljust(MESSAGE)), dtype=torch.uint8, device=device)
        every = all_gather(message, self.group, "the description of the call").cpu()
        return [bytes(each.tolist()).decode(errors="replace").rstrip() for each in every]

    def check_rows(self, tensor: object, dim: int, tokens: int, who: str) -> None:
        """Raise ShapeError, begun by `who`, unless axis `dim` has `tokens`, ArgumentTypeError for no dense tensor."""
        check_tensor("tensor", tensor)
        assert isinstance(tensor, Tensor)
        axis = as_int(dim)
        if axis is None or not -tensor.ndim <= axis < tensor.ndim or tensor.shape[axis] != tokens:
            raise ShapeError(
                "across.rows",
                f"{who} {tokens} tokens; got a tensor of shape {tuple(tensor.shape)}, with its "
                f"tokens along dim={shown(dim)}.",
            )

    def _check_group(self) -> None:
        """Raise ArgumentError, code `across.group`, if the sharding is a plan without processes."""
        if self.group is None:
            raise ArgumentError(
                "across.group",
                f"this sharding is a plan for world={self.world} without processes; to compute, make "
                "it of a mesh: across(mesh, tokens=…).",
            )

    def __repr__(self) -> str:
        """Return one line with the sizes and the number of tokens here."""
        return (
            f"Sharding [tokens={self.tokens}, world={self.world}, rank={self.rank}] with "
            f"{self.count} tokens here"
        )


def _compare(texts: list[str], rank: int) -> None:
    """Raise RankError: `across.rank` if a text says that its rank refused, `across.differ` if one differs from ours."""
    failed = [(place, text[17:]) for place, text in enumerate(texts) if text.startswith(REFUSES)]
    if failed:
        place, text = failed[0]
        raise RankError("across.rank", f"rank {place} refused this call: {text}")
    for place, text in enumerate(texts):
        if text != texts[rank]:
            mine, other = texts[rank][17:], text[17:]
            what = "the calls" if text[:17] == texts[rank][:17] else "the layouts"
            raise RankError(
                "across.differ",
                f"{what} of the ranks differ. Give across and the call the same arguments on each.\n"
                f"  rank {rank}: {mine}\n  rank {place}: {other}",
            )


@with_hints
def across(
    mesh: Any = None,
    *,
    tokens: int,
    world: int | None = None,
    rank: int = 0,
    mask: Mask | Tensor | None = None,
    kv_len: int | None = None,
    layout: str | Sequence[Tensor] = "balanced",
    how: str = "gather",
) -> Sharding:
    """Return the sharding of a text's tokens among the ranks of a process group.

    Nothing is sent. Every rank makes it with the same arguments, and gives it to `attend`, `plan`,
    `AttentionMatrix` and the layers as `across=`. Any number of tokens goes, also fewer than ranks.

    Args:
        mesh: a `DeviceMesh` of one dimension, such as `mesh["cp"]`, or a process group.
        tokens: the number of tokens on all ranks together.
        world: a number of ranks in place of a mesh, for a plan without processes.
        rank: which of them to be; ignored with a mesh.
        mask: the mask of the attention, by which "balanced" counts the pairs of each query.
        kv_len: the number of keys that the mask is for; None is as many as tokens.
        layout: "balanced" gives every rank as many visible pairs, within one hundredth or a token;
            "contiguous" runs of neighbours; "zigzag" a run from the beginning and one from the end
            (https://arxiv.org/abs/2407.21783). Or the positions of each rank, a tensor each.
        how: the method of communication. "gather": every rank gets all keys and values, in
            portions of key heads. "ring": keys and values go round, a block at a time, so that no
            rank ever has all of them. "heads": tokens are changed for heads and back, so that every
            rank computes some heads of all tokens.

    Raises:
        ArgumentError: codes `across.world`, `across.mesh`, `across.group`, `across.layout`,
            `across.positions`, `across.how`, `length.negative`.
        ArgumentTypeError: codes `across.mesh`, `across.layout`, `layout.type`, `layout.layout`, `length.type`.
        MaskError, ArgumentTypeError: for a mask that `dense` refuses, or that was made for other lengths.
        TooLargeError: code `memory.full`, for more tokens than fit into memory.

    Example:
        >>> import clearhead as ch
        >>> ch.across(world=3, tokens=10, layout="zigzag").positions
        tensor([0, 8, 9])
        >>> [ch.across(world=3, tokens=2, rank=rank).count for rank in range(3)]
        [1, 1, 0]
    """
    group = None
    if mesh is None:
        ranks, rank = _read_world(world, rank)
    else:
        if world is not None:
            raise ArgumentError("across.world", "across takes a mesh or world=…; got both.")
        group, ranks, rank = _read_mesh(mesh)
    tokens = check_length("tokens", tokens)
    keys = tokens if kv_len is None else check_length("kv_len", kv_len)
    mask = as_mask(mask)
    if mask is not None:
        mask.check(mask.extent(tokens, keys))
    if how not in WAYS:
        names = ", ".join(f'"{each}"' for each in WAYS)
        raise ArgumentError("across.how", f"how must be one of {names}; got {shown(how)}.")
    with within_memory("A sharding keeps the place of every token: give fewer."):
        places = layout_of(layout, tokens, ranks, lambda: pairs_of_queries(mask, tokens, keys))
        return Sharding(places, rank, group, how)


def _read_world(world: object, rank: object) -> tuple[int, int]:
    """Return the number of ranks and this rank as integers; raise ArgumentError, code `across.world`, for others."""
    ranks, place = as_int(world), as_int(rank)
    if ranks is None or not 1 <= ranks <= MOST_RANKS or place is None or not 0 <= place < ranks:
        hint = " torch.distributed.group.WORLD is None until init_process_group."
        raise ArgumentError(
            "across.world",
            f"across takes a mesh, or world=…, 1 to {MOST_RANKS}, and rank=…, one of them; got "
            f"world={shown(world)}, rank={shown(rank)}.{hint if world is None else ''}",
        )
    return ranks, place


def _read_mesh(mesh: object) -> tuple[Any, int, int]:
    """Return the group of a mesh of one dimension or of a process group, its size, and this rank.

    Raises:
        ArgumentError: codes `across.mesh` and `across.group`.
        ArgumentTypeError: code `across.mesh`.
    """
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            names = mesh.mesh_dim_names or ()
            raise ArgumentError(
                "across.mesh",
                f"mesh must have one dimension; got {mesh.ndim}: {', '.join(names) or 'no names'}. "
                f'Name the one that shares tokens, such as mesh["{(*names, "cp")[0]}"].',
            )
        group = None if mesh.get_coordinate() is None else mesh.get_group()
    elif isinstance(mesh, dist.ProcessGroup):
        group = mesh
    elif mesh is dist.GroupMember.NON_GROUP_MEMBER:
        group = None
    else:
        raise ArgumentTypeError(
            "across.mesh",
            "mesh must be a torch.distributed DeviceMesh or process group; got "
            f"{type(mesh).__name__}.",
        )
    if group is None or (rank := dist.get_rank(group)) < 0:
        raise ArgumentError("across.group", "this process is not in the group that was given.")
    return group, dist.get_world_size(group), rank
