"""Anybody's code as a traced call: what it computed is read operation by operation, as `check` reads it."""

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.checking import contract_of
from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.copying import duplicate
from clearhead.checking.subject.subject import name_of, prepare, undisturbed
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.recording.cells import PlacedAttention, cells_of
from clearhead.recording.lines import Lines
from clearhead.recording.observed import attentions
from clearhead.recording.recorder import Recorder, storage_of

SEEDS = 1 << 62
"""A class draws its weights as it would after the seed that was set last."""

ADDED_UP = ("dot", "sum", "einsum")
"""Operations by which products are added up without a product of matrices."""


@dataclass(frozen=True, eq=False)
class Recording:
    """One call of anybody's code, and the attention in it.

    Attributes:
        name: what a person calls the code.
        inputs: what was handed over, on the CPU.
        recorder: its operations.
        lines: the line of each.
        output: what it gave.
        cells: its first layer of attention.
        contract: what is declared.
        masked: a mask was handed over.
    """

    name: str
    inputs: tuple[Tensor, ...]
    recorder: Recorder
    lines: Lines
    output: Tensor
    cells: PlacedAttention
    contract: Contract
    masked: bool

    @property
    def floats(self) -> list[Tensor]:
        """The inputs that are numbers, not masks."""
        return [each for each in self.inputs if each.is_floating_point()]

    @property
    def by_sides(self) -> bool:
        """Query, key and value are handed over, as they are multiplied."""
        return len(self.floats) > 2 and all(
            node is None or node.kind == "input" for node in self.cells.nodes
        )

    def tokens(self) -> dict[str, Tensor]:
        """The inputs of which query, key and value are made: x, and the sequence attended to."""
        if self.by_sides:
            return {}
        first, other = self.floats[0], self.floats[min(1, len(self.floats) - 1)]
        return {"x": first} if torch.equal(first, other) else {"x": first, "source": other}

    def origin(self, name: str) -> str:
        """The formula of query, key or value."""
        if self.by_sides:
            return "an argument"
        node = self.cells.nodes[("query", "key", "value").index(name)]
        source = "source" if name != "query" and "source" in self.tokens() else "x"
        if node is None:
            return f"made of {source}"
        if node.kind == "input":
            return f"the same as {source}"
        if node.kind != "linear" or node.constant is None:
            return f"made of {source} by {node.name}"
        if node.constant == 0:
            return f"a matrix times rows made of {source}: each is mixed of several tokens"
        weight = self.recorder.parameters.get(node.storages[node.constant], "a matrix")
        return f"{source} times {weight}"

    def line(self, place: int) -> str:
        """The line of an operation, as "line 12"; "" where it is not known."""
        found = self.lines.found.get(place)
        return "" if found is None else f"line {found[1]}"


def record(found: Any, inputs: Sequence[Tensor], options: Mapping[str, Any]) -> Recording:
    """Call anybody's code, and read the attention in it.

    Args:
        found: a class, an instance or a function; a module is copied, and left as it was.
        inputs: what it takes: x, or x and a context, or query, key and value.
        options: what is declared, as for `check`, by names that the code itself does not take; the others
            are handed to it.

    Raises:
        ArgumentTypeError: code `trace.thing`, for what is no code of tensors of numbers.
        UnsupportedError: code `trace.unread`, for code without an attention that can be read.
    """
    floats = [each for each in inputs if isinstance(each, Tensor) and each.is_floating_point()]
    if not callable(found) or not floats or floats[0].ndim < 2:
        raise not_traced(found, inputs)
    given, declared = _divided(found, options)
    sizes = {"d_in": floats[0].shape[-1]}
    contract = contract_of(declared.pop("contract", None), sizes, declared)
    name = name_of(found)
    if isinstance(found, type):
        with undisturbed():
            found = prepare(found, "x", None, contract, torch.initial_seed() % SEEDS).original
    taken = _on_the_cpu(inputs)
    run, parameters, buffers = _copied(found)
    tensors = [each for each in taken if isinstance(each, Tensor)]
    recorder = Recorder(tensors, parameters, buffers)
    lines = Lines(tensors)
    fast = torch.backends.mha.get_fastpath_enabled()
    # One operation for a whole layer shows nothing of what it does.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), recorder, lines:
            returned = run(*taken, **given)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    output, _ = output_of(returned)
    batch, lengths = _sizes(floats)
    try:
        cells = cells_of(recorder, attentions(recorder), batch, lengths)
    except (RuntimeError, ValueError, IndexError):  # shapes that no attention has
        cells = None
    if cells is None:
        why = _unread(recorder, lines)
        raise UnsupportedError(
            "trace.unread",
            f"no attention can be read in {name}: {why}. A function of query and key, of scores, or of weights and "
            "value, with parameters of these names, is traced as a part; a model is watched: clearhead.watch(model).",
        )
    masked = len(floats) < len(inputs) or any(isinstance(each, Tensor) for each in given.values())
    return Recording(
        name, tuple(tensors), recorder, lines, output.detach(), cells, contract, masked
    )


