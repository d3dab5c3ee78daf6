"""Tensor parallelism: the heads of a layer shared among ranks (Shoeybi et al., 2019, section 3,
https://arxiv.org/abs/1909.08053).

Every rank has some heads: their rows of the projections of query, key and value, and their columns of
the output projection. The input is the same on all ranks, so its gradient is a sum over them, like
the output, and like the gradient of every parameter that the heads of several ranks read.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from clearhead._common.hints import with_hints
from clearhead._common.layouts import head_layout, key_heads
from clearhead.attention.problem import Problem
from clearhead.attention.sharded.sharded_call import kernel_by_place, read_across
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.layers.base import AttentionLayer, Heads
from clearhead.layers.inputs import LayerCall, is_plain_linear
from clearhead.masks.selected import Selected
from clearhead.masks.spans import Extent
from clearhead.sharding.collectives import SumOverRanks
from clearhead.sharding.dtensors import is_dtensor
from clearhead.sharding.matrix_part import MatrixPart
from clearhead.sharding.sharding import Sharding, read_mesh

L = TypeVar("L", bound=AttentionLayer)

QUERY_AXES = {"query_projection.weight": 0, "query_projection.bias": 0}
KEY_AXES = {
    f"{name}_projection.{kind}": 0 for name in ("key", "value") for kind in ("weight", "bias")
}
OUTPUT_AXES = {"output_projection.weight": 1}
"""The axis of heads of the parameters of a layer that have one: query heads, key heads, and contexts,
which parts may have made one of several."""

SHARED = ("latent_projection", "latent_norm", "query_latent_projection", "query_norm")
"""The modules of a layer that all heads read."""

OUTPUT_BIAS = "output_projection.bias"
"""Added once, to the sum over the ranks."""

NO_GRAPH = (
    "a layer of tensor_parallel runs outside of the graph: its parameters are put in place for the call, and "
    "its sums wait for the other ranks. Compile the model without fullgraph=True"
)

METHODS = ("forward", "weights", "plan", "make_problem", "join")


class Share(NamedTuple):
    """The share that a rank has of one parameter.

    Attributes:
        axis: that of the heads; None for a parameter that all heads read.
        here: int64, the places along it of this rank's heads, of a parameter that every rank has
            whole; None for one of which each rank has its part.
    """

    axis: int | None = None
    here: Tensor | None = None

    @property
    def is_shard(self) -> bool:
        """True if each rank has its part of the parameter, and no other."""
        return self.axis is not None and self.here is None


class TensorParallel(AttentionLayer):
    """The methods of a layer that computes the heads of this rank; made by `tensor_parallel`.

    Between calls its parameters are DTensors. While a method runs they are this rank's share, as
    plain tensors, so that whatever reads them goes on as in a layer of fewer heads.

    Attributes:
        heads: which rank has which heads.
        shares: the share of each parameter, by its name.
    """

    heads: Sharding  # pyright: ignore[reportIncompatibleVariableOverride]
    shares: dict[str, Share]
    output_bias: Tensor | None = None
    is_local: bool = False

    @contextmanager
    def local(self) -> Iterator[None]:
        """Put this rank's share in the place of each parameter, for a while."""
        if self.is_local:
            yield
            return
        held: list[tuple[dict[str, Any], str, Any]] = []
        self.is_local = True
        try:
            for path, share in self.shares.items():
                owner, _, name = path.rpartition(".")
                parameters: dict[str, Any] = self.get_submodule(owner)._parameters
                held.append((parameters, name, parameters[name]))
                local = self._share(path, share, parameters[name])
                if path == OUTPUT_BIAS:
                    # A module would register it.
                    vars(self)["output_bias"], local = local, None
                parameters[name] = local
            yield
        finally:
            for parameters, name, parameter in held:
                parameters[name] = parameter
            vars(self)["output_bias"], self.is_local = None, False

    def _share(self, path: str, share: Share, parameter: Any) -> Tensor:
        local = parameter.to_local() if is_dtensor(parameter) else parameter
        if path == OUTPUT_BIAS or share.is_shard:
            return local
        local = self._sum(local, path, forward=False)
        if share.axis is None or share.here is None:
            return local
        return local.index_select(share.axis, share.here.to(local.device))

    def _sum(self, tensor: Tensor, what: str, *, forward: bool) -> Tensor:
        """Sum over the ranks what is computed forward, or else its gradient."""
        if self.heads.world == 1:
            return tensor
        return SumOverRanks.apply(tensor, self.heads.group, what, forward, not forward)

    def _check_call(self, x: Tensor, context: Tensor | None = None, **options: Any) -> LayerCall:
        if options.get("across") is not None:
            self._check_sharding(read_across(options["across"])[0])
        call = super()._check_call(x, context, **options)
        entered = self._sum(call.x, "the input", forward=False)
        if not call.is_cross:
            return call._replace(x=entered, source=entered)
        source = self._sum(call.source, "the context", forward=False)
        return call._replace(x=entered, source=source)

    def _check_sharding(self, held: Sharding) -> None:
        """Refuse on every rank what those that share its tokens would refuse by their own heads."""
        if self.training and self.dropout:
            raise UnsupportedError(
                "parallel.dropout",
                "a layer whose heads are shared, tensor_parallel, takes across= without dropout; this "
                f"one is in training mode, with dropout={self.dropout}.",
            )
        fewest = min(self.heads.counts)
        if held.how == "heads" and fewest < held.world:
            raise UnsupportedError(
                "across.refused",
                'how="heads" cannot run this call.\n'
                f"  - tensor_parallel leaves a rank with {fewest} heads, fewer than the {held.world} ranks "
                'that share its tokens\n  how="gather" can.',
            )

    def _posed(self, call: LayerCall) -> tuple[Heads, dict[str, Any]]:
        heads, options = super()._posed(call)
        mask = options["mask"]
        if mask is not None and mask.heads is not None:
            if call.across is None:
                lengths = heads.query.shape[2], heads.key.shape[2]
            else:
                lengths = call.across.held[0].tokens, call.across.held[1].tokens
            batch, device = len(heads.query), heads.query.device
            mask.check(Extent(batch, self.heads.tokens, *lengths, device))
            options["mask"] = Selected(mask, *lengths, some_heads=self.heads.positions)
        return heads, options

    def _problem(self, call: LayerCall) -> Problem:
        return super()._problem(call).replace(part=MatrixPart(heads=self.heads.positions))

    def _run(self, problem: Problem, kernel: str) -> Tensor:
        kernel = kernel_by_place(problem, kernel)
        if problem.dropout is not None and problem.part is not None:
            seed = self.heads.draw_seed(problem.device)
            problem = problem.replace(part=problem.part._replace(seed=seed))
        return super()._run(problem, kernel)

    def _merge_heads(self, context: Tensor, x: Tensor) -> Tensor:
        output = self._sum(super()._merge_heads(context, x), "outputs", forward=True)
        bias = self.output_bias
        return output if bias is None else output + bias.to(output.dtype)

    def to_torch(self, **options: Any) -> nn.Module:
        raise UnsupportedError(
            "convert.refused",
            "this layer has some of the heads, tensor_parallel; load its full state_dict into a layer "
            "that has all of them.",
        )

    def extra_repr(self) -> str:
        heads = self.heads
        return f"{super().extra_repr()}, of {heads.tokens} heads on {heads.world} ranks"


