"""One call of a subject on one rank: its share of the inputs, forward and backward."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from clearhead.checking.evidence.attempts import heads_first
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.refusals import first_line, place
from clearhead.checking.subject.signatures import of_call
from clearhead.checking.subject.subject import Subject

KNOWN = "mesh, group, rank, world, tokens, positions, layout, causal, window, scale, softcap"
"""The arguments that are passed by name."""


@dataclass(frozen=True)
class RankCall:
    """A call that every rank makes.

    Attributes:
        inputs: query, key and value of all tokens, and the mask of all pairs if the subject takes one.
        grad: of the output, of all tokens; None for a forward pass alone.
        positions: the tokens of every rank.
        options: arguments passed by name, where the subject has a parameter of that name.
    """

    inputs: tuple[Tensor, ...]
    grad: Tensor | None
    positions: tuple[Tensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A rank without a result.

    Attributes:
        kind: "raises", "hangs", "runs" (still running) or "ended" (its process).
        words: the error, the call that it waits in, or how its process ended.
        at: file and line of the checked code, if known.
    """

    kind: str
    words: str
    at: tuple[str, int] | None = None

    def __str__(self) -> str:
        """Return `words`, and file and line in brackets if they are known."""
        where = "" if self.at is None else f" ({Path(self.at[0]).name}, line {self.at[1]})"
        return f"{self.words}{where}"


@dataclass(frozen=True)
class RankResult:
    """The result of a call on one rank, on the CPU in float64.

    Attributes:
        output: of its own queries, (batch, heads, tokens, dim) if it has these axes.
        grads: of query, key and value; None for one without a gradient.
    """

    output: Tensor
    grads: tuple[Tensor | None, ...] = (None, None, None)


Outcome = RankResult | Failure


def run_on_rank(subject: Subject, call: RankCall, rank: int, mesh: DeviceMesh) -> Outcome:
    """Return the result of a call on this rank, or a Failure if the subject raises.

    Each rank gets its tokens of query, key and value, and the whole mask. PyTorch's generator is seeded. `grads` are
    None without `call.grad`, and if the shapes do not fit.
    """
    here, device = call.positions[rank], torch.device(mesh.device_type)
    leaves = [
        each.index_select(2, here).to(device, subject.dtype).requires_grad_(call.grad is not None)
        for each in call.inputs[:3]
    ]
    masks = [each.to(device) for each in call.inputs[3:]]
    backward, grads = "", (None, None, None)
    try:
        run = bound(subject, call, rank, mesh)
        torch.manual_seed(0)
        with torch.set_grad_enabled(call.grad is not None):
            # An operation in place on a leaf is an error of autograd's: it gets a copy.
            output = output_of(run(*(each.clone() for each in leaves), *masks))[0]
            output = heads_first(output, call.inputs[0].shape[1], len(here))
        if call.grad is not None and output.requires_grad:
            backward = " in its backward pass"
            # A rank that lacks rows takes part in the backward pass, for the others wait for it.
            rows = output.shape[2] if output.ndim == 4 else len(here)
            grad = call.grad.index_select(2, here)[:, :, :rows].to(output)
            if grad.shape == output.shape:
                grads = torch.autograd.grad(output, leaves, grad, allow_unused=True)
    except Exception as error:  # any error of the checked code
        at = place(error)
        words = f"raises {first_line(error)}{backward}"
        return Failure("raises", words, None if at is None else at[:2])
    return RankResult(
        output.detach().double().cpu(),
        tuple(None if each is None else each.double().cpu() for each in grads),
    )


def bound(subject: Subject, call: RankCall, rank: int, mesh: DeviceMesh) -> Callable[..., Any]:
    """Return the subject with its other arguments bound by keyword, by their names or annotations.

    Raises TypeError for a parameter without a default for which no value is known.
    """
    parameters, group = of_call(subject.run), mesh.get_group()
    given: dict[str, Any] = {}
    for names, value in (
        ("mesh device_mesh cp_mesh sp_mesh", mesh),
        ("group pg process_group cp_group sp_group", group),
        ("rank cp_rank sp_rank", rank),
        ("world world_size cp_size sp_size num_ranks", len(call.positions)),
        ("tokens num_tokens total_tokens total_len total_length", sum(map(len, call.positions))),
        ("positions position_ids", call.positions[rank].to(mesh.device_type)),
        ("dropout dropout_p", 0.0),
        ("causal is_causal", call.options.get("causal")),
        ("window window_size", call.options.get("window")),
        ("scale softmax_scale", call.options.get("scale")),
        ("softcap", call.options.get("softcap")),
        ("layout", call.options.get("layout")),
    ):
        given |= dict.fromkeys(names.split(), value)
    passed: dict[str, Any] = {}
    for name in list(parameters)[len(call.inputs) :]:
        kind = parameters[name].annotation
        kind = getattr(kind, "__name__", kind if isinstance(kind, str) else "")
        by_kind = {"DeviceMesh": mesh, "ProcessGroup": group}.get(kind.rpartition(".")[2])
        value = given.get(name) if by_kind is None else by_kind
        if value is not None:
            passed[name] = value
        elif parameters[name].default is inspect.Parameter.empty:
            raise TypeError(f"no value is known for {name}; known are {KNOWN}")
    return lambda *tensors: subject.run(*tensors, **passed)


def mesh_of_all(device_type: str) -> DeviceMesh:
    """Return a mesh of all ranks with one dimension, "cp"; a process group must be initialized."""
    return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("cp",))
