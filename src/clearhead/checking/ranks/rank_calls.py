"""One call of a subject on one rank: its part of the inputs, forward and backward."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.refusals import first_line, place
from clearhead.checking.subject.signatures import of_call
from clearhead.checking.subject.subject import Subject

MESHES = ("mesh", "device_mesh", "cp_mesh", "sp_mesh")
GROUPS = ("group", "pg", "process_group", "cp_group", "sp_group")
RANKS = ("rank", "cp_rank", "sp_rank")
WORLDS = ("world", "world_size", "cp_size", "sp_size", "num_ranks")
TOKENS = ("tokens", "num_tokens", "total_tokens", "total_len", "total_length")
POSITIONS = ("positions", "position_ids")
DROPOUTS = ("dropout", "dropout_p")
LOSS = "logits,ids"
"""The arguments that a loss is called with."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "causal": ("causal", "is_causal"),
    "window": ("window", "window_size"),
    "scale": ("scale", "softmax_scale"),
    "softcap": ("softcap",),
    "layout": ("layout",),
}


@dataclass(frozen=True)
class RankCall:
    """A call that every rank makes.

    Attributes:
        inputs: query, key and value of all tokens, and a mask of all pairs where it takes one; of a
            loss the logits, (batch, tokens, vocabulary), and the ids.
        grad: of the output, of all tokens, or of a loss; None for a forward pass alone.
        positions: the tokens of every rank.
        options: what is handed over by name, where a parameter has one.
        seeds: of the random numbers of each rank.
        training: whether a module is in its training mode.
        repeats: how many times the forward pass runs.
    """

    inputs: tuple[Tensor, ...]
    grad: Tensor | None
    positions: tuple[Tensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    training: bool = False
    repeats: int = 1


@dataclass(frozen=True)
class Failure:
    """An error on a rank: in words, with file, line and text of the line that raised it, and whether
    that was in the backward pass."""

    words: str
    at: tuple[str, int, str] | None = None
    backward: bool = False

    def __str__(self) -> str:
        where = "" if self.at is None else f" ({self.at[0].rpartition('/')[2]}, line {self.at[1]})"
        return self.words + " in its backward pass" * self.backward + where


@dataclass(frozen=True)
class RankResult:
    """The result of a call on one rank.

    Attributes:
        outputs: of each run of the forward pass, of this rank's queries.
        grads: of query, key and value; None where none came.
        attached: whether the output has a gradient at all.
        written: the inputs that are not what they were before.
        failure: an error, in place of all that.
    """

    outputs: tuple[Tensor, ...] = ()
    grads: tuple[Tensor | None, ...] = ()
    attached: bool = True
    written: tuple[str, ...] = ()
    failure: Failure | None = None


def run_on_rank(subject: Subject, call: RankCall, rank: int, mesh: DeviceMesh) -> RankResult:
    """The result of a call on this rank; an error is a result as well."""
    here = call.positions[rank]
    device = torch.device(mesh.device_type)
    is_loss = subject.takes == LOSS
    names, axis = (("logits",), 1) if is_loss else (("query", "key", "value"), 2)
    shared, whole = call.inputs[: len(names)], call.inputs[len(names) :]
    tensors = [each.index_select(axis, here).to(device, subject.dtype) for each in shared]
    masks = [each.to(device) for each in whole]
    leaves = [each.requires_grad_(call.grad is not None) for each in tensors]
    if subject.module is not None:
        subject.module.train(call.training)
    backward, outputs, given = False, [], leaves
    try:
        run = bound(subject, call, rank, mesh)
        torch.manual_seed(call.seeds[rank] if call.seeds else 0)
        before = [each.detach().clone() for each in leaves]
        with torch.set_grad_enabled(call.grad is not None):
            for _ in range(call.repeats):
                # An operation in place on a leaf is an error of autograd's: it gets a copy.
                given = [each.clone() for each in leaves]
                outputs.append(output_of(run(*given, *masks))[0])
        written = tuple(
            name
            for name, one, other in zip(names, before, given, strict=True)
            if not torch.equal(one, other)
        )
        grads: tuple[Tensor | None, ...] = ()
        attached = outputs[0].requires_grad
        if call.grad is not None and attached:
            backward = True
            grad = call.grad
            if not is_loss:
                grad = shaped_like(call.grad.index_select(2, here), outputs[0])
            if grad.shape == outputs[0].shape:
                wanted = grad.to(outputs[0])
                grads = torch.autograd.grad(outputs[0], leaves, wanted, allow_unused=True)
    except Exception as error:  # whatever the code of another raises
        return RankResult(failure=Failure(first_line(error), place(error), backward))
    return RankResult(
        tuple(each.detach().double().cpu() for each in outputs),
        tuple(None if each is None else each.double().cpu() for each in grads),
        attached,
        written,
    )


def shaped_like(heads: Tensor, output: Tensor) -> Tensor:
    """A tensor (batch, heads, len, dim) in the shape of an output, whose heads may lie side by side, and
    which may have fewer rows; as it is where nothing fits."""
    beside = heads.transpose(1, 2)
    for other, axis in ((heads, 2), (beside, 1), (beside.flatten(2), 1)):
        if other.ndim == output.ndim:
            cut = other.narrow(axis, 0, min(other.shape[axis], output.shape[axis]))
            if cut.shape == output.shape:
                return cut
    return heads


def bound(subject: Subject, call: RankCall, rank: int, mesh: DeviceMesh) -> Callable[..., Any]:
    """The subject with all that it takes beside its tensors, by name or by annotation."""
    known = of_call(subject.run)
    handed: dict[str, Any] = {}
    group = mesh.get_group()
    for name in list(known)[len(call.inputs) :]:
        found = _argument(name, known[name].annotation, call, rank, mesh, group)
        if found is not None:
            handed[name] = found
        elif known[name].default is inspect.Parameter.empty:
            raise TypeError(
                f"nothing is known to hand over as {name}; known are {', '.join(KNOWN)}"
            )
    return lambda *tensors: subject.run(*tensors, **handed)


KNOWN = ("mesh", "group", "rank", "world", "tokens", "positions", "layout", "dropout", *OPTIONS)


def _argument(name: str, kind: Any, call: RankCall, rank: int, mesh: DeviceMesh, group: Any) -> Any:
    kind = getattr(kind, "__name__", kind if isinstance(kind, str) else "")
    if name in MESHES or kind.endswith("DeviceMesh"):
        return mesh
    if name in GROUPS or kind.endswith("ProcessGroup"):
        return group
    if name in RANKS:
        return rank
    if name in WORLDS:
        return dist.get_world_size(group)
    if name in TOKENS:
        return sum(map(len, call.positions))
    if name in POSITIONS:
        return call.positions[rank].to(mesh.device_type)
    if name in DROPOUTS:
        return call.options.get("dropout", 0.0)
    return next(
        (call.options.get(option) for option, names in OPTIONS.items() if name in names), None
    )


def takes_dropout(subject: Subject) -> bool:
    """True if the probability of dropout is handed over, or a module knows its training mode."""
    return subject.module is not None or any(name in DROPOUTS for name in of_call(subject.run))


def mesh_of_all(device_type: str) -> DeviceMesh:
    """The mesh of all ranks, of one dimension."""
    return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("cp",))


def gathered(parts: Sequence[Tensor], positions: Sequence[Tensor]) -> Tensor:
    """The tokens of all ranks along dimension 2, in the order of the text."""
    whole = torch.cat(list(parts), 2)
    return whole.index_select(2, torch.cat(list(positions)).argsort())