@with_hints
def tensor_parallel(layer: L, mesh: Any) -> L:
    """Share the heads of a layer among the ranks of a mesh; the layer itself is changed.

    Every rank calls it with a layer of the same sizes, and gets the weights of rank 0. From then on
    the layer has its share of the heads: every rank gives it the same input and gets the same output,
    with one sum over the ranks forward and one for the gradient of the input. Its parameters are
    DTensors, with the names and the full shapes that they had: make the optimizer, and call
    `fully_shard` over another dimension of the mesh, afterwards.

    Heads are shared in their order, as evenly as can be. Where they do not divide evenly, where key
    heads are fewer than ranks, or pairs of heads belong together, ranks have the parameter whole and
    read their part of it; its gradients are summed.

    The layer has `heads`, a `Sharding`: `heads.positions` are the numbers of the heads that are here,
    and `heads.gather(tensor, dim=1)` puts those of all ranks together, of what `weights` or a watch
    gives. Dropout is drawn by the number of a head, on the kernel `blockwise`. In a model that
    `torch.compile` compiles, the layer runs outside of the graph, which `fullgraph=True` refuses.

    Args:
        layer: a `MultiHeadAttention` or a `LatentAttention`, with all of its heads.
        mesh: a `DeviceMesh` of one dimension, such as `mesh["tp"]`, or a process group.

    Returns:
        The layer.

    Raises:
        ArgumentTypeError: codes `parallel.layer` and `across.mesh`.
        ArgumentError: codes `across.mesh` and `across.group`.
        UnsupportedError: code `parallel.refused`, with every reason: fewer heads than ranks, a part
            without `head_axes`, a projection that is no plain nn.Linear, parameters of other names.
        RankError: on every rank, if one of them refuses, or they differ.

    Example:
        >>> import torch, clearhead as ch
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2)
        >>> layer = ch.layers.tensor_parallel(layer, dist.group.WORLD)
        >>> layer.heads
        Sharding [heads=4, world=1, rank=0] with 4 heads here
        >>> layer(torch.randn(1, 3, 8)).shape
        torch.Size([1, 3, 8])
        >>> dist.destroy_process_group()
    """
    # They take long to import.
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    if not isinstance(layer, AttentionLayer):
        raise ArgumentTypeError(
            "parallel.layer",
            "tensor_parallel takes a MultiHeadAttention or a LatentAttention; got "
            f"{type(layer).__name__}.",
        )
    group, world, rank = read_mesh(mesh, "heads", "tp")
    blocks = max((part.head_blocks for part in layer.parts), default=1)
    units = layer.num_heads // blocks
    layout = head_layout(units * blocks, world, blocks)
    heads = Sharding(layout, rank, group, noun="heads")

    def check() -> tuple[tuple[dict[str, Share], list[Any]], str]:
        reasons = list(_refusals(layer))
        if layer.num_heads % blocks:
            reasons.insert(0, f"{layer.num_heads} heads are not {blocks} blocks of as many")
        if units < world:
            pairs = f", {units} pairs that belong together," if blocks > 1 else ""
            reasons.insert(0, f"{layer.num_heads} heads{pairs} are fewer than {world} ranks")
        if reasons:
            lines = ["tensor_parallel cannot share the heads of this layer."]
            raise UnsupportedError(
                "parallel.refused", "\n".join([*lines, *(f"  - {reason}" for reason in reasons)])
            )
        changes = [part.of_heads(heads) for part in layer.parts]
        sizes = [
            f"{name} {tuple(each.shape)} {each.dtype}" for name, each in layer.named_parameters()
        ]
        return (_shares(layer, heads, units), changes), f"{layer!r} {', '.join(sizes)}"

    shares, changes = heads.agree(check, next(layer.parameters(), None))
    if not isinstance(mesh, DeviceMesh):
        mesh = DeviceMesh.from_group(group, next(layer.parameters()).device.type)
    for path, share in shares.items():
        owner, _, name = path.rpartition(".")
        module = layer.get_submodule(owner)
        parameter = module._parameters[name]
        assert parameter is not None
        placement = (
            Replicate() if share.axis is None or share.here is not None else Shard(share.axis)
        )
        sharded = distribute_tensor(parameter.detach(), mesh, [placement])
        setattr(module, name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))
    for part, change in zip(layer.parts, changes, strict=True):
        for name, value in change.items():
            setattr(part, name, value)
    split: Any = layer
    split.__class__ = _split_class(type(layer))
    split.heads, split.shares = heads, shares
    if hasattr(layer, "num_kv_heads"):
        split.num_kv_heads = len(_key_heads(layer, heads)[rank])
    split.num_heads = heads.count
    return layer


