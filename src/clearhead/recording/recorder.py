"""Record what a call computes, operation by operation, and which number came from which.

A `DispatchMode` sees every operation below autograd, whatever the code above looks like. Next to each storage lies a
shadow of tags: for every number, the element of the last product, or of the input, that it stands for. Views share the
storage and so the shadow; an operation in place writes through. Data movement and elementwise operations copy tags.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from clearhead._common.torch_internals import broadcast_shape
from clearhead.recording.attempt import attempt
from clearhead.recording.operations import (
    DRAWS,
    FUSED,
    KEEPS,
    MOVES,
    PRODUCTS,
    RANDOM,
    SCALINGS,
    SOFTMAXES,
    UNCOUNTED,
    UNTRACED,
    Operations,
)

MIXED = -1
CHANNELS = (torch.int64, torch.int64, torch.float64)


class Tags(NamedTuple):
    """For each number its element (0 for none, −1 for several), its node, and its factor since, NaN if learned."""

    element: Tensor
    node: Tensor
    gain: Tensor

    def each(self, apply: Callable[[Tensor], Tensor]) -> "Tags":
        """Return new tags: a function applied to each of the three tensors."""
        return Tags(*(apply(channel) for channel in self))


@dataclass(frozen=True, eq=False)
class Node:
    """An operation whose numbers get tags of their own.

    Attributes:
        kind: "input", "product" (both sides depend on the input), "fused" (attention), "linear" (one side depends on
            the input), "summed" (a sum over numbers of a product) or "other".
        name: the operation.
        index: the number of the node, from 1, as in `Tags.node`.
        place: the number of the operation in the call.
        base: the tag of its first element; the next elements follow.
        storage: of the output.
        output: a copy of the result; of a product, without an added bias.
        operands: copies of its factors, or of query, key and value; of "summed" and "other", of the tagged inputs.
        tags: of each operand; None for one that does not depend on the input.
        storages: of the operands.
        constant: the index of the operand of a "linear" that does not depend on the input; None for another kind.
        options: keywords of a fused call; `dim` of a sum, None for all axes.
    """

    kind: str
    name: str
    index: int
    place: int
    base: int
    storage: int
    output: Tensor
    operands: tuple[Tensor, ...] = ()
    tags: tuple[Tags | None, ...] = ()
    storages: tuple[int, ...] = ()
    constant: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ScoreStep:
    """An operation on numbers of a product: its result `value`, and the `tags` of that result.

    `other` is the other operand: "number", "constant", "parameter", "random", "input" or ""; `source` and `result` are
    the storages that it read and wrote; `dim` is that of a softmax, else None.
    """

    name: str
    place: int
    value: Tensor
    tags: Tags
    source: int
    result: int
    dim: int | None = None
    other: str = ""


def storage_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage: one for all its views, 0 for an empty storage."""
    return tensor.untyped_storage().data_ptr()


