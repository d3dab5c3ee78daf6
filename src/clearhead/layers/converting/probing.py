"""Run a copy of a module, and compare it with the layer of its weights.

What weights do not tell is what makes the two equal. A module of transformers says its mask itself; how it
rotates and whether it bends its scores is guessed, until a guess fits.

A class of the user's may hide the future, or do anything else, in its forward. So a copy of it with
new random weights is run on a few tokens, in float64, and compared with an open layer and with a
causal one; then on a longer text, twice, which shows a window and what a call leaves behind. If
neither layer is equal, it is refused. What shows only on longer texts is not seen; so a module with a
window of that length or more is refused.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._common.foreign_names import SIZE_NAMES
from clearhead._common.lazy import integration
from clearhead.layers.converting.fitting import build
from clearhead.layers.converting.pairs import described
from clearhead.layers.converting.reader import Fitted, ModuleReader, model_type
from clearhead.layers.converting.weights import weights_of, without_accelerate
from clearhead.layers.rotary import Layout
from clearhead.masks import causal
from clearhead.masks.base import Mask

BATCH, QUERIES, KEYS = 2, 5, 7
# The longer text is the longest of these that the module runs on; its context has two tokens more.
LONGER = (257, 131, 67, 31, 17)
# Some modules compute their weights in float32 whatever the input; a difference that means something
# is larger by thousands.
CLOSE = 1e-5

Fits = dict[tuple[Any, ...], Fitted]


def probe(reader: ModuleReader, read: Callable[[ModuleReader], None]) -> None:
    """Find the mask of a module by running a copy of it, or add the reason why it is refused.

    Args:
        reader: of a module without reasons against it.
        read: the function that read it; the copy is read in the same way.
    """
    generator = torch.Generator().manual_seed(0)
    twin = _twin(reader, generator)
    if twin is None:
        return
    again = ModuleReader(twin)
    read(again)
    calls, first_error = _calls(again, QUERIES, KEYS, generator), None
    for place, inputs in enumerate(calls):
        try:
            theirs, returns = _run(twin, inputs)
        # Whatever its author's code raises says that it is called in another way.
        except Exception as error:
            first_error = first_error or error
            continue
        reader.call = len(inputs), returns
        if _compare(reader, again, inputs, theirs):
            _compare_longer(reader, again, place, generator)
        return
    assert first_error is not None
    reader.reasons.append(_not_run(calls[0][0], first_error))


def _twin(reader: ModuleReader, generator: torch.Generator) -> nn.Module | None:
    """A copy with other weights; None with a reason, if there can be none."""
    try:
        twin = copy.deepcopy(without_accelerate(reader.module))
        for path, each in list(twin.named_modules()):
            read = "" if [*each.parameters()] else weights_of(each)
            if not isinstance(read, str):
                # Quantised, it does not run in float64.
                plain = nn.Linear(*read[0].shape[::-1], bias=read[1] is not None)
                twin.set_submodule(path, plain)
        twin = twin.to("cpu", torch.float64).eval()
    except (RuntimeError, TypeError) as error:
        reader.reasons.append(f"a copy of it could not be made to be run: {error}")
        return None
    with torch.no_grad():
        for parameter in twin.parameters():
            # Scores stay small in wide layers, which many compute in float32.
            wide = 1 if reader.is_own or parameter.ndim < 2 else math.sqrt(parameter.shape[-1])
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn / max(2, wide))
    return twin


def _not_run(x: Tensor, error: Exception) -> str:
    return (
        f"a copy of it could not be run on x of shape {tuple(x.shape)}, to find what its "
        f"weights do not tell: {type(error).__name__}: {error}"
    )


def guesses(module: nn.Module) -> list[Fitted]:
    """The things that a module of transformers may do, the most usual first."""
    if model_type(module) is None:
        return [Fitted()]
    layouts: tuple[Layout | None, ...] = (None,)
    if "position_embeddings" in inspect.signature(type(module).forward).parameters:
        layouts = ("half", "interleaved", None)
    return [Fitted(*each) for each in product(layouts, (True, False), (True, False))]


def fit(reader: ModuleReader, read: Callable[[ModuleReader], None], fits: Fits) -> Fitted:
    """Find what makes our layer equal a run of a copy of a module of transformers, or add the reason why it is
    refused.

    Args:
        reader: of a module without reasons against it.
        read: the function that read it; the copy is read in the same way.
        fits: what was found of other modules; one like them in all but its weights is not run.
    """
    like = _settings(reader)
    if like in fits:
        return fits[like]
    generator = torch.Generator().manual_seed(0)
    twin = _twin(reader, generator)
    if twin is None:
        return reader.guess
    width = reader.sizes["embed_dim"]
    short, long = (
        torch.randn(BATCH, tokens, width, generator=generator).double()
        for tokens in (QUERIES, LONGER[-1])
    )
    try:
        pairs = [(x, _run(twin, (x,))[0]) for x in (short, long)]
    # Whatever a model's code raises says that it is called in another way.
    except Exception as error:
        reader.reasons.append(_not_run(short, error))
        return reader.guess
    errors: dict[tuple[str, ...], float] = {}
    for guess in guesses(twin):
        again = ModuleReader(twin, guess=guess)
        read(again)
        parts = tuple(map(described, again.parts))
        if not again.sizes or parts in errors:
            continue
        for x, theirs in pairs:
            ours = _ours(again, (x,), None)
            errors[parts] = math.inf
            if ours.shape == theirs.shape:
                errors[parts] = float((ours - theirs).abs().max())
            if not _is_close(errors[parts], theirs):
                break
        else:
            fits[like] = guess
            return guess
    reader.reasons.append(
        f"its output is not that of its weights: a copy that was run on {QUERIES} and {LONGER[-1]} tokens is off by "
        f"{min(errors.values(), default=math.inf):.2g}"
    )
    return reader.guess


def _settings(reader: ModuleReader) -> tuple[Any, ...]:
    """Everything plain that a module says of itself, but its place in the model."""
    module = reader.module
    plain = [
        (name, value)
        for name, value in vars(module).items()
        if name != "layer_idx" and isinstance(value, bool | int | float | str | None)
    ]
    # What the configuration says of some layers only is in what was read of it.
    read = [(row.theirs, row.how) for row in reader.settings]
    pairs = [(pair.theirs, pair.how) for pair in reader.pairs]
    return type(module), id(reader.config), *plain, *read, *pairs


def _calls(
    again: ModuleReader, queries: int, keys: int, generator: torch.Generator
) -> list[tuple[Tensor, ...]]:
    """The inputs of the ways to call a module: with x alone or with a context, and without a batch."""
    tables = [each.shape[-1] for each in again.module.buffers() if each.ndim > 1]
    queries, keys = (min([tokens, *tables]) for tokens in (queries, keys))
    x = torch.randn(BATCH, queries, again.sizes["embed_dim"], generator=generator).double()
    context = torch.randn(BATCH, keys, again.sizes["context_dim"], generator=generator).double()
    calls: list[tuple[Tensor, ...]] = [(x, context), (x[0], context[0])]
    return [(x,), (x[0],), *calls] if x.shape[2] == context.shape[2] else calls


def _run(twin: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    """The output, or the first of a tuple, and how many the tuple holds; 0 for a tensor, −1 for one
    that holds more than None behind it."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [each.clone() for each in inputs]
        if model_type(twin) is not None:
            tools = integration("transformers_adapter")
            return tools.run_alone(twin, *given), 0
        output = twin(*given)
    returns = 0
    if isinstance(output, tuple | list):
        is_alone = type(output) is tuple and all(each is None for each in output[1:])
        returns = len(output) if is_alone else -1
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(f"its output is a {type(output).__name__}")
    return output, returns