def _refusals(layer: AttentionLayer) -> Iterator[str]:
    """Why the heads of a layer cannot be shared, whatever the number of ranks."""
    for name in ("query", "key", "value", "output"):
        projection = layer.get_submodule(f"{name}_projection")
        if not is_plain_linear(projection):
            yield f"{name}_projection is no plain nn.Linear: {type(projection).__name__}"
    for part in layer.parts:
        if part.head_axes is None:
            yield (
                f"{type(part).__name__} does not say which axes of its parameters are heads: give the "
                "class head_axes, {} if there are none"
            )
    for path, parameter in layer.named_parameters():
        known = path.startswith(("parts.", *(f"{name}." for name in SHARED)))
        if not known and path not in {*QUERY_AXES, *KEY_AXES, *OUTPUT_AXES, OUTPUT_BIAS}:
            yield f"the parameter {path} is none that tensor_parallel knows"
        if is_dtensor(parameter):
            yield f"the parameter {path} is a DTensor already; share heads first, and once"


def _shares(layer: AttentionLayer, heads: Sharding, contexts: int) -> dict[str, Share]:
    """The share of each parameter, by its name, of a layer that joins so many contexts."""
    query_heads = [heads.positions_of(rank) for rank in range(heads.world)]
    found = {}
    for path, parameter in layer.named_parameters():
        numbers, total, axis = query_heads, layer.num_heads, QUERY_AXES.get(path)
        if path in KEY_AXES:
            numbers, axis = _key_heads(layer, heads), KEY_AXES[path]
            total = getattr(layer, "num_kv_heads", layer.num_heads)
        elif path in OUTPUT_AXES:
            numbers = [each[each < contexts] for each in query_heads]
            total, axis = contexts, OUTPUT_AXES[path]
        elif path.startswith("parts."):
            _, place, name = path.split(".", 2)
            part = layer.get_submodule(f"parts.{place}")
            axis = getattr(part, "head_axes", {}).get(name)
        found[path] = _share_of(parameter, axis, numbers, total, heads.rank)
    return found


def _share_of(
    parameter: Tensor, axis: int | None, numbers: list[Tensor], total: int, rank: int
) -> Share:
    if axis is None:
        return Share()
    even = torch.equal(torch.cat(numbers), torch.arange(total))
    if even and len({len(each) for each in numbers}) == 1:
        return Share(axis)
    width = parameter.shape[axis] // total
    return Share(axis, (numbers[rank][:, None] * width + torch.arange(width)).flatten())


def _key_heads(layer: AttentionLayer, heads: Sharding) -> list[Tensor]:
    """The key heads that the heads of each rank read."""
    group_size = heads.tokens // getattr(layer, "num_kv_heads", heads.tokens)
    return [key_heads(heads.positions_of(rank), group_size) for rank in range(heads.world)]


@functools.cache
def _split_class(kind: type[AttentionLayer]) -> type[AttentionLayer]:
    """The class of a layer with some of the heads."""
    methods = {name: _with_share(getattr(kind, name)) for name in METHODS if hasattr(kind, name)}
    return type(f"TensorParallel{kind.__name__}", (TensorParallel, kind), methods)


def _with_share(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: TensorParallel, *args: Any, **options: Any) -> Any:
        with self.local():
            return method(self, *args, **options)

    return torch.compiler.disable(run, reason=NO_GRAPH)
