"""The classes of the tutorials: heads in one matrix, or a list of modules of one head each.

A copy of each is run, since nothing else tells whether it hides the future or divides the scores
by another number.
"""

from typing import Any

from torch import nn

from clearhead.layers.converting.places import Matrix
from clearhead.layers.converting.reading import Reading

INPUTS = (
    ("W_query", "W_key", "W_value"),
    ("weight_query", "weight_key", "weight_value"),
    ("query", "key", "value"),
)
OUTPUTS = ("out_proj", "output_projection", "proj")


def recognises(module: nn.Module) -> bool:
    heads = getattr(module, "heads", None)
    if isinstance(heads, nn.ModuleList):
        return len(heads) > 0 and all(_names(head) for head in heads)
    return _names(module) is not None


def read(reading: Reading) -> None:
    module: Any = reading.module
    reading.is_probed = True
    listed = isinstance(getattr(module, "heads", None), nn.ModuleList)
    prefixes = [f"heads.{index}." for index in range(len(module.heads))] if listed else [""]
    heads = []
    for prefix in prefixes:
        names = _names(module.get_submodule(prefix.rstrip(".")) if prefix else module) or ()
        heads.append([reading.matrix(prefix + name) for name in names])
    path = next((name for name in OUTPUTS if getattr(module, name, None) is not None), None)
    path = "output" if "output" in reading.beside else path
    output = None if path is None else reading.matrix(path)
    if reading.reasons:
        return
    found = [[each for each in head if each is not None] for head in heads]
    if listed:
        _stack(reading, found, output)
        reading.drop(*(f"{prefix}dropout" for prefix in prefixes))
        reading.leave("dropout")
    else:
        query, key, value = found[0]
        reading.project(
            query, key, value, output, num_heads=reading.num_heads or 1, head_dim=reading.head_dim
        )
        reading.drop("dropout")
    if not listed and reading.sizes:
        reading.read_scale()


def _names(module: nn.Module) -> tuple[str, ...] | None:
    """What its matrices are called, if they are there: layers, or bare matrices."""
    for names in INPUTS:
        found = [getattr(module, name, None) for name in names]
        if all(isinstance(each, nn.Module | nn.Parameter) for each in found):
            return names
    return None


def _stack(reading: Reading, heads: list[list[Matrix]], output: Matrix | None) -> None:
    """Take the matrices of several heads as the rows of ours."""
    shapes = [[tuple(each.weight.shape) for each in head] for head in heads]
    if any(each != shapes[0] for each in shapes):
        reading.reasons.append("heads must have matrices of the same shapes as each other")
        return
    reading.project_heads(heads, output)
