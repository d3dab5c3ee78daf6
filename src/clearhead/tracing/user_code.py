"""Record one call of user code, and find the attention in it."""

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.checking import contract_of
from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.copying import duplicate
from clearhead.checking.subject.subject import name_of, prepare, undisturbed
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.ladder import SimpleAttention
from clearhead.ladder.rung import Rung
from clearhead.recording.attempt import attempt
from clearhead.recording.lines import Lines
from clearhead.recording.observed import ObservedAttention, attentions
from clearhead.recording.recorder import Node, Recorder, storage_of

SEEDS = 1 << 62
"""A class draws its weights as it would after the seed that was set last."""

SIDES = ("query", "key", "value")


@dataclass(frozen=True)
class Origin:
    """The operation that computed the rows of query, key or value.

    Attributes:
        node: the operation of the first head; None if it is not known.
        heads: for each head, its operation and its first column in the output of that; () if not known.
        mixed: True if the rows are not those of the tokens in order.
    """

    node: Node | None = None
    heads: tuple[tuple[Node, int], ...] = ()
    mixed: bool = False


@dataclass(frozen=True, eq=False)
class Recording:
    """One call of user code, and the attention in it.

    Attributes:
        name: the name of the code.
        floats: the inputs that are numbers, not masks, on the CPU.
        recorder: its operations.
        lines: the line of each operation, by its place.
        output: the returned tensor.
        attention: the first layer of attention, its blocks in the order of samples and heads.
        batch: the number of samples; 1 if all of them are attended to as one text.
        others: the number of other attentions in the call.
        origins: those of query, key and value.
        contract: the declarations.
        masked: an argument is a mask.
    """

    name: str
    floats: list[Tensor]
    recorder: Recorder
    lines: Mapping[int, tuple[str, int]]
    output: Tensor
    attention: ObservedAttention
    batch: int
    others: int
    origins: tuple[Origin, ...]
    contract: Contract
    masked: bool

    @property
    def heads(self) -> int:
        """The number of heads: blocks of the attention per sample."""
        return len(self.attention.query) // self.batch

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the scores."""
        return self.attention.layout.scores.output.dtype

    @property
    def by_sides(self) -> bool:
        """True if there are three inputs or more, and query, key and value are inputs or of unknown origin."""
        nodes = [origin.node for origin in self.origins]
        return len(self.floats) > 2 and all(node is None or node.kind == "input" for node in nodes)

    def tokens(self) -> dict[str, Tensor]:
        """Return the inputs that query, key and value are made of: {"x"} or {"x", "source"}; {} if these are arguments.

        "source" is the second floating input, unless it equals the first.
        """
        if self.by_sides:
            return {}
        first, other = self.floats[0], self.floats[min(1, len(self.floats) - 1)]
        return {"x": first} if torch.equal(first, other) else {"x": first, "source": other}

    def formula(self, name: str) -> str:
        """Return in words how "query", "key" or "value" is computed from the inputs."""
        if self.by_sides:
            return "an argument"
        node = self.origins[SIDES.index(name)].node
        source = "source" if name != "query" and "source" in self.tokens() else "x"
        if node is None:
            return f"made of {source}"
        if node.kind == "input":
            return f"the same as {source}"
        if node.kind != "linear" or node.constant != 1:
            return f"made of {source} by {node.name}"
        nodes = dict.fromkeys(node for node, _ in self.origins[SIDES.index(name)].heads) or [node]
        names = [self.recorder.parameters.get(each.storages[1], "a matrix") for each in nodes]
        return f"{source} times {', '.join(names)}"

    def line(self, place: int) -> str:
        """Return the line of an operation, as "line 12"; "" where it is not known."""
        return f"line {self.lines[place][1]}" if place in self.lines else ""


def record(code: Any, inputs: Sequence[Tensor], options: Mapping[str, Any]) -> Recording:
    """Call user code once without gradient, and find the attention in it.

    Args:
        code: a class, which is built, an instance or a function; a module is copied to the CPU, and left as it was.
        inputs: x, or x and a context, or query, key and value; copied.
        options: declarations as for `check`, under names that are not parameters of the code; its other arguments.

    Raises:
        ArgumentTypeError: code `trace.thing`, for other objects or inputs, and for unknown declarations.
        ArgumentError: for declarations that make no sense.
        ModelError: code `check.made`, for a class that cannot be built.
        UnsupportedError: code `trace.unread`, for code without an attention that can be read.
        Exception: what the code itself raises.
    """
    floats = [each for each in inputs if isinstance(each, Tensor) and each.is_floating_point()]
    if not callable(code) or not floats or floats[0].ndim < 2:
        kinds = ", ".join(type(each).__name__ for each in inputs) or "nothing"
        raise ArgumentTypeError(
            "trace.thing",
            "trace takes clearhead.attend, a MultiHeadAttention, a rung of the ladder, or code of your own, "
            f"called with tokens (tokens, width) or (batch, tokens, width) of floating point; got {name_of(code)} "
            f"with {kinds}. A model is watched: clearhead.watch(model).",
        )
    arguments, declared = _divided(code, options)
    if isinstance(code, SimpleAttention):
        declared.setdefault("scale", 1.0)
    sizes = {"d_in": floats[0].shape[-1]}
    contract = contract_of(declared.pop("contract", None), sizes, declared)
    name = name_of(code)
    if isinstance(code, type):
        with undisturbed():
            code = prepare(code, "x", None, contract, torch.initial_seed() % SEEDS).original
    # One tensor that is two arguments stays one.
    copies = {id(each): each.detach().cpu().clone() for each in inputs if isinstance(each, Tensor)}
    taken = [copies.get(id(each), each) for each in inputs]
    run, parameters, buffers = _copied(code)
    tensors = [each for each in taken if isinstance(each, Tensor)]
    floats = [each for each in tensors if each.is_floating_point()]
    recorder, lines = Recorder(tensors, parameters, buffers), Lines(tensors)
    fast = torch.backends.mha.get_fastpath_enabled()
    # One operation for a whole layer shows nothing of what it does.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), recorder, lines:
            returned = run(*taken, **arguments)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    output = output_of(returned)[0].detach()
    samples = floats[0].shape[:-2].numel()
    lengths = floats[0].shape[-2], floats[min(1, len(floats) - 1)].shape[-2]
    # Shapes that no attention has raise.
    found, _ = attempt(_first_layer, recorder, output, samples, lengths)
    if found is None:
        raise UnsupportedError(
            "trace.unread",
            f"no attention can be read in {name}: no weights of all queries and keys at once multiply a value. A model "
            "is watched: clearhead.watch(model).",
        )
    attention, origins, others = found
    batch = 1 if attention.query.shape[1] != lengths[0] else samples
    masked = len(floats) < len(inputs) or any(isinstance(v, Tensor) for v in arguments.values())
    return Recording(
        name,
        floats,
        recorder,
        {} if isinstance(code, Rung) else lines.found,
        output,
        attention,
        batch,
        others,
        origins,
        contract,
        masked,
    )


def _first_layer(
    recorder: Recorder, output: Tensor, samples: int, lengths: tuple[int, int]
) -> tuple[ObservedAttention, tuple[Origin, ...], int] | None:
    """Return the first layer of attention, the origins of query, key and value, and the number of other attentions.

    `lengths` are those of queries and keys. Heads that a loop computes one by one are joined. An attention that returns
    the output comes first. None if none has the lengths of the inputs, or its blocks do not divide into the samples.
    Operands of unusual shapes may raise any error.
    """
    texts = lengths, (samples * lengths[0], samples * lengths[1])
    everything = attentions(recorder)
    found = [one for one in everything if one.scores.shape[-2:] in texts]
    if not found:
        return None
    returned = (one for one in found if torch.equal(one.context.flatten(), output.flatten()))
    first = next(returned, found[0])
    batch = samples if first.scores.shape[-2] == lengths[0] else 1
    if len(first.query) % batch:
        return None
    heads = [first]
    if len(first.query) == batch:
        heads = [one for one in found if _kind(recorder, one) == _kind(recorder, first)]
    origins = zip(
        *(_origins(recorder, head, len(first.query) // batch) for head in heads), strict=True
    )

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        """Return the blocks of all heads, (samples, …) each, as (samples · heads, …)."""
        return torch.stack(list(tensors), 1).flatten(0, 1)

    stages = (
        one[0]._replace(values=joined([stage.values for stage in one]))
        for one in zip(*(head.stages for head in heads), strict=True)
    )
    layer = replace(
        first,
        **{
            name: joined([getattr(head, name) for head in heads])
            for name in (*SIDES, "context", "scores")
        },
        stages=tuple(stages),
    )
    merged = (
        replace(side[0], heads=tuple(pair for origin in side for pair in origin.heads))
        for side in origins
    )
    return layer, tuple(merged), len(everything) - len(heads)


def _kind(recorder: Recorder, attention: ObservedAttention) -> Hashable:
    """Return a tuple that is equal for the heads of one layer; layers that read the same input may be equal too.

    It has the inputs of query and key, the shapes of query and value, and the names and axes of the stages.
    """
    sources: list[Hashable] = []
    for origin in _origins(recorder, attention, 1)[:2]:
        node = origin.node
        side = None if node is None or node.constant is None else node.tags[1 - node.constant]
        sources.append(node and node.index if side is None else tuple(side.node.unique().tolist()))
    stages = tuple((stage.name, stage.axis) for stage in attention.stages)
    return tuple(sources), attention.query.shape, attention.value.shape, stages


def _origins(recorder: Recorder, attention: ObservedAttention, heads: int) -> tuple[Origin, ...]:
    """Return the origins of query, key and value; `heads` is the number of heads in the attention's blocks."""
    layout = attention.layout
    products = {layout.scores.place: layout.scores, layout.context.place: layout.context}
    none = torch.zeros(1, 1, dtype=torch.int64)
    elements, nodes = (
        layout.operands(
            {
                place: [none if tags is None else tags[channel] for tags in node.tags]
                for place, node in products.items()
            }
        )
        for channel in (0, 1)
    )
    return tuple(_origin(recorder, *pair, heads) for pair in zip(elements, nodes, strict=True))


