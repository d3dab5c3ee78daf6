"""The definition with the matrices of a learner, and the first thing that differs from it."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import is_output, role
from clearhead._common.lessons import LessonRow
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import RIGHT, Setting

SIDES = {"q": "query", "k": "key", "v": "value", "o": "output"}


class Mistake(NamedTuple):
    """The first difference from what the lesson asks.

    Attributes:
        code: of the mistake, or "" if numbers differ and their cause may have a name.
        measured: the result, and the right one, in words.
        name: of the parameter, attribute or input that it is about; "" without one.
        error: the exception that the code raised; None without one.
        right: the number of right results before it, and the share of right numbers in its own.
    """

    code: str
    measured: str = ""
    name: str = ""
    error: Exception | None = None
    right: tuple[int, float] = (0, 0.0)


class NamedMatrix(NamedTuple):
    """A projection: its matrix as (in, out), and its bias."""

    matrix: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of x, projected, with the bias if there is one."""
        made = x @ self.matrix
        return made if self.bias is None else made + self.bias

    def cut(self, parts: int, heads: int) -> list["NamedMatrix"]:
        """Return the projections in this one, split into `parts` along the columns.

        With several heads, they are followed by those of a split head by head. Raises UnknownOutcomeError if the
        columns do not divide.
        """
        if self.matrix.shape[1] % (parts * heads):
            raise UnknownOutcomeError
        shapes = [(parts, -1)] if heads == 1 else [(parts, -1), (heads, parts, -1)]
        made = []
        for shape in shapes:
            at = torch.arange(self.matrix.shape[1]).reshape(shape)
            at = at if len(shape) == 2 else at.transpose(0, 1).flatten(1)
            made += [
                NamedMatrix(self.matrix[:, each], None if self.bias is None else self.bias[each])
                for each in at
            ]
        return made


Layers = Mapping[str, NamedMatrix]


class UnknownOutcomeError(LookupError):
    """Raised if the right result is unknown, as for parameters without the names of the lesson."""


def layers_of(module: nn.Module, row: LessonRow) -> list[Layers]:
    """Return the projections by their roles, q, k, v and o (if any), once for each meaning that the names allow.

    A projection that computes several sides is cut; if names say nothing, every order is one.

    Raises:
        UnknownOutcomeError: if no meaning is known.
    """
    found: dict[str, dict[str, list[Tensor]]] = {}
    unknown: list[Tensor] = []
    for name, each in module.named_parameters():
        name, _, last = name.rpartition(".")
        if last not in ("weight", "bias"):
            name, last = f"{name}.{last}", "matrix"
        side = "o" if is_output(name.rpartition(".")[2]) else role(name)
        if side is None and each.ndim == 2:
            unknown.append(each if last == "matrix" else each.mT)
        found.setdefault(side or name, {}).setdefault(last, []).append(each)
    named = {side: _matrix(each) for side, each in found.items() if side in (*SIDES, "qkv", "kv")}
    heads = row.contract.get("num_heads", 1)
    others = {side: each for side, each in named.items() if side in SIDES}
    if {"q", "k", "v"} <= set(others):
        return [others]
    if len(unknown) == 3 and set(found) - set(named) and not set("qkv") & set(named):
        cut = [NamedMatrix(each, None) for each in unknown]
    elif len(unknown) == 1 and len(found) == 1 and unknown[0].shape[1] % 3 == 0:
        cut = NamedMatrix(unknown[0], None).cut(3, heads)
    elif set(found) <= {"qkv", "o"} and "qkv" in named:
        cut = named["qkv"].cut(3, heads)
    elif set(found) <= {"q", "kv", "o"} and {"q", "kv"} <= set(named):
        ways = [named["kv"].cut(2, 1), named["kv"].cut(2, 1)[::-1]]
        return [{**others, "k": key, "v": value} for key, value in ways]
    else:
        raise UnknownOutcomeError(", ".join(found))
    groups = [cut[at : at + 3] for at in range(0, len(cut), 3)]
    orders = [order for group in groups for order in itertools.permutations(group)]
    return [{**others, **dict(zip("qkv", order, strict=True))} for order in orders]


def _matrix(parts: Mapping[str, list[Tensor]]) -> NamedMatrix:
    """Return the matrix of one side, as views; heads that have their own are concatenated.

    Raises UnknownOutcomeError without weights of two axes.
    """
    weights = (
        [each.mT for each in parts["weight"]] if "weight" in parts else parts.get("matrix", [])
    )
    if not weights or any(each.ndim != 2 for each in weights):
        raise UnknownOutcomeError
    biases = parts.get("bias")
    bias = None if biases is None else torch.cat(biases)
    return NamedMatrix(torch.cat(weights, 1) if len(weights) > 1 else weights[0], bias)


def definition(layers: Layers, promised: Mapping[str, Any]) -> Callable[..., Tensor]:
    """Return a function (x, of, seen=None) that computes the output of the definition with the module's own matrices.

    x gives the queries, `of` keys and values; the output projection is applied if there is one. With fewer queries than
    keys they are the last ones.
    """
    heads = promised.get("num_heads") or 1
    contract = Contract(
        scale=promised.get("scale"), causal=promised.get("causal"), rope=promised.get("rope")
    )

    def right(x: Tensor, of: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the output for queries from x, and keys and values from `of`.

        `seen` is bool, True for visible pairs.
        """
        query, key, value = (
            layers[side](each).unflatten(-1, (heads, -1)).transpose(-3, -2)
            for side, each in (("q", x), ("k", of), ("v", of))
        )
        sizes = x.shape[-2], of.shape[-2], query.shape[-1], value.shape[-1]
        at = Setting(contract, 1, heads, heads, *sizes, seen)
        context = RIGHT.styled("zero").heads(query, key, value, at).transpose(-3, -2).flatten(-2)
        return layers["o"](context) if "o" in layers else context

    return right