def _compare(
    reader: ModuleReader, again: ModuleReader, inputs: tuple[Tensor, ...], theirs: Tensor
) -> bool:
    """Find the mask; False with a reason, if there is none."""
    masks: list[Mask | None] = [None, causal()]
    wrong = []
    for mask in masks:
        ours = _ours(again, inputs, mask)
        if ours.shape != theirs.shape:
            reader.reasons.append(
                f"its output has shape {tuple(theirs.shape)}; by its weights it would be "
                f"{tuple(ours.shape)}"
            )
            return False
        error = float((ours - theirs).abs().max())
        if _is_close(error, theirs):
            if mask is not None:
                reader.hide(mask, ", ".join(reader.triangles) or "forward")
            return True
        wrong.append(error)
    reader.reasons.append(
        "its output is not that of its weights: a copy that was run on "
        f"{inputs[0].shape[-2]} tokens is off by {wrong[0]:.2g} from a layer without a mask, by "
        f"{wrong[1]:.2g} from a causal one"
    )
    return False


def _compare_longer(
    reader: ModuleReader, again: ModuleReader, place: int, generator: torch.Generator
) -> None:
    """Compare a longer text, twice, in the way in which the module was called on a short one."""
    queries, outputs, inputs = QUERIES, [], ()
    for tokens in LONGER:
        inputs = _calls(again, tokens, tokens + KEYS - QUERIES, generator)[place]
        try:
            outputs = [_run(again.module, inputs)[0] for _ in range(2)]
        # It may be made for so many tokens at most.
        except Exception:
            continue
        queries = inputs[0].shape[-2]
        break
    for name, value in vars(reader.module).items():
        window = (
            as_int(value) if "window" in name and name not in SIZE_NAMES["context_length"] else None
        )
        if window is not None and window >= queries:
            reader.reasons.append(
                f"{name}={window}: a window does not show on the {queries} tokens that a copy is run on"
            )
    if not outputs:
        return
    ours = _ours(again, inputs, reader.mask)
    for count, theirs in enumerate(outputs, start=1):
        error = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")
        if not _is_close(error, theirs):
            reader.reasons.append(
                f"its output is not that of its weights: a copy is equal on {QUERIES} tokens, and off "
                f"by {error:.2g} on {queries}{', when it is called again' if count > 1 else ''}"
            )
            return


def _ours(again: ModuleReader, inputs: tuple[Tensor, ...], mask: Mask | None) -> Tensor:
    """The output of the layer of a copy's weights, with a mask for its self-attention or its context."""
    layer = build(again, again.kind, None).eval()
    with torch.no_grad():
        return layer(*inputs, mask=mask)


def _is_close(error: float, theirs: Tensor) -> bool:
    return error <= CLOSE * max(1.0, float(theirs.abs().max()))