def _origin(recorder: Recorder, element: Tensor, index: Tensor, heads: int) -> Origin:
    """Return the origin of the rows of one side, from tag element and node of each number, both (blocks, tokens, dim).

    Without a node if the numbers are not all of one operation; without heads if one of them stands for no single
    element, or the rows are not those of the tokens in order, which are `mixed` if a matrix made them.
    """
    first = int(index.flatten()[0]) if index.numel() else 0
    if first < 1 or bool((index != first).any()):
        return Origin()
    node = recorder.nodes[first - 1]
    if bool((element < 1).any()):
        return Origin(node)
    if node.kind == "linear" and node.constant == 0:
        return Origin(node, mixed=node.operands[0].shape[-2:] == (element.shape[1],) * 2)
    width, (blocks, tokens) = node.output.shape[-1], element.shape[:2]
    place = element - node.base
    row, column = place // width, place % width
    right = torch.arange(blocks * tokens // heads).view(-1, 1, tokens, 1)
    in_order = bool((row.unflatten(0, (-1, heads)) == right).all())
    if not in_order or bool((column != column[:, :1]).any()):
        return Origin(node, mixed=node.kind == "linear")
    return Origin(node, tuple((node, int(first)) for first in column[:heads, 0, 0]))


def _divided(
    code: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dicts: the arguments of the code, and the declarations, which are options of `check` that it lacks.

    A parameter of the code wins over a declaration of the same name; if it has no signature, every such name declares.
    """
    called = code.forward if isinstance(code, nn.Module) else code
    called = getattr(called, "forward", called) if isinstance(called, type) else called
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        parameters = {}
    names = {"contract", *FIELDS} - set(parameters)
    declared = {name: value for name, value in options.items() if name in names}
    return {name: value for name, value in options.items() if name not in names}, declared


def _copied(code: Any) -> tuple[Any, dict[int, str], list[int]]:
    """Return a module's copy on the CPU, the names of its parameters by storage, and the storages of its buffers.

    The module itself if it cannot be copied; (code, {}, []) for anything but a module.
    """
    if not isinstance(code, nn.Module):
        return code, {}, []
    copied, _ = attempt(lambda: duplicate(code).to("cpu"))
    code = code if copied is None else copied
    names = {storage_of(parameter): name for name, parameter in code.named_parameters()}
    return code, names, [storage_of(buffer) for buffer in code.buffers()]
