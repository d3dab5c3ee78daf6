"""Comparison of the attentions of a model with their replacements, in a call of the model."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from clearhead._common.checks import arguments_of
from clearhead._common.lazy import integration
from clearhead._common.undoing import Undo, undoing, unhook
from clearhead.layers.converting.adapters import Adapter, PlainAdapter
from clearhead.layers.converting.reader import ModuleReader

CLOSE = 1e-5


@dataclass
class Place:
    """An attention of a model: its paths, and its replacement or the reason why there is none.

    Attributes:
        paths: all paths of the module in the model; several where it is shared.
        module: the model's own module.
        reader: of the module; None where it cannot be converted.
        made: the replacement; None if there is none.
        reason: why there is none; "" if there is one.
    """

    paths: list[str]
    module: nn.Module
    reader: ModuleReader | None = None
    made: Adapter | None = None
    reason: str = ""

    @property
    def path(self) -> str:
        """The first path of the module in the model."""
        return self.paths[0]

    @property
    def theirs(self) -> str:
        """The name of the class of the module."""
        return type(self.module).__name__

    def leave(self, reason: str) -> None:
        """Set `made` to None and `reason` to this reason: the module is not converted."""
        self.made, self.reason = None, reason


def compare(model: nn.Module, inputs: Any, places: Sequence[Place], undo: Undo) -> None:
    """Put the adapters in place, after each was compared with its module in a call of the model in eval mode.

    A place whose adapter differs or raises, or whose module is not called, gets the reason and no adapter. A model
    whose output then differs, in steps with a KV cache too, or that fails, gets all of its own modules back, with the
    reason in each place that had an adapter. If there are no inputs, nothing is compared unless an
    adapter is of transformers, and these adapters are dropped, with a reason, if the model cannot be run. The training
    modes and the CPU's generator are restored.

    Args:
        model: the model.
        inputs: those of a call: a tensor, a tuple or a mapping; None for made ones, of a model of transformers.
        places: its attentions, and what was made of them; changed.
        undo: gets the step that puts the model's own modules back.

    Raises:
        Exception: that of the model's own code, if it cannot be run on `inputs`.
    """
    adapted = [place for place in places if place.made is not None]
    of_transformers = [place for place in adapted if not isinstance(place.made, PlainAdapter)]
    tools: Any = integration("transformers_adapter") if of_transformers else None
    is_run, steps = inputs is not None or bool(tools), []
    before: Any = None

    def call() -> Any:
        """Return the output of the model, run with a fixed seed; a list of outputs for inputs that are made."""
        # Some models draw masks in eval mode too.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if inputs is None:
                return [function(**named) for function, named in tools.trials(model)]
            given, named = arguments_of(inputs)
            return model(*given, **named)

    def call_in_steps() -> list[Any]:
        """Return the outputs of the model run with a KV cache; [] if that is not tried, as for inputs by position."""
        if not tools or not isinstance(inputs, Mapping | None):
            return []
        return tools.run_in_steps(model, tools.trials(model)[0][1] if inputs is None else inputs)

    if is_run:
        with _evaluating(model, [place.made for place in adapted]):
            try:
                before = _compared(call, adapted)
                steps = call_in_steps()
            # Any exception of the model's code means that it was not run.
            except Exception as error:
                if inputs is not None:
                    raise
                is_run = False
                for place in of_transformers:
                    place.leave(
                        "the model could not be run to compare it; give inputs= of a call: "
                        f"{type(error).__name__}: {error}"
                    )
    undo.append(partial(_put_all, model, [(place, place.module) for place in places]))
    _put_all(model, [(place, place.made) for place in places if place.made is not None])
    if not is_run:
        return
    try:
        with _evaluating(model, []):
            wrong = _difference(before, call())
            if wrong is None and steps:
                wrong = _difference(steps, call_in_steps())
                wrong = wrong and f"{wrong}, with a KV cache"
    except Exception as error:
        wrong = f"it cannot be run: {type(error).__name__}: {error}"
    if wrong is not None:
        _put_all(model, [(place, place.module) for place in places])
        for place in places:
            if place.made is not None:
                place.leave(f"each attention is equal, and with all of them {wrong}")


def _compared(call: Callable[[], Any], places: Sequence[Place]) -> Any:
    """Return the output of a model run in which each adapter is compared with the module that it replaces.

    A place with a difference, or that is not called, is left with the reason. The hooks are removed at the end.
    """
    called: dict[int, str | None] = {}
    caches: dict[int, dict[str, Any]] = {}

    def hook_of(place: Place) -> tuple[Any, Any]:
        """Return the forward pre-hook and the forward hook that compare the adapter of a place with its module."""

        # A cache takes what a call gives it, so that ours gets a copy from before.
        def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
            """Copy the caches of a call before the module changes them."""
            caches[id(place)] = {
                name: copy.deepcopy(each)
                for name, each in kwargs.items()
                if hasattr(each, "update") and not isinstance(each, dict)
            }

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            """Run the adapter on the arguments of a call; store its first difference to `output`, or None."""
            assert place.made is not None
            try:
                ours = place.made.forward(*args, **(kwargs | caches[id(place)]))
                wrong = _difference(output, ours, weights=True)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            called[id(place)] = called.get(id(place)) or wrong

        return keep, hook

    with undoing() as undo:
        for place in places:
            keep, hook = hook_of(place)
            undo.append(partial(unhook, place.module, keep, hook))
            place.module.register_forward_pre_hook(keep, with_kwargs=True)
            place.module.register_forward_hook(hook, with_kwargs=True)
        output = call()
    for place in places:
        wrong = called.get(id(place), "it is not called; give inputs= of a call that does")
        if wrong is not None:
            place.leave(f"in a call of the model, {wrong}")
    return output


def _difference(theirs: Any, ours: Any, *, weights: bool = False) -> str | None:
    """Return how the floating-point tensors in two outputs differ, in words; None if they are equal but for rounding.

    Args:
        theirs: the output of the module.
        ours: that of the layer.
        weights: the last of theirs may be weights that ours does not have, and is then not compared.
    """
    pairs = [(theirs, ours)]
    if weights and isinstance(theirs, tuple):
        if not isinstance(ours, tuple) or len(ours) != len(theirs):
            return f"it returns {len(theirs)} things"
        pairs = list(zip(theirs, ours, strict=True))
        pairs = pairs[:-1] if len(pairs) > 1 and ours[-1] is None else pairs
    for one, other in pairs:
        first, second = (
            [x for x in tree_leaves(side) if isinstance(x, Tensor) and x.is_floating_point()]
            for side in (one, other)
        )
        if [each.shape for each in first] != [each.shape for each in second]:
            return "the output has another shape"
        for expected, actual in zip(first, second, strict=True):
            if expected.numel() == 0:
                continue
            error = (actual.double() - expected.double()).abs().nan_to_num(0.0)
            same_nan = torch.equal(actual.isnan(), expected.isnan())
            largest = max(1.0, float(expected.double().abs().nan_to_num(0.0).max()))
            close = max(CLOSE, 32 * torch.finfo(expected.dtype).eps)
            if not same_nan or float(error.max()) > close * largest:
                return f"the output is off by {float(error.max()):.2g}"
    return None


@contextmanager
def _evaluating(model: nn.Module, related: Sequence[nn.Module | None]) -> Iterator[None]:
    """Run a block with a model and the modules `related`, not yet in it, in eval mode and without gradients.

    Restore each module's mode after. None in `related` is left out.
    """
    modules = [each for root in (model, *related) if root is not None for each in root.modules()]
    modes = [(each, each.training) for each in modules]
    with undoing() as undo, torch.no_grad():
        undo.append(partial(_set_modes, modes))
        _set_modes([(each, False) for each in modules])
        yield


def _set_modes(modes: Sequence[tuple[nn.Module, bool]]) -> None:
    """Set `training` of each module to the mode stored with it."""
    for each, mode in modes:
        each.training = mode


def _put_all(model: nn.Module, modules: Sequence[tuple[Place, nn.Module]]) -> None:
    """Put each module into all paths of its place in the model, in place."""
    for place, module in modules:
        put(model, place.paths, module)


def put(model: nn.Module, paths: Sequence[str], module: nn.Module) -> None:
    """Set a module at each of these paths in a model, in place."""
    for path in paths:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, module)
