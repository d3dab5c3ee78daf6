"""Record one call of a user's code, and read the attention in it, operation by operation, as `check` does."""

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
    """One call of a user's code, and the attention in it.

    Attributes:
        name: the name of the code.
        floats: the inputs that are numbers, not masks, on the CPU.
        recorder: its operations.
        lines: the line of each.
        output: the returned tensor.
        cells: its first layer of attention.
        contract: the declarations.
        masked: an argument is a mask.
    """

    name: str
    floats: list[Tensor]
    recorder: Recorder
    lines: Lines
    output: Tensor
    cells: PlacedAttention
    contract: Contract
    masked: bool

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the scores."""
        return self.cells.parts[0].layout.scores.output.dtype

    @property
    def by_sides(self) -> bool:
        """True if query, key and value are arguments."""
        return len(self.floats) > 2 and all(
            node is None or node.kind == "input" for node in self.cells.nodes
        )

    def tokens(self) -> dict[str, Tensor]:
        """Return the inputs of the projections: x, and the sequence attended to."""
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
    """Call a user's code, and read the attention in it.

    Args:
        found: a class, an instance or a function; a module is copied, and left as it was.
        inputs: x, or x and a context, or query, key and value.
        options: declarations as of `check`, under names that are not parameters of the code; its other arguments.

    Raises:
        ArgumentTypeError: code `trace.thing`, for other objects or inputs.
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
    # One tensor that is two arguments stays one.
    copies = {id(each): each.detach().cpu().clone() for each in inputs if isinstance(each, Tensor)}
    taken = [copies.get(id(each), each) for each in inputs]
    run, parameters, buffers = _copied(found)
    tensors = [each for each in taken if isinstance(each, Tensor)]
    floats = [each for each in tensors if each.is_floating_point()]
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
    first, other = floats[0], floats[min(1, len(floats) - 1)]
    lengths = first.shape[-2], other.shape[-2]
    try:
        cells = cells_of(recorder, attentions(recorder), first.shape[:-2].numel(), lengths)
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
    return Recording(name, floats, recorder, lines, output.detach(), cells, contract, masked)


def not_traced(thing: object, inputs: Sequence[object]) -> ArgumentTypeError:
    """The error for an object that is no attention, or inputs that are no tokens."""
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
    """The arguments of the code, and the declarations."""
    called = found.forward if isinstance(found, nn.Module) else found
    called = getattr(called, "forward", called) if isinstance(called, type) else called
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        parameters = {}
    names = {"contract", *FIELDS} - set(parameters)
    declared = {name: each for name, each in options.items() if name in names}
    return {name: each for name, each in options.items() if name not in names}, declared


def _copied(found: Any) -> tuple[Any, dict[int, str], list[int]]:
    """A copy of a module, with the names of its parameters and the places of its buffers."""
    if not isinstance(found, nn.Module):
        return found, {}, []
    with suppress(Exception):  # some objects refuse in their own ways
        found = duplicate(found).to("cpu")
    names = {storage_of(each): name for name, each in found.named_parameters()}
    return found, names, [storage_of(each) for each in found.buffers()]


def _unread(recorder: Recorder, lines: Lines) -> str:
    """The reason why no attention was read, with the line."""

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
