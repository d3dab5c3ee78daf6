"""The reader of a module of another library: which of its tensors is which of ours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int, is_number
from clearhead._common.foreign_names import SIZE_NAMES, ProjectionNames
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.tensor_pairs import Projection, Row, TensorPair, described
from clearhead.layers.converting.weights import hooks_of_transformers, weights_of
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.parts import Part, Scale
from clearhead.layers.rotary import Layout
from clearhead.masks.base import Mask

INPUTS = ("query_projection", "key_projection", "value_projection")


class Fitted(NamedTuple):
    """Settings of a module that neither weights nor names tell; a run of a copy does.

    Attributes:
        layout: of its rotary positions; None if it does not rotate.
        partly: True if it rotates the part of a head that its configuration says.
        capped: True if it caps its scores at the bound that it holds.
        norms: "plus 1" if its norms multiply by 1 + their weight, else "copied".
        mask: the mask of a class of the user's; transformers' modules get theirs from the model.
    """

    layout: Layout | None = None
    partly: bool = True
    capped: bool = True
    norms: str = "copied"
    mask: Mask | None = None


class ModuleReader:
    """Reads a module: its projections, sizes, parts and mask, and every reason against it.

    Args:
        module: the attention of another library.
        related: modules that belong to it but are not its children, such as the output projection.
        guess: the assumed behaviour of the module; None is that of most modules without positions.

    Attributes:
        reasons: why the module cannot be converted, each as text; [] if it can.
        alone: reasons against the layer by itself; an adapter has from the model what it lacks.
        unsaid: the reason if neither the module nor a given mask says whether it sees later tokens; "" without one.
        unshared: the reason against a layer that shares the weights of the module; "" without one.
        call: the number of inputs of a module that was run, and of what its tuple holds, 0 for a tensor; or None.
        is_probed: True if a copy is to be run, to find what weights do not tell.
        triangles: the names of the buffers that are triangular masks.
    """

    def __init__(
        self,
        module: nn.Module,
        related: Mapping[str, nn.Module] | None = None,
        guess: Fitted | None = None,
    ) -> None:
        self.module = module
        self.related = related or {}
        self.guess = guess or Fitted()
        self.pairs: list[TensorPair] = []
        self.settings: list[Row] = []
        self.reasons: list[str] = []
        self.alone: list[str] = []
        self.unsaid = ""
        self.unshared = ""
        self.parts: list[Part] = []
        self.kind: type[AttentionLayer] = MultiHeadAttention
        self.sizes: dict[str, int] = {}
        self.options: dict[str, Any] = {}
        self.mask: Mask | None = None
        self.dropout: float | None = None
        self.output_dropout = 0.0
        self.call: tuple[int, int] | None = None
        self.is_probed = True
        self.triangles: list[str] = []
        self._left = {
            f"{name}.{path}".lstrip("."): tensor
            for name, root in [("", module), *self.related.items()]
            for path, tensor in [
                *root.named_parameters(remove_duplicate=False),
                *root.named_buffers(remove_duplicate=False),
            ]
        }

    @property
    def left_over(self) -> list[str]:
        """The tensors that were not read, as text "name shape"; [] if all were."""
        return [f"{name} {tuple(tensor.shape)}" for name, tensor in self._left.items()]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The report: one row for each tensor and each setting that was read."""
        return (*(pair.row() for pair in self.pairs), *self.settings)

    @property
    def like(self) -> Tensor:
        """One of the tensors that were read, for their dtype and device; StopIteration if none was."""
        return next(pair.tensor for pair in self.pairs if pair.tensor is not None)

    @property
    def config(self) -> Any:
        """The configuration that the module stores, or None."""
        return getattr(self.module, "config", None)

    @property
    def model_type(self) -> str | None:
        """The model type, as transformers names it; None for classes outside of transformers."""
        return model_type(self.module)

    def check_forward(self) -> None:
        """Add a reason for each hook and each forward of an instance, except those of accelerate and transformers."""
        for root, module in [("", self.module), *self.related.items()]:
            for path, each in module.named_modules(prefix=root):
                name = path or "the module"
                hooks = each._forward_hooks.keys() - hooks_of_transformers(each).keys()
                if hooks or each._forward_pre_hooks:
                    self.reasons.append(
                        f"{name} has a hook, which may change what it gives; remove it before"
                    )
                if "forward" in vars(each) and "_hf_hook" not in vars(each):
                    self.reasons.append(
                        f"{name} has a forward of its own instead of that of its class, "
                        f"{type(each).__name__}"
                    )

    @property
    def is_own(self) -> bool:
        """True for a class that is not from transformers."""
        return self.model_type is None

    @property
    def num_heads(self) -> int | None:
        """The number of heads, from the module or else from its configuration; None if neither has it."""
        return _size(self.module, "num_heads") or _size(self.config, "num_heads")

    def size(self, name: str) -> int | None:
        """Return the module's size that we call `name`, under its usual names elsewhere; None if there is none."""
        return _size(self.module, name)

    def copy(self, theirs: str, tensor: Tensor, ours: str, how: str = "copied") -> None:
        """Add the pair of a tensor, `theirs` in the module and `ours` in the layer; nothing is copied yet."""
        self.pairs.append(TensorPair(theirs, tensor, ours, how=how))

    def tensor(self, name: str) -> Tensor:
        """Return a parameter or buffer by its name, detached, and mark it as read; KeyError if there is none left."""
        return self._left.pop(name).detach()

    def has(self, name: str) -> bool:
        """Return True if there is a parameter or buffer of this name that was not read yet."""
        return name in self._left

    def projection(self, path: str) -> Projection | None:
        """Return the linear layer, Conv1D or matrix (`x @ matrix`) of that name; None, with a reason, if not plain.

        Marks its tensors as read, and sets `unshared` if the weight is not a tensor of the module.
        """
        found = self.find(path)
        if isinstance(found, nn.Parameter) and found.ndim == 2:
            return Projection(path, self.tensor(path).mT, transposed=True)
        read = weights_of(found)
        if isinstance(read, str):
            self.reasons.append(f"{path} {read}")
            return None
        held = [self.tensor(name) for name in list(self._left) if name.startswith(f"{path}.")]
        if not any(each.data_ptr() == read[0].data_ptr() for each in held):
            self.unshared = (
                f"the weight of {path} is offloaded, quantised, or a sum with others: no layer can share it, and a "
                "layer by itself has a copy"
            )
        is_conv = type(found).__name__ == "Conv1D"
        return Projection(f"{path}.weight", read[0], is_conv, f"{path}.bias", read[1])

    def projections(self, *paths: str) -> list[Projection]:
        """Return the projections of these names; [] if one is not plain, with a reason for each that is not."""
        found = [self.projection(path) for path in paths]
        return [each for each in found if each is not None] if None not in found else []

    def find(self, path: str) -> Any:
        """Return the attribute at a dotted path in the module or a module next to it; None if there is none."""
        first, *rest = path.split(".")
        found = self.related.get(first, getattr(self.module, first, None))
        for name in rest:
            found = getattr(found, name, None)
        return found

    def output_of(self, names: ProjectionNames) -> list[str]:
        """Return the name of the output projection in a list, "output" if one was given; [] if none or an identity."""
        if "output" in self.related:
            return ["output"]
        there = [
            name for name in names.output if isinstance(self.find(name), nn.Module | nn.Parameter)
        ]
        return [name for name in there[:1] if not isinstance(self.find(name), nn.Identity)]

    def project(
        self,
        query: Projection,
        key: Projection,
        value: Projection,
        output: Projection | None = None,
        *,
        num_heads: int | None,
    ) -> bool:
        """Set projections and sizes of the layer and return True; False, with a reason, if the widths are no heads.

        No `output` is the identity; `num_heads` of None follows from the module's head_dim.
        """
        width, head_dim = len(query.weight), self.size("head_dim")
        dim = width // num_heads if head_dim is None and num_heads else head_dim
        if not dim or (num_heads or width // dim) * dim != width:
            self.reasons.append(
                f"queries of width {width} must be num_heads × head_dim; the module says "
                f"num_heads={num_heads}, head_dim={head_dim}"
            )
            return False
        return self.project_heads([(query, key, value)], output, width // dim)

    def project_heads(
        self,
        heads: Sequence[Sequence[Projection]],
        output: Projection | None,
        num_heads: int | None = None,
    ) -> bool:
        """Set `sizes` and pairs from stacked projections; False, with a reason, if they are no heads.

        Args:
            heads: query, key and value of modules of the same shapes.
            output: as for `project`; True with a reason, if its width does not fit, or key and value read other widths.
            num_heads: number of query heads in all; None is one a module.
        """
        query, key, value = heads[0]
        num_heads = len(heads) if num_heads is None else num_heads
        widths = [len(each.weight) * len(heads) for each in (query, key, value)]
        head_dim, context_dims = (
            widths[0] // num_heads,
            [key.weight.shape[1], value.weight.shape[1]],
        )
        kv_heads = widths[1] // head_dim
        if widths[1] % head_dim or not kv_heads or num_heads % kv_heads or widths[2] % kv_heads:
            self.reasons.append(
                f"keys of width {widths[1]} and values of width {widths[2]} are no heads for "
                f"{num_heads} heads of width {head_dim}"
            )
            return False
        if context_dims[0] != context_dims[1]:
            self.reasons.append(
                f"keys are made of width {context_dims[0]}, values of width {context_dims[1]}: not "
                "one context"
            )
        value_head_dim = widths[2] // kv_heads
        given = num_heads * value_head_dim
        if output is not None and output.weight.shape[1] != given:
            self.reasons.append(
                f"{output.name} takes width {output.weight.shape[1]}; the heads give {given}"
            )
        self.sizes = {
            "embed_dim": query.weight.shape[1],
            "num_heads": num_heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "value_head_dim": value_head_dim,
            "context_dim": context_dims[0],
            "output_dim": given if output is None else len(output.weight),
        }
        self._pair_inputs([list(same) for same in zip(*heads, strict=True)])
        if output is None:
            self.pairs.append(TensorPair("", None, "output_projection.weight", how="identity"))
        else:
            self.pairs += output.pairs("output_projection")
        return True

    def _pair_inputs(self, inputs: Sequence[Sequence[Projection]]) -> None:
        """Add the pairs of `inputs`, a stack each of query, key, value projections; zeros for biases that some lack."""
        biased = any(each.bias is not None for same in inputs for each in same)
        for ours, same in zip(INPUTS, inputs, strict=True):
            start = 0
            for each in same:
                rows = (start, start + len(each.weight)) if len(same) > 1 else None
                self.pairs += each.pairs(ours, rows)
                if biased and each.bias is None:
                    self.pairs.append(TensorPair("", None, f"{ours}.bias", rows, "zeros"))
                start += len(each.weight)

    def read_triangles(self) -> None:
        """Mark buffers that are triangles as read, and add their names to `triangles`; no mask is set."""
        for name, tensor in list(self._left.items()):
            if not isinstance(tensor, nn.Parameter) and _is_triangle(tensor):
                self.tensor(name)
                self.triangles.append(name)

    def add_part(self, part: Part, theirs: str) -> str:
        """Add a part to the layer, report it as read from `theirs`, and return its parameter prefix, "parts.0"."""
        name = f"parts.{len(self.parts)}"
        self.parts.append(part)
        self.settings.append(Row(theirs, name, described(part)))
        return name

    def hide(self, mask: Mask, theirs: str) -> None:
        """Set the mask of the layer, and report it as read from `theirs`."""
        self.mask = mask
        self.settings.append(Row(theirs, "mask", mask.describe()))

    def read_scale(self) -> None:
        """Add the first number in scaling, scale or softmax_scale as the scale; no-op if there is none."""
        for name in ("scaling", "scale", "softmax_scale"):
            found: Any = getattr(self.module, name, None)
            if is_number(found):
                self.add_scale(found, name)
                return

    def add_scale(self, scale: float, theirs: str) -> None:
        """Add the scale of the scores to the layer, unless it is 1/√head_dim, the rotated part included."""
        width = self.sizes["head_dim"] + self.sizes.get("rotary_dim", 0)
        if not math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-9):
            self.add_part(Scale(scale), f"{theirs}={scale:g}")

    def drop(self, *names: str) -> None:
        """Set `dropout` to the first of these that is a rate or nn.Dropout, unless it is 0.

        That adds a row to `settings`; a rate below 0, or not below 1, adds to `reasons` instead.
        """
        rates = {name: rate for name in names if (rate := self._rate(name)) is not None}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                self.reasons.append(f"{name} must be a probability below 1; it is {rate}")
            elif rate:
                self.dropout = rate
                self.settings.append(Row(name, "dropout", f"{rate:g}"))
            return

    def leave(self, *names: str) -> None:
        """Set `output_dropout` to the last of these rates above 0, and report each as left out of the layer."""
        for name in names:
            rate = self._rate(name)
            if rate:
                self.output_dropout = rate
                self.settings.append(
                    Row(name, "", f"left to you: dropout {rate:g} of the output while training")
                )

    def check_tensors(self) -> None:
        """Add a reason unless the tensors that were read are floating, of one dtype on one device, and not on meta."""
        tensors = [pair.tensor for pair in self.pairs if pair.tensor is not None]
        kinds = sorted({f"{each.dtype} on {each.device}" for each in tensors})
        if len(kinds) > 1:
            self.reasons.append(
                f"weights must be of one dtype on one device; got {', '.join(kinds)}"
            )
        elif any(not each.is_floating_point() for each in tensors):
            self.reasons.append(f"weights must be floating; they are {kinds[0]}")
        elif any(each.is_meta for each in tensors):
            self.reasons.append("weights must be there; they are on the meta device")

    def _rate(self, name: str) -> float | None:
        """Return a dropout rate, from a number or an nn.Dropout; None if the attribute is neither."""
        found = self.find(name)
        rate = found.p if isinstance(found, nn.Dropout) else found
        return float(rate) if is_number(rate) else None


def has_projections(names: ProjectionNames, module: nn.Module) -> bool:
    """Return True if a module has layers or matrices of these names; the output counts only if inputs are packed."""
    wanted = names.inputs if len(names.inputs) == 3 else names.inputs + names.output
    found = [getattr(module, name, None) for name in wanted]
    return all(isinstance(each, nn.Module | nn.Parameter) for each in found)


def model_type(module: nn.Module) -> str | None:
    """Return the model type, as transformers names it, if the module's forward is defined there; else None."""
    where = getattr(type(module).forward, "__module__", "").split(".")
    if where[:2] != ["transformers", "models"]:
        return None
    found = getattr(getattr(module, "config", None), "model_type", None)
    # A module without a configuration still stands in the folder of its model.
    return found if isinstance(found, str) else where[2]


def _size(place: object, name: str) -> int | None:
    """Return an object's size that we call `name`, its first attribute of the usual names; None if none is above 0."""
    found = (as_int(getattr(place, theirs, None)) for theirs in SIZE_NAMES[name])
    return next((each for each in found if each), None)


def _is_triangle(mask: Tensor) -> bool:
    """Return True if a tensor is one square matrix, non-zero exactly after the diagonal, or exactly up to it."""
    if mask.ndim < 2 or mask.numel() != mask.shape[-1] ** 2 or not mask.numel():
        return False
    hidden = mask.reshape(mask.shape[-2:]).bool()
    future = torch.ones_like(hidden).triu(1)
    return torch.equal(hidden, future) or torch.equal(hidden, ~future)