def not_traced(thing: object, inputs: Sequence[object]) -> ArgumentTypeError:
    """The error for what is no attention, or is called with no tokens."""
    kinds = ", ".join(type(each).__name__ for each in inputs) or "nothing"
    first = next(iter(inputs), None)
    if isinstance(first, Tensor):
        kinds = f"{str(first.dtype).removeprefix('torch.')} {list(first.shape)}"
    return ArgumentTypeError(
        "trace.thing",
        "trace takes clearhead.attend, a MultiHeadAttention, a rung of the ladder, or code of your own, "
        f"called with tokens (tokens, width) or (batch, tokens, width) of floating point; got {name_of(thing)} "
        f"with {kinds}. A model is watched: clearhead.watch(model).",
    )


def _divided(
    found: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of the code, and the declarations."""
    called = found.forward if isinstance(found, nn.Module) else found
    called = getattr(called, "forward", called) if isinstance(called, type) else called
    try:
        own = inspect.signature(called).parameters
    except (TypeError, ValueError):
        own = {}
    names = ("contract", *FIELDS)
    declared = {name: each for name, each in options.items() if name in names and name not in own}
    return {name: each for name, each in options.items() if name not in declared}, declared


def _on_the_cpu(inputs: Sequence[Any]) -> list[Any]:
    """Copies, of which two are one where they were."""
    copies = {id(each): each.detach().cpu().clone() for each in inputs if isinstance(each, Tensor)}
    return [copies.get(id(each), each) for each in inputs]


def _copied(found: Any) -> tuple[Any, dict[int, str], list[int]]:
    """A copy of a module, with the names of its parameters and the places of its buffers."""
    if not isinstance(found, nn.Module):
        return found, {}, []
    with suppress(Exception):  # some objects refuse in their own ways
        found = duplicate(found).to("cpu")
    names = {storage_of(each): name for name, each in found.named_parameters()}
    return found, names, [storage_of(each) for each in found.buffers()]


def _sizes(floats: Sequence[Tensor]) -> tuple[int, tuple[int, int]]:
    """The samples, or samples and heads, and the lengths of queries and keys."""
    first, other = floats[0], floats[min(1, len(floats) - 1)]
    return first.shape[:-2].numel(), (first.shape[-2], other.shape[-2])


def _unread(recorder: Recorder, lines: Lines) -> str:
    """The reason why nothing could be read, with the line."""

    def where(place: int) -> str:
        found = lines.found.get(place)
        if found is None:
            return ""
        code = linecache.getline(*found).strip()
        return f" in line {found[1]} of {Path(found[0]).name}" + (f", {code}" if code else "")

    products = [node for node in recorder.nodes if node.kind in ("product", "fused")]
    singles = [node for node in recorder.nodes if node.name in ADDED_UP and node.tags]
    if singles and (not products or singles[0].place < products[0].place):
        return (
            f"products are added up number by number{where(singles[0].place)}; read are products of rows and matrices, "
            "as query @ key.mT"
        )
    if products:
        return (
            f"the product{where(products[0].place)} is of two things that depend on the input, but no weights that are "
            "made of it multiply a value, row by row of the tokens"
        )
    return "no numbers that depend on the input are multiplied with each other"