class Recorder(Operations):
    """Record a call in `nodes` and `steps`; floating `inputs` start tags, `parameters` are names by storage."""

    def __init__(
        self, inputs: Sequence[Tensor], parameters: Mapping[int, str], buffers: Iterable[int] = ()
    ) -> None:
        super().__init__()
        self.nodes, self.steps = list[Node](), list[ScoreStep]()
        self.halves = False
        self.read: set[int] = set()  # the storages that some operation reads
        # What is made of a parameter alone, as its transpose, is named as it is.
        self.parameters = dict(parameters)
        self.buffers = set(buffers)
        self._shadow: dict[int, Tags] = {}
        self._random: set[int] = set()
        self._kept: list[Tensor] = []
        self._next = 1
        self._ranks = torch.tensor([1, 0])  # of MIXED, of a constant, and of each node
        for tensor in inputs:
            if tensor.is_floating_point():
                self._begin("input", "", tensor)

    def tags(self, tensor: Tensor) -> Tags | None:
        """Return views of a tensor's tags, in its shape; None if untagged, empty, not strided, an integer or a bool."""
        strided = tensor.layout is torch.strided and tensor.numel()
        shadow = self._shadow.get(storage_of(tensor)) if strided else None
        if shadow is None or not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        place = _geometry(tensor)
        return shadow.each(lambda channel: channel.as_strided(*place))

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record an operation, and return its result; if recording fails, the outputs are new "other" nodes."""
        output = func(*args, **kwargs)
        leaves = (each for each in tree_leaves(output) if isinstance(each, Tensor))
        outputs = [each for each in leaves if each.layout is torch.strided]
        self._kept += outputs
        _, error = attempt(self._follow, name, func, args, kwargs, outputs)
        if error is not None:
            # An operation that cannot be followed starts new tags.
            for each in outputs:
                self._begin("other", name, each)
        return output

    def _follow(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[Tensor],
    ) -> None:
        """Tag the outputs of an operation by its inputs, and add nodes and steps; a no-op for a view or no outputs.

        Outputs of untagged inputs are only noted as random, or as those of a parameter or buffer. May raise any error.
        """
        if not outputs:
            return
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        output = outputs[0]
        self.read.update(map(storage_of, () if name in UNCOUNTED else tensors))
        self.halves |= output.dtype in (torch.float16, torch.bfloat16)
        written = bool(name.endswith("_") and args and isinstance(args[0], Tensor))
        if not written and storage_of(output) in {storage_of(each) for each in tensors}:
            return  # a view
        tagged = [(each, tags) for each in tensors if (tags := self.tags(each)) is not None]
        tagged = [(each, tags) for each, tags in tagged if tags.node.any()]
        chance = name in RANDOM or any(storage_of(each) in self._random for each in tensors)
        if not tagged or name.endswith("_like") or name.startswith("new_") or name in DRAWS:
            # What is new holds no number that went in, whatever its shape was taken from.
            if chance:
                self._random.add(storage_of(output))
            if written and (mine := self.tags(args[0])) is not None:
                mine.each(torch.Tensor.zero_)
            owner = next((storage_of(t) for t in tensors if storage_of(t) in self.parameters), None)
            if owner is not None:
                self.parameters.setdefault(storage_of(output), self.parameters[owner])
            elif any(storage_of(each) in self.buffers for each in tensors):
                self.buffers.add(storage_of(output))
            return
        if name in PRODUCTS or name.startswith(FUSED):
            self._multiply(name, args, kwargs, output)
            return
        for each in outputs[1:]:
            if storage_of(each) not in self._shadow:
                self._begin("other", name, each)
        found = self._moved(name, func, args, kwargs, output)
        if found is None:
            summed = name in ("sum", "mean") and any(self._of_product(tags) for _, tags in tagged)
            kind, sides = "summed" if summed else "other", [each for each, _ in tagged]
            self._begin(kind, name, output, sides, options={"dim": args[1] if args[1:] else None})
            return
        found = self._scaled(name, args, found)
        source = next((each for each, tags in tagged if self._of_product(tags)), tagged[0][0])
        # Of the sum of two products no number stands for one alone, and it is a step all the same.
        added = name in ("add", "add_") and sum(self._of_product(tags) for _, tags in tagged) > 1
        kept = found.each(torch.clone) if added or self._of_product(found) else None
        self._write(output, found)
        if kept is not None:
            dim = args[1] if name in SOFTMAXES else None
            others = [each for each in tensors if each is not source]
            value = output.detach().clone()
            if name in ("fill_", "copy_") and all(each is args[0] for each, _ in tagged):
                value, kept = self._whole(output)
            other = self._other(args, others, [each for each, _ in tagged], chance)
            ends = storage_of(source), storage_of(output)
            self.steps.append(ScoreStep(name, self.count, value, kept, *ends, dim=dim, other=other))

    def _whole(self, part: Tensor) -> tuple[Tensor, Tags]:
        """Return copies of all numbers in the storage of a tagged tensor, flat, and of their tags."""
        whole = part.detach().new_empty(0).set_(part.untyped_storage()).clone()
        return whole, self._shadow[storage_of(part)].each(torch.clone)

    def _of_product(self, tags: Tags) -> bool:
        """Return True if any tag is of a product of two matrices that depend on the input, or of a fused attention."""
        return bool((self._ranks[tags.node + 1] > 1).any())

    def _other(
        self, args: tuple[Any, ...], others: list[Tensor], sides: list[Tensor], chance: bool
    ) -> str:
        """Return `ScoreStep.other` for a step: "random" if `chance`; "input" if one of `others` is tagged.

        Then "parameter", "constant" for any other tensor in `others`, "number" for one after the first of `args`, or
        "". `others` are the operands but the one that the step changes, `sides` the tagged operands.
        """
        if chance:
            return "random"
        if any(any(each is side for side in sides) for each in others):
            return "input"
        if any(storage_of(each) in self.parameters for each in others):
            return "parameter"
        if others:
            return "constant"
        return "number" if any(isinstance(each, int | float) for each in args[1:]) else ""

    def _moved(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tags | None:
        """Return the output's tags, unwritten; None if its numbers are new, as of a sum, or shapes do not fit."""
        nothing = Tags(*(torch.zeros(output.shape, dtype=dtype) for dtype in CHANNELS))
        if name in ("copy_", "fill_", "zero_"):
            source = self.tags(args[1]) if isinstance(args[-1], Tensor) else None
            own = self.tags(args[0]) if source is None and name != "zero_" else None
            if own is not None and self._of_product(own):
                # Written over by a number, as −∞ into a slice of scores: each stays at its pair.
                return own.each(lambda channel: channel * (self._ranks[own.node + 1] > 1))
            return (source or nothing).each(lambda channel: channel.expand(output.shape))
        if name in KEEPS:
            return self.tags(args[0])
        # A convolution of one token each moves numbers as an elementwise operation does.
        if name in UNTRACED or (name == "convolution" and args[1].shape[2:].numel() > 1):
            return None
        if name in MOVES:

            def channel(which: int, each: Any) -> Any:
                """Return one channel of a floating tensor's tags, zeros if untagged; any other argument unchanged."""
                if not isinstance(each, Tensor) or not each.is_floating_point():
                    return each
                tags = self.tags(each)
                return (
                    each.new_zeros(each.shape, dtype=CHANNELS[which])
                    if tags is None
                    else tags[which]
                )

            plain = {key: value for key, value in kwargs.items() if key == "dim"}
            moved = [tree_map(lambda each, i=i: channel(i, each), args) for i in range(3)]
            return Tags(*(func(*each, **plain) for each in moved))
        leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        known = [tags for each in leaves if (tags := self.tags(each)) is not None]
        if broadcast_shape(*(each.node.shape for each in known), output.shape) != output.shape:
            return None
        total = known[0]
        for other in known[1:]:
            total = self._either(total, other)
        return total.each(lambda channel: channel.expand(output.shape))

    def _either(self, one: Tags, other: Tags) -> Tags:
        """Return, number by number, the tags of higher rank: of a product, of another node or MIXED, of none.

        Of equal ranks, element and node are MIXED where they differ, and the gain is that of `one`.
        """
        one_rank, other_rank = self._ranks[one.node + 1], self._ranks[other.node + 1]
        first = one_rank > other_rank
        second = other_rank > one_rank
        same, alike = one.element == other.element, one.node == other.node
        mixed = torch.tensor(MIXED)
        return Tags(
            torch.where(
                first | (same & ~second), one.element, torch.where(second, other.element, mixed)
            ),
            torch.where(
                first | (alike & ~second), one.node, torch.where(second, other.node, mixed)
            ),
            torch.where(second, other.gain, one.gain),
        )

    def _scaled(self, name: str, args: tuple[Any, ...], tags: Tags) -> Tags:
        """Return tags with the gain times the factor of a neg, or of a mul or div by a number or by one a row.

        The factor of a parameter is NaN. By a tagged or wider tensor, or for another operation, tags are unchanged.
        """
        if name in ("neg", "neg_"):
            return tags._replace(gain=-tags.gain)
        if name not in SCALINGS or len(args) < 2:
            return tags
        left = name == "mul" and isinstance(args[1], Tensor) and self.tags(args[1]) is not None
        factor = args[0] if left else args[1]
        if isinstance(factor, Tensor):
            if self.tags(factor) is not None or factor.shape[-1:] not in ((), (1,)):
                return tags
            factor = torch.nan if storage_of(factor) in self.parameters else factor.to(tags.gain)
        return tags._replace(gain=tags.gain * factor ** SCALINGS[name])

    def _multiply(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        """Add a node and tag the output: fused; linear, if a side has no tags; else product.

        Only a product by addmm or baddbmm adds a step too, for what is added; a linear one has none for its bias.
        """
        if name.startswith(FUSED):
            names = ("dropout_p", "is_causal")
            options = dict(zip(names, args[3:], strict=False)) | kwargs
            self._begin("fused", name, output, args[:3], options=options)
            return
        if name == "mv":  # a vector is a column
            args, output = (args[0], args[1].unsqueeze(-1)), output.unsqueeze(-1)
        sides = tuple(args[index] for index in PRODUCTS[name])
        constants = [i for i, each in enumerate(sides) if self.tags(each) is None]
        if constants:
            self._begin("linear", name, output, sides, constant=constants[0])
            return
        node = self._begin("product", name, output, sides, value=sides[0] @ sides[1])
        if name in ("addmm", "baddbmm"):
            tags = self.tags(output)
            assert tags is not None
            value, kept = output.detach().clone(), tags.each(torch.clone)
            ends = node.storage, node.storage
            self.steps.append(ScoreStep(name, self.count, value, kept, *ends, other="constant"))

    def _begin(
        self,
        kind: str,
        name: str,
        output: Tensor,
        operands: Sequence[Tensor] = (),
        *,
        value: Tensor | None = None,
        constant: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Node:
        """Add and return a node of copies of `value` (or `output`) and operands; give `output` new tags."""
        node = Node(
            kind,
            name,
            len(self.nodes) + 1,
            self.count,
            self._next,
            storage_of(output),
            (output if value is None else value).detach().clone(),
            # Copies: an operation in place may change them before they are looked at.
            tuple(each.detach().clone() for each in operands),
            tuple(tags and tags.each(torch.clone) for tags in map(self.tags, operands)),
            tuple(map(storage_of, operands)),
            constant,
            options or {},
        )
        self.nodes.append(node)
        rank = 1 + (kind in ("product", "fused"))
        self._ranks = torch.cat([self._ranks, torch.tensor([rank])])
        elements = torch.arange(self._next, self._next + output.numel()).view(output.shape)
        self._next += output.numel()
        whole = torch.full(output.shape, node.index)
        self._write(output, Tags(elements, whole, torch.ones(output.shape, dtype=torch.float64)))
        return node

    def _write(self, output: Tensor, tags: Tags) -> None:
        """Write tags into the shadow of an output's storage, made if there is none; a complex element is MIXED."""
        parts = 1 + output.is_complex()
        place = storage_of(output)
        if place not in self._shadow:
            size = output.untyped_storage().nbytes() // output.element_size() * parts
            self._shadow[place] = Tags(*(torch.zeros(size, dtype=dtype) for dtype in CHANNELS))
        if parts > 1:
            tags = tags._replace(element=torch.full_like(tags.element, MIXED))
        for part in range(parts):
            for target, source in zip(self._shadow[place], tags, strict=True):
                target.as_strided(*_geometry(output, part)).copy_(source)


def _geometry(tensor: Tensor, part: int = 0) -> tuple[Any, Any, Any]:
    """Return size, strides and offset of a tensor in its storage, in real numbers; part 1 is the imaginary part."""
    parts = 1 + tensor.is_complex()
    stride = tuple(parts * each for each in tensor.stride())
    return tensor.size(), stride, parts * tensor.storage_offset() + part
