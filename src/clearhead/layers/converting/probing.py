"""Run a copy of a module, and compare it with the layer of its weights.

Weights do not tell what a forward computes. A module of transformers says its mask itself; how it rotates, and
whether it caps its scores, is guessed until a guess equals the copy. A class of the user's may hide the future, or
compute anything else. So the copy has new random weights and runs in float64, on a few tokens and on a longer text,
which shows a window; a class of the user's runs twice on it, which shows what a call leaves behind. If no guess is
equal, the module is refused. What shows only on longer texts is not seen, so a module with a window of that length or
more is refused.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._common.foreign_names import SIZE_NAMES
from clearhead._common.lazy import integration
from clearhead.errors import UnsupportedError
from clearhead.layers.converting.families import FAMILIES, family_of, read_as
from clearhead.layers.converting.fitting import build, refuse
from clearhead.layers.converting.reader import Fitted, ModuleReader, model_type
from clearhead.layers.converting.tensor_pairs import described
from clearhead.layers.converting.weights import weights_of, without_accelerate
from clearhead.layers.rotary import Layout
from clearhead.masks import causal

BATCH, QUERIES, KEYS = 2, 5, 7
# The longer text is the longest of these that the module runs on; its context has two tokens more.
LONGER = (257, 131, 67, 31, 17)
# Some modules compute their weights in float32 whatever the input; a difference that means something
# is larger by thousands.
CLOSE = 1e-5

Fits = dict[tuple[Any, ...], Fitted]


def read(
    module: nn.Module, related: Mapping[str, nn.Module], fits: Fits | None = None
) -> ModuleReader:
    """Return a reader that has read a module as a layer of ours; a copy of the module may be run.

    Args:
        module: the module, which is not changed.
        related: as for a reader.
        fits: results for other modules, added to; a module like one of them need not be run. None runs it.

    Raises:
        UnsupportedError: if there is no such layer; see `convert`.
    """
    if family_of(module) is None:
        known = "\n".join(f"  - {family.words}" for family in FAMILIES if family.words)
        raise UnsupportedError(
            "convert.unknown",
            "module must be an attention layer of a known kind, or a model with some; got "
            f"{type(module).__name__}.\n{known}",
        )
    reader = _checked(read_as(module, guesses(module)[0], related))
    if reader.is_probed and not reader.reasons:
        guess = fit(reader, {} if fits is None else fits)
        if guess._replace(mask=None) != reader.guess:
            call = reader.call
            reader = _checked(read_as(module, guess, related))
            reader.call = call
        if guess.mask is not None:
            reader.hide(guess.mask, ", ".join(reader.triangles) or "forward")
    refuse(f"read this {type(module).__name__}", reader.reasons)
    return reader


def _checked(reader: ModuleReader) -> ModuleReader:
    """Return the same reader of a module that was read, with a reason for all that a layer would leave out."""
    reader.check_forward()
    reader.check_tensors()
    if reader.is_probed and reader.is_own:
        reader.read_triangles()
    # Where the projections could not be read, the rest was not looked at.
    if reader.left_over and (reader.sizes or not reader.reasons):
        reader.reasons.append(f"left over: {', '.join(reader.left_over)}")
    return reader


def guesses(module: nn.Module) -> list[Fitted]:
    """Return the settings that a module may have, most likely first, to be compared with its outputs.

    For a class of the user's: no mask or causal, and how norms are weighted; for one of transformers: rotary layout,
    whole or partial rotation, softcap, and norms.
    """
    norms = ("copied", "plus 1")
    if model_type(module) is None:
        return [Fitted(norms=how, mask=mask) for mask in (None, causal()) for how in norms]
    layouts: tuple[Layout | None, ...] = (None,)
    if "position_embeddings" in inspect.signature(type(module).forward).parameters:
        layouts = ("half", "interleaved", None)
    return [Fitted(*each) for each in product(layouts, (True, False), (True, False), norms)]


def fit(reader: ModuleReader, fits: Fits) -> Fitted:
    """Return the guess for which our layer equals runs of a copy of the module.

    If none does, the copy cannot be run, or the shape differs, a reason is added to the reader, and some guess
    returned.

    Args:
        reader: of a module without reasons against it.
        fits: the guesses of other modules of transformers, added to; a module like one of them is not run.
    """
    like = () if reader.is_own else _settings(reader)
    if like in fits:
        return fits[like]
    generator = torch.Generator().manual_seed(0)
    twin = _twin(reader, generator)
    runs = [] if twin is None else _runs(reader, twin, generator)
    if twin is None or not runs:
        return reader.guess
    errors: dict[tuple[object, ...], float] = {}
    for guess in guesses(twin):
        again = read_as(twin, guess)
        hows = [pair.how for pair in again.pairs]
        settings = (guess.mask, *map(described, again.parts), *hows)
        if not again.sizes or settings in errors:
            continue
        layer = build(again, again.kind, None).eval()
        for inputs, theirs in runs:
            with torch.no_grad():
                ours = layer(*inputs, mask=guess.mask)
            if ours.shape != theirs.shape:
                reader.reasons.append(
                    f"its output has shape {tuple(theirs.shape)}; by its weights it would be {tuple(ours.shape)}"
                )
                return guess
            errors[settings] = float((ours - theirs).abs().max())
            if not errors[settings] <= CLOSE * max(1.0, float(theirs.abs().max())):
                break
        else:
            if like:
                fits[like] = guess
            return guess
    lengths = " and ".join(dict.fromkeys(str(inputs[0].shape[-2]) for inputs, _ in runs))
    reader.reasons.append(
        f"its output is not that of its weights: a copy that was run on {lengths} tokens is off by "
        f"{min(errors.values(), default=math.inf):.2g}"
    )
    return reader.guess


def _twin(reader: ModuleReader, generator: torch.Generator) -> nn.Module | None:
    """Return a float64 copy of the module on the CPU, in eval mode, with random weights from the generator.

    Quantised layers become nn.Linear. None, with a reason added to the reader, if it cannot be copied.
    """
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


def _runs(
    reader: ModuleReader, twin: nn.Module, generator: torch.Generator
) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """Return (inputs, output) of calls of the copy `twin`, on a short and a longer text; [] and a reason if none runs.

    A class of the user's is run twice on the longer; without the longer if the copy cannot be run on any.
    Sets `reader.call`, the number of inputs and of outputs, and adds a reason for a window that the texts do not show.
    """
    again = read_as(twin, reader.guess)
    calls, errors = _calls(again, QUERIES, KEYS, generator), list[Exception]()
    for inputs in calls:
        try:
            theirs, returns = _run(twin, inputs)
        # An exception of any kind means that the module takes other arguments.
        except Exception as error:
            errors.append(error)
            continue
        break
    else:
        reader.reasons.append(
            f"a copy of it could not be run on x of shape {tuple(calls[0][0].shape)}, to find what its weights do not "
            f"tell: {type(errors[0]).__name__}: {errors[0]}"
        )
        return []
    reader.call = len(inputs), returns
    runs = [(inputs, theirs)]
    for tokens in LONGER if reader.is_own else LONGER[-1:]:
        inputs = _calls(again, tokens, tokens + KEYS - QUERIES, generator)[len(errors)]
        try:
            runs += [(inputs, _run(twin, inputs)[0]) for _ in range(1 + reader.is_own)]
        # It may have a maximum length.
        except Exception:
            continue
        break
    longest = runs[-1][0][0].shape[-2]
    for name, value in vars(reader.module).items() if reader.is_own else ():
        is_window = "window" in name and name not in SIZE_NAMES["context_length"]
        window = as_int(value) if is_window else None
        if window is not None and window >= longest:
            reader.reasons.append(
                f"{name}={window}: a window does not show on the {longest} tokens that a copy is run on"
            )
    return runs


def _settings(reader: ModuleReader) -> tuple[Any, ...]:
    """Return a cache key: the class, configuration and plain attributes of the module, and what was read of it.

    Weights and `layer_idx` are left out.
    """
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
    """Return random float64 inputs by each calling convention: (x,) and (x, context), each with a batch and without.

    Modules of transformers get (x,) alone, and (x,) is left out where the widths of x and context differ. x has
    `queries` tokens and a context `keys`, but at most as many as the module's buffers of two or more axes are wide.
    `again` is a reader of the copy.
    """
    tables = [each.shape[-1] for each in again.module.buffers() if each.ndim > 1]
    queries, keys = (min([tokens, *tables]) for tokens in (queries, keys))
    x = torch.randn(BATCH, queries, again.sizes["embed_dim"], generator=generator).double()
    if not again.is_own:
        return [(x,)]
    context = torch.randn(BATCH, keys, again.sizes["context_dim"], generator=generator).double()
    calls: list[tuple[Tensor, ...]] = [(x, context), (x[0], context[0])]
    return [(x,), (x[0],), *calls] if x.shape[2] == context.shape[2] else calls


def _run(twin: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    """Return the output of the copy `twin`, or the first of a tuple or list, and the length of the tuple.

    The length is 0 for a tensor and for a module of transformers, and −1 for a list and for a tuple with more than None
    after the first. Raises TypeError if the output is no tensor, and what the module raises; warnings are not shown.
    """
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
