"""Pairs of tensors with the same numbers: one of another library, and one of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from clearhead.layers.parts import Part


@dataclass(frozen=True)
class Row:
    """One line of the report: a tensor or a setting, in the module and in our layer.

    Attributes:
        theirs: the name of a tensor in the module, with a slice if it is a part of it, or of a
            setting; empty for what the module does not have.
        ours: the name of the tensor or the part of our layer; empty for what has no place in it.
        how: what happens to the numbers: "copied", "transposed", "plus 1", and so on.

    Example:
        >>> Row("c_attn.weight[:, 0:64]", "query_projection.weight", "transposed").how
        'transposed'
    """

    theirs: str
    ours: str
    how: str


@dataclass(frozen=True)
class TensorPair:
    """A tensor of theirs, and the tensor of ours with the same numbers.

    Attributes:
        theirs: its name, with a slice if it is a part of a parameter.
        tensor: a view of the parameter, in our shape; None if there is none.
        ours: the name of our parameter.
        rows: the first of its rows and the one behind the last; None is all.
        how: "copied", "transposed" or "plus 1"; "zeros", "ones" or "identity" if there is none of theirs.
    """

    theirs: str
    tensor: Tensor | None
    ours: str
    rows: tuple[int, int] | None = None
    how: str = "copied"

    def found_in(self, ours: Mapping[str, Tensor]) -> Tensor | None:
        """Return the layer's tensor, from all of `ours` by name, or its rows that are paired; None if there is none."""
        found = ours.get(self.ours)
        return found if found is None or self.rows is None else found[slice(*self.rows)]

    def read(self, target: Tensor) -> None:
        """Copy the module's tensor, or the constant for a missing one, into the layer's tensor `target`, in place."""
        same = self._constant(target) if self.tensor is None else self._as_ours(self.tensor)
        target.copy_(same)

    def write(self, source: Tensor) -> None:
        """Copy the layer's tensor into the module's, in place, if it has one and they differ.

        1 is subtracted if `how` is "plus 1".
        """
        if self.tensor is not None and not torch.equal(self._as_ours(self.tensor), source):
            self.tensor.copy_(source - 1 if self.how == "plus 1" else source)

    def _as_ours(self, theirs: Tensor) -> Tensor:
        """Return the numbers of the module's tensor as the layer has them: 1 more if `how` is "plus 1"."""
        return theirs + 1 if self.how == "plus 1" else theirs

    def _constant(self, like: Tensor) -> Tensor:
        """Return the constant that replaces a missing tensor: identity, ones or zeros, shaped as `like`."""
        if self.how == "identity":
            return torch.eye(*like.shape, dtype=like.dtype, device=like.device)
        return torch.ones_like(like) if self.how == "ones" else torch.zeros_like(like)

    def row(self) -> Row:
        """Return the pair as a line of the report."""
        rows = "" if self.rows is None else f"[{self.rows[0]}:{self.rows[1]}]"
        return Row(self.theirs, self.ours + rows, self.how)


@dataclass(frozen=True)
class Projection:
    """A projection of theirs: its weight as (out, in), and its bias.

    Attributes:
        name: of the weight.
        weight: (out, in), a view.
        transposed: True if theirs is (in, out).
        bias_name: of the bias.
        bias: (out,), or None.
    """

    name: str
    weight: Tensor
    transposed: bool = False
    bias_name: str = ""
    bias: Tensor | None = None

    def part(self, start: int, stop: int) -> "Projection":
        """Return the projection restricted to the outputs from start to stop, excluded, as views."""
        where = f"{start}:{stop}"
        return replace(
            self,
            name=f"{self.name}[:, {where}]" if self.transposed else f"{self.name}[{where}]",
            weight=self.weight[start:stop],
            bias_name=f"{self.bias_name}[{where}]",
            bias=None if self.bias is None else self.bias[start:stop],
        )

    def split(self, widths: Sequence[int]) -> list["Projection"]:
        """Return the projection as parts with these numbers of outputs."""
        edges = [0, *accumulate(widths)]
        return [self.part(start, stop) for start, stop in pairwise(edges)]

    def pairs(self, ours: str, rows: tuple[int, int] | None = None) -> list[TensorPair]:
        """Return one pair for the weight and one for the bias, if any, with the layer's projection `ours`.

        `rows` are the first row of ours and the one after the last; None is all.
        """
        how = "transposed" if self.transposed else "copied"
        pairs = [TensorPair(self.name, self.weight, f"{ours}.weight", rows, how)]
        if self.bias is not None:
            pairs.append(TensorPair(self.bias_name, self.bias, f"{ours}.bias", rows))
        return pairs


def described(part: Part) -> str:
    """Return a part in one line of text.

    Example:
        >>> from clearhead.layers import Softcap
        >>> described(Softcap(50.0))
        'Softcap(50)'
    """
    return f"{type(part).__name__}({part.extra_repr()})"
