"""The classes of the tutorials: heads in one matrix, or a list of modules of one head each.

A copy of each is run: nothing else tells whether it hides the future or divides the scores by
another number.
"""

from torch import nn

from clearhead._common.foreign_names import TUTORIALS, ProjectionNames
from clearhead.layers.converting.reader import ModuleReader


def recognises(module: nn.Module) -> bool:
    return all(_names(head) for head in _heads(module) or [module])


def read(reader: ModuleReader) -> None:
    heads = _heads(reader.module)
    if heads:
        _read_heads(reader, heads)
        return
    names = _names(reader.module)
    assert names is not None
    if reader.project_by_name(names, num_heads=reader.num_heads or 1):
        reader.drop("dropout")
        reader.read_scale()


def _read_heads(reader: ModuleReader, heads: list[nn.Module]) -> None:
    found, prefixes = [], [f"heads.{index}." for index in range(len(heads))]
    for prefix, head in zip(prefixes, heads, strict=True):
        names = _names(head)
        assert names is not None
        found.append(reader.projections(*(prefix + name for name in names.inputs)))
    output = reader.projections(*reader.output_of(TUTORIALS[0]))
    if reader.reasons:
        return
    shapes = {tuple(each.weight.shape for each in head) for head in found}
    if len(shapes) > 1:
        reader.reasons.append("heads must have matrices of the same shapes as each other")
        return
    reader.project_heads(found, output[0] if output else None)
    reader.drop(*(f"{prefix}dropout" for prefix in prefixes))
    reader.leave("dropout")


def _heads(module: nn.Module) -> list[nn.Module]:
    """The modules of one head each that a module lists, if it does."""
    heads = getattr(module, "heads", None)
    return list(heads) if isinstance(heads, nn.ModuleList) else []


def _names(module: nn.Module) -> ProjectionNames | None:
    """The names of its matrices, if they are there: layers, or bare matrices."""
    for names in TUTORIALS:
        found = [getattr(module, name, None) for name in names.inputs]
        if all(isinstance(each, nn.Module | nn.Parameter) for each in found):
            return names
    return None
