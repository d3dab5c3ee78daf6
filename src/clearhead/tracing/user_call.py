"""Trace a call of user code: its stages, and the first that differs from the definition."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.subject.locating import located
from clearhead.tracing.traced_call import Expected, Step, Trace, TracedProjection, input_steps
from clearhead.tracing.user_code import SIDES, Recording, record
from clearhead.tracing.user_code_stages import (
    STAGE_OF,
    UNCOMPARED,
    StagesOfCode,
    dropout_factor,
    equal_to_rounding,
)


def user_call(code: Any, *inputs: Tensor, **options: Any) -> Trace:
    """Call user code, given as an object or as "file.py:Name", and compare its stages with the definition.

    A module is copied and `sys.path` restored.

    Raises:
        ArgumentTypeError: code `trace.thing`.
        UnsupportedError: code `trace.unread`.
        ArgumentError, ModelError: for a place without such an object, declarations that make no sense, or a class that
            cannot be made.
        Exception: what the code itself raises.
    """
    path = list(sys.path)
    try:
        code = located(code) if isinstance(code, str) else code
        recording = record(code, inputs, options)
    finally:
        sys.path[:] = path  # `located` adds the folder of a file
    computed = StagesOfCode(recording)
    read = computed.read
    origins = zip(SIDES, recording.origins, strict=True)
    mixed = [name for name, origin in origins if origin.mixed]
    hides = any(STAGE_OF.get(change.kind) == "masked_scores" for change in read.before)
    dropout = None
    if computed.undropped is not None:
        dropout = 1 - 1 / dropout_factor(read.after[-1], computed.undropped)
    output, projections = _output(recording, computed)
    expected = None if mixed else computed.first_difference()
    query_len, kv_len = recording.attention.scores.shape[-2:]
    steps = (*input_steps(recording.tokens()), *computed.steps, *output)
    verdict = _verdict(recording, expected, mixed, hides)
    return Trace(
        recording.name,
        {step.name: step for step in steps},
        query_len,
        kv_len,
        "; ".join((*_notes(recording), verdict)),
        scale=1.0 if read.scale is None else read.scale / (recording.attention.gain or 1.0),
        mask="the code's own mask" if hides else None,
        dropout=dropout,
        projections=dict(_projections(recording, computed)) | projections,
        expected=expected,
    )


def _verdict(recording: Recording, expected: Expected | None, mixed: list[str], hides: bool) -> str:
    """Return the comparison with the definition as a sentence.

    What differs first, that nothing does, or why it was skipped. `mixed` are the sides whose rows mix tokens; `hides`
    is True if the code has a mask.
    """
    contract = recording.contract
    skipped = ", ".join(name for name in UNCOMPARED if getattr(contract, name) is not None)
    if mixed:
        return f"not compared with the definition: rows of {' and '.join(mixed)} mix several tokens"
    if expected is not None:
        return f"not the definition: {expected.stage} is the first stage that differs from it"
    if skipped:
        return f"not compared with the definition: {skipped}; clearhead.check compares them"
    is_declared = contract.causal is not None or contract.window is not None
    mask = "" if is_declared else ", with the mask of the code" if hides else ", without a mask"
    return f"the weights and the context are those of the definition{mask}"


def _notes(recording: Recording) -> Iterator[str]:
    """Yield a sentence if there are other attentions, and one if the samples are attended to as one text."""
    if count := recording.others:
        yield f"{count} more attention{'s' * (count > 1)} inside, of other layers or samples, not shown"
    if recording.batch < recording.floats[0].shape[:-2].numel():
        yield "the samples are attended to as one long text"


def _projections(
    recording: Recording, computed: StagesOfCode
) -> Iterator[tuple[str, TracedProjection]]:
    """Yield (name, projection) for each of query, key and value that is a product of the input with a matrix."""
    inputs = recording.tokens()
    for name, origin in zip(SIDES, recording.origins, strict=True):
        source = inputs.get("x" if name == "query" or "source" not in inputs else "source")
        stage = computed.in_axes_of_call(computed.values[name])
        width, weights = stage.shape[-1], list[Tensor]()
        for node, column in origin.heads:
            if node.kind == "linear" and node.constant == 1:
                weight = node.operands[1]
                weight = weight[0] if weight.ndim == 3 else weight
                weights.append(weight[:, column : column + width])
        if source is None or len(weights) != recording.heads:
            continue
        weight = torch.stack(weights) if "num_heads" in computed.lead else weights[0]
        if projection := _linear_map(source, weight, stage):
            yield name, projection


def _linear_map(source: Tensor, weight: Tensor, result: Tensor) -> TracedProjection | None:
    """Return a projection if `result` is `source @ weight`, or that plus one vector for all rows, its bias.

    Numbers are compared up to rounding. None if they differ, widths do not fit, or the result is empty.
    """
    if weight.shape[-2] != source.shape[-1] or weight.shape[-1] != result.shape[-1]:
        return None
    made = (source if weight.ndim == 2 else source.unsqueeze(-3)) @ weight
    if made.numel() != result.numel() or not result.numel():
        return None
    rest = result - made.reshape(result.shape)
    bias = rest[..., :1, :]
    bias = bias[0] if rest.ndim > weight.ndim else bias
    if not equal_to_rounding(result - rest + bias, result, result.dtype):
        return None
    has_bias = not equal_to_rounding(result - rest, result, result.dtype)
    return TracedProjection(source, weight, bias.squeeze(-2) if has_bias else None)


def _output(
    recording: Recording, computed: StagesOfCode
) -> tuple[list[Step], dict[str, TracedProjection]]:
    """Return the output as a list of one stage, and {"output": its projection}.

    No stage if the output is the context, or not of two or three axes; no projection if it is no linear map of the
    context.
    """
    output, dtype = recording.output, recording.dtype
    context = computed.in_axes_of_call(computed.values["context"])
    heads = "num_heads" in computed.lead
    merged = context.transpose(-2, -3).flatten(-2) if heads else context
    same = context.shape == output.shape and context.equal(output)
    if output.ndim not in (2, 3) or same:
        return [], {}
    axes = (*("batch",) * (output.ndim - 2), "tokens", "output_dim")
    words = "the contexts of all heads side by side" if heads else "the context"
    if merged.numel() == output.numel() and equal_to_rounding(
        merged.reshape(output.shape), output, dtype
    ):
        return [Step("output", output, axes, words)] if heads else [], {}
    for node in reversed(recording.recorder.nodes):
        if node.kind != "linear" or node.constant != 1 or node.operands[1].ndim != 2:
            continue
        if projection := _linear_map(merged, node.operands[1], output):
            formula, line = f"{words}, projected", recording.line(node.place)
            step = Step("output", output, axes, formula, None, line)
            return [step], {"output": projection}
    formula = "the output of the code; how it is computed from the contexts is not read"
    return [Step("output", output, axes, formula, standard=False)], {}
