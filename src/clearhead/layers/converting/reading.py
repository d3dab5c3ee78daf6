"""What is read in a module of another library: which of its tensors is which of ours."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int, is_number
from clearhead.errors import ClearheadError
from clearhead.layers.converting.places import Matrix, Place, Row
from clearhead.layers.parts import Part, Scale
from clearhead.masks.base import Mask

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
DIMS = ("head_dim", "attention_head_size", "key_value_proj_dim", "dim_head")
INPUTS = ("query_projection", "key_projection", "value_projection")


class Reading:
    """What is found in a module, and every reason why it is no layer of ours.

    Args:
        module: the attention of another library.
        beside: what belongs to it and stands elsewhere, such as the projection of the output.
    """

    def __init__(self, module: nn.Module, beside: Mapping[str, nn.Module]) -> None:
        self.module = module
        self.beside = beside
        self.places: list[Place] = []
        self.settings: list[Row] = []
        self.reasons: list[str] = []
        self.parts: list[Part] = []
        self.sizes: dict[str, int] = {}
        self.mask: Mask | None = None
        self.dropout: float | None = None
        # What its weights do not tell is found by running it.
        self.is_probed = False
        self.triangles: list[str] = []
        self._left: dict[str, Tensor] = {}
        for prefix, root in [("", module), *((f"{name}.", each) for name, each in beside.items())]:
            for name, tensor in [
                *root.named_parameters(remove_duplicate=False),
                *root.named_buffers(remove_duplicate=False),
            ]:
                self._left[prefix + name] = tensor

    @property
    def left_over(self) -> list[str]:
        """What nothing was made of, with shapes."""
        return [f"{name} {tuple(tensor.shape)}" for name, tensor in self._left.items()]

    @property
    def config(self) -> Any:
        """The configuration of the model that the module is from, or None."""
        return getattr(self.module, "config", None)

    @property
    def model_type(self) -> str | None:
        """What transformers calls the kind of model; None for a class of one's own."""
        return model_type(self.module)

    def check_model_type(self, known: Collection[str]) -> None:
        """Refuse a model of transformers that was not compared with our layer: what a forward
        does beside its weights cannot be read. A copy of a class of one's own is run instead."""
        if self.model_type is None:
            self.is_probed = True
        elif self.model_type not in known:
            self.reasons.append(
                f"model type {self.model_type!r}: what its forward does is not known; known with "
                f"these names: {', '.join(sorted(known))}"
            )

    @property
    def num_heads(self) -> int | None:
        """What the module or its configuration says, by the names that are usual."""
        return _first_number(self.module, HEADS) or _first_number(self.config, HEADS)

    @property
    def head_dim(self) -> int | None:
        """What the module says, by the names that are usual."""
        return _first_number(self.module, DIMS)

    def copy(self, theirs: str, tensor: Tensor, ours: str, how: str = "copied") -> None:
        """Take a tensor as one of ours."""
        self.places.append(Place(theirs, tensor, ours, how=how))

    def tensor(self, name: str) -> Tensor:
        """A parameter or a buffer, by its name; it counts as read."""
        return self._left.pop(name).detach()

    def has(self, name: str) -> bool:
        """Whether there is such a parameter or buffer that was not read yet."""
        return name in self._left

    def matrix(self, path: str) -> Matrix | None:
        """The projection of that name: a linear layer, a Conv1D of GPT-2, or a bare matrix that is
        used as `x @ matrix`. If it is neither, that is a reason, and the result is None."""
        found = self._find(path)
        if isinstance(found, nn.Parameter) and found.ndim == 2:
            return Matrix(path, self.tensor(path).mT, turned=True)
        forward = getattr(type(found), "forward", None)
        is_turned = type(found).__name__ == "Conv1D" and hasattr(found, "nf")
        if not (is_turned or forward is nn.Linear.forward) or not self.has(f"{path}.weight"):
            kind = f"{type(found).__module__}.{type(found).__name__}"
            self.reasons.append(
                f"{path} must be a plain torch.nn.Linear, whose weight is a parameter; it is a {kind}"
            )
            return None
        weight = self.tensor(f"{path}.weight")
        bias = self.tensor(f"{path}.bias") if self.has(f"{path}.bias") else None
        return Matrix(
            f"{path}.weight", weight.mT if is_turned else weight, is_turned, f"{path}.bias", bias
        )

    def _find(self, path: str) -> object:
        first, _, rest = path.partition(".")
        found: object = self.beside.get(first, getattr(self.module, first, None))
        for name in rest.split(".") if rest else ():
            found = getattr(found, name, None)
        return found

    def project(
        self,
        query: Matrix,
        key: Matrix,
        value: Matrix,
        output: Matrix | None,
        *,
        num_heads: int | None,
        head_dim: int | None = None,
    ) -> None:
        """Take these as the projections of the layer.

        Args:
            query, key, value: the projections of the inputs.
            output: that of the output; None is none, for which ours is the identity.
            num_heads: number of query heads, as the module says it; None if it does not.
            head_dim: width of a query, likewise; one of the two is needed.
        """
        width = len(query.weight)
        dim = width // num_heads if head_dim is None and num_heads else head_dim
        if not dim or (num_heads or width // dim) * dim != width:
            self.reasons.append(
                f"queries of width {width} must be num_heads × head_dim; the module says "
                f"num_heads={num_heads}, head_dim={head_dim}"
            )
        else:
            self._measure([query, key, value], output, width // dim, dim)
            self._place_inputs([[query], [key], [value]])

    def project_heads(self, heads: Sequence[Sequence[Matrix]], output: Matrix | None) -> None:
        """Take the query, key and value of several modules of one head each as the projections."""
        self._measure(heads[0], output, len(heads), len(heads[0][0].weight), stacked=len(heads))
        self._place_inputs([list(same) for same in zip(*heads, strict=True)])

    def _measure(
        self,
        inputs: Sequence[Matrix],
        output: Matrix | None,
        heads: int,
        head_dim: int,
        stacked: int = 1,
    ) -> None:
        """Find the sizes of the layer; `stacked` modules of these widths are its heads."""
        query, key, value = inputs
        key_width, value_width = (len(each.weight) * stacked for each in (key, value))
        kv_heads = key_width // head_dim
        if key_width % head_dim or not kv_heads or heads % kv_heads or value_width % kv_heads:
            self.reasons.append(
                f"keys of width {key_width} and values of width {value_width} are no heads for "
                f"{heads} heads of width {head_dim}"
            )
            return
        widths = [each.weight.shape[1] for each in (key, value)]
        context = heads * (value_width // kv_heads)
        if widths[0] != widths[1]:
            self.reasons.append(
                f"keys are made of width {widths[0]}, values of width {widths[1]}: not one context"
            )
        if output is not None and output.weight.shape[1] != context:
            self.reasons.append(
                f"{output.name} takes width {output.weight.shape[1]}; the heads give {context}"
            )
        self.sizes = {
            "embed_dim": query.weight.shape[1],
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "value_head_dim": value_width // kv_heads,
            "context_dim": widths[0],
            "output_dim": context if output is None else len(output.weight),
        }
        if output is None:
            self.places.append(Place("", None, "output_projection.weight", how="identity"))
        else:
            self._place(output, "output_projection")

    def _place_inputs(self, inputs: Sequence[Sequence[Matrix]]) -> None:
        """Put the matrices of each of query, key and value one below the other."""
        biased = any(each.bias is not None for same in inputs for each in same)
        places, self.places = self.places, []
        for ours, same in zip(INPUTS, inputs, strict=True):
            start = 0
            for matrix in same:
                rows = (start, start + len(matrix.weight)) if len(same) > 1 else None
                self._place(matrix, ours, rows)
                if biased and matrix.bias is None:
                    self.places.append(Place("", None, f"{ours}.bias", rows, "zeros"))
                start += len(matrix.weight)
        self.places += places

    def _place(self, matrix: Matrix, ours: str, rows: tuple[int, int] | None = None) -> None:
        self.places.append(Place(matrix.name, matrix.weight, f"{ours}.weight", rows, matrix.how))
        if matrix.bias is not None:
            self.places.append(Place(matrix.bias_name, matrix.bias, f"{ours}.bias", rows))

    def read_triangles(self) -> None:
        """Take buffers that tell the future from the rest as what hides it."""
        for name, tensor in list(self._left.items()):
            if not isinstance(tensor, nn.Parameter) and _is_triangle(tensor):
                self.tensor(name)
                self.triangles.append(name)

    def add_part(self, part: Part, theirs: str) -> str:
        """Hand a part to the layer; the result is its name in it."""
        name = f"parts.{len(self.parts)}"
        self.parts.append(part)
        self.settings.append(Row(theirs, name, described(part)))
        return name

    def hide(self, mask: Mask, theirs: str) -> None:
        """Hand a mask to the layer."""
        self.mask = mask
        self.settings.append(Row(theirs, "mask", mask.describe()))

    def read_scale(self) -> None:
        """Take the number that the module says it multiplies its scores by."""
        for name in ("scaling", "scale"):
            found: Any = getattr(self.module, name, None)
            if is_number(found):
                self.add_scale(found, name)
                return

    def add_scale(self, scale: float, theirs: str) -> None:
        """Hand the number that scores are multiplied by to the layer, if it is not the usual one."""
        if not math.isclose(scale, 1 / math.sqrt(self.sizes["head_dim"]), rel_tol=1e-9):
            self.add_part(Scale(scale), f"{theirs}={scale:g}")

    def drop(self, *names: str) -> None:
        """Take the first of these as the dropout of the weights: a number, or a layer of it."""
        rates = {name: rate for name in names if (rate := self._rate(name)) is not None}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                self.reasons.append(f"{name} must be a probability below 1; it is {rate}")
            elif rate:
                self.dropout = float(rate)
                self.settings.append(Row(name, "dropout", f"{rate:g}"))
            return

    def leave(self, *names: str) -> None:
        """Say of these, layers of dropout or its rates, that the output's is not in our layer."""
        for name in names:
            rate = self._rate(name)
            if rate:
                self.settings.append(
                    Row(name, "", f"left to you: dropout {rate:g} of the output while training")
                )

    def _rate(self, name: str) -> float | None:
        """A probability of dropout, said as a number or by a layer of it; None for neither."""
        found: Any = self._find(name)
        rate = found.p if isinstance(found, nn.Dropout) else found
        return rate if is_number(rate) else None


def model_type(module: nn.Module) -> str | None:
    """What transformers calls the kind of model, if what the module does is written there."""
    where = getattr(type(module).forward, "__module__", "").split(".")
    if where[:2] != ["transformers", "models"]:
        return None
    found = getattr(getattr(module, "config", None), "model_type", None)
    # A module without a configuration still stands in the folder of its model.
    return found if isinstance(found, str) else where[2]


def described(part: Part) -> str:
    """A part in one line.

    Example:
        >>> from clearhead.layers import Softcap
        >>> described(Softcap(50.0))
        'Softcap(50)'
    """
    return f"{type(part).__name__}({part.extra_repr()})"


def check_tensors(reading: Reading) -> None:
    """Add the reasons that lie in the numbers themselves: their kind, and where they are."""
    tensors = [place.tensor for place in reading.places if place.tensor is not None]
    kinds = sorted({f"{each.dtype} on {each.device}" for each in tensors})
    if len(kinds) > 1:
        reading.reasons.append(
            f"weights must be of one dtype on one device; got {', '.join(kinds)}"
        )
    elif any(not each.is_floating_point() for each in tensors):
        reading.reasons.append(f"weights must be floating; they are {kinds[0]}")
    elif any(each.is_meta for each in tensors):
        reading.reasons.append("weights must be there; they are on the meta device")


def as_refusal(error: ClearheadError) -> str:
    """What a part of ours says against its arguments, as a reason."""
    return error.message.rstrip(".")


def _first_number(place: object, names: Sequence[str]) -> int | None:
    found = (as_int(getattr(place, name, None)) for name in names)
    return next((each for each in found if each), None)


def _is_triangle(mask: Tensor) -> bool:
    """Whether a mask tells the future from the rest, whichever of the two it is 1 for."""
    if mask.ndim < 2 or mask.numel() != mask.shape[-1] ** 2 or not mask.numel():
        return False
    hidden = mask.reshape(mask.shape[-2:]).bool()
    future = torch.ones_like(hidden).triu(1)
    return torch.equal(hidden, future) or torch.equal(hidden, ~future)
