"""The payload of the page of a trace: every stage of every sample and head, with the weights between them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.drawing.labels import words_of
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.texts import beginning
from clearhead.errors import SelectionError, TooLargeError
from clearhead.tracing.traced_call import Step, Trace

MOST_NUMBERS = 1 << 23
"""Of a page, which takes about five bytes for each."""
MOST_WEIGHTS = 1 << 20
"""Of these, numbers of weight matrices; what has no room is left out, and the formula says so."""


def trace_payload(trace: Trace, *, sample: int | None = None, head: int | None = None) -> Payload:
    """Return the payload of the page of a trace.

    Args:
        trace: the stages.
        sample: only this row of the batch; None for all.
        head: only this query head; None for all.

    Raises:
        SelectionError: code `trace.part`, if there is no such sample or head.
        TooLargeError: code `trace.page-size`, for more numbers than a page can hold.

    Example:
        >>> x = torch.eye(2)
        >>> payload = trace_payload(ch.trace(ch.attend, x, x, x))
        >>> payload.kind, list(payload.arrays)[:3]
        ('trace', ['query', 'key', 'value'])
    """
    wanted = {"batch": sample, "num_heads": head}
    sizes = {"batch": 1, "num_heads": 1, "num_kv_heads": 1}
    for step in trace.steps.values():
        sizes |= {axis: size for axis, size in _sizes(step).items() if axis in sizes}
    for axis, index in wanted.items():
        if index is not None and not 0 <= index < sizes[axis]:
            raise SelectionError(
                "trace.part", f"there are {sizes[axis]} along {axis}; got {index}."
            )
    if head is not None:
        wanted["num_kv_heads"] = head // (sizes["num_heads"] // sizes["num_kv_heads"])
    arrays = {step.name: _part(step, wanted) for step in trace._drawn() if step.same_as is None}
    numbers = sum(array.numel() for array in arrays.values())
    _check_size(numbers)
    room = min(MOST_WEIGHTS, MOST_NUMBERS - numbers)
    operands = {
        name: {each.name: (each, _part(each, wanted)) for each in _operands(trace, name)}
        for name in trace.projections
    }
    sizes_of = {
        name: sum(part.numel() for _, part in each.values()) for name, each in operands.items()
    }
    # Those of query, key and value together or not at all: one alone would say that the others need none.
    inner = sum(size for name, size in sizes_of.items() if name != "output")
    steps: list[dict[str, Any]] = []
    before = ""
    for step in trace._drawn():
        name, told = step.name, _entry_of(step)
        if not step.standard:
            told["of"] = before
        if step.same_as is None and name in trace:
            before = name
        if name in trace.projections:
            projection = trace.projections[name]
            needs = inner if name != "output" else sizes_of[name] + (inner if inner <= room else 0)
            if needs <= room:
                arrays |= {each: part for each, (_, part) in operands[name].items()}
                about = {"bias": projection.bias is not None, "parts": projection.parts}
                steps += [_entry_of(each) | about for each, _ in operands[name].values()]
            else:
                told["formula"] += f"; its {sizes_of[name]:,} weights have no room here"
        steps.append(told)
    sinks = None if trace.sinks is None else trace.sinks.tolist()
    heads = list(range(sizes["num_heads"])) if head is None else [head]
    of = f"trace of {trace.title}"
    data = {
        "of": of,
        "tokens": _named(trace.tokens),
        "source_tokens": _named(trace.source_tokens),
        "stages": steps,
        "samples": list(range(sizes["batch"])) if sample is None else [sample],
        "heads": heads,
        "scale": trace.scale,
        "softcap": trace.softcap,
        "dropout": trace.dropout,
        "sinks": sinks and [sinks[each] for each in heads],
    }
    words = [label.partition(" ")[2].replace("␣", " ") for label in trace.tokens]
    return Payload("trace", beginning(words) if any(words) else of, data, arrays)


def _named(labels: Sequence[str]) -> list[str]:
    """Return labels such as "0 ␣the" as "0 the", without the sign for the space before a word."""
    return [f"{at} {word}".rstrip() for at, word in enumerate(words_of(labels))]


def _operands(trace: Trace, name: str) -> Iterator[Step]:
    """Yield the operands of a projection that are no stages: its weight, with the bias as last row.

    For the output, first the contexts of all heads side by side.
    """
    step, projection = trace.steps[name], trace.projections[name]
    weight, bias = projection.weight, projection.bias
    lead = step.axes[-3:-2] if weight.ndim > 2 else ()
    source = "source" if name != "query" and "source" in trace else "x"
    width = trace.steps[source].axes[-1]
    if name == "output":
        width = "joined_dim"
        parts = projection.parts and f", after {projection.parts}"
        formula = f"the contexts of all heads side by side{parts}"
        yield Step("contexts", projection.input, (*step.axes[:-1], width), formula)
    formula = f"the weights of the {name} projection"
    if bias is not None:
        weight = torch.cat([weight, bias.unsqueeze(-2)], dim=-2)
        formula += "; the last row is the bias"
    yield Step(f"W_{name}", weight, (*lead, width, step.axes[-1]), formula)


def _entry_of(step: Step) -> dict[str, Any]:
    """Return the entry of a stage in the payload: name, last two axes, shape, formula with its line, same_as."""
    formula = f"{step.formula} ({step.line})" if step.line else step.formula
    return {
        "name": step.name,
        "axes": step.axes[-2:],
        "shape": step.shape,
        "formula": formula,
        "same_as": step.same_as,
    }


def _sizes(step: Step) -> dict[str, int]:
    """Return the sizes of a stage by the names of its axes."""
    return dict(zip(step.axes, step.tensor.shape, strict=True))


def _part(step: Step, wanted: dict[str, int | None]) -> Tensor:
    """Return the numbers of a stage, (batch, heads, rows, columns), float32, on the CPU.

    `wanted` gives the chosen index by the name of an axis; None is all. Missing axes are 1.
    """
    tensor = step.tensor.detach()
    for axis, name in enumerate(step.axes[:-2]):
        index = wanted.get(name)
        if index is not None:
            tensor = tensor.narrow(axis, index, 1)
    if "batch" not in step.axes:
        tensor = tensor[None]
    if tensor.ndim == 3:
        tensor = tensor[:, None]
    return tensor.to("cpu", torch.float32)


def _check_size(numbers: int) -> None:
    """Raise TooLargeError, code `trace.page-size`, for more numbers than a page holds."""
    if numbers > MOST_NUMBERS:
        raise TooLargeError(
            "trace.page-size",
            f"the stages are {numbers:,} numbers; a page holds {MOST_NUMBERS:,} at most. "
            "sample= and head= take a part of them; AttentionMatrix is for long texts.",
        )
