"""Runs that start at the edited layer: earlier blocks return their outputs of a run without edits.

Sound where the output of a block depends on its arguments alone. So a run without edits from the last layer, and one
from the middle, must give what the whole run gave, bit for bit; else all blocks run. A block in training, one that ran
several times, and one that has hooks or a `forward` of somebody's inside always run. What replayed blocks would write
to a KV cache is not written, which no later layer reads.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead._common.undoing import undoing
from clearhead.editing.activation_patching import Runs, copies_of
from clearhead.editing.edit import followed
from clearhead.watching.hooks import installing, running, tap
from clearhead.watching.stream import called


class Replay:
    """The outputs of the blocks of a model in a run without edits, to be replayed for the same inputs.

    Memory is O(layers × tokens).
    """

    def __init__(self, runs: Runs, layers: Sequence[str]) -> None:
        """Run the model once to record its blocks, and twice to test the replay.

        `layers` are the paths of the modules to edit. Raises what the model raises in the first run.
        """
        self._runs, self._thread = runs, threading.get_ident()
        every = dict(runs.model.named_modules(remove_duplicate=False))
        self._attend = {path: every[path] for path in layers if path in every}
        self._clock, self._began = count(1), dict[nn.Module, int]()
        self._kept: dict[nn.Module, tuple[float, Any]] = {}
        self._copies = 1, 0
        # Other watches and edits may look at every block.
        blocks = [] if installing.users() else _blocks(runs.model, self._attend.values())
        with torch.no_grad(), followed(runs.model), undoing() as undo:
            for each in blocks:
                _replace_forward(undo, each, self._recording)
            tap.register(undo, running.followers, self)
            output = called(runs.model, runs.inputs)
        order = sorted(layers, key=self._begins)
        if not all(self._holds(path, output) for path in (order[-1], order[len(order) // 2])):
            self._kept.clear()

    @contextmanager
    def before(self, layers: Sequence[str], times: int = 1, batch: int = 0) -> Iterator[None]:
        """Have blocks that end before the first of these layers starts return their recorded outputs in this block.

        Args:
            layers: the paths of those that are edited, at least one.
            times: how many copies of the inputs the model runs on.
            batch: the samples of one copy.
        """
        first = min(map(self._begins, layers))
        self._copies = times, batch
        with undoing() as undo:
            for module, (ended, _) in self._kept.items():
                if ended < first:
                    _replace_forward(undo, module, self._replaying)
            yield

    def _holds(self, path: str, output: Any) -> bool:
        """Return True if a run without edits that begins at a layer has this output, bit for bit."""
        try:
            with torch.no_grad(), followed(self._runs.model), self.before([path]):
                found = called(self._runs.model, self._runs.inputs)
        except Exception:
            return False
        pair = _pytree.tree_leaves(found), _pytree.tree_leaves(output)
        return len(pair[0]) == len(pair[1]) and all(
            torch.equal(one, other)
            if isinstance(one, Tensor) and isinstance(other, Tensor)
            else type(one) is type(other)
            for one, other in zip(*pair, strict=True)
        )

    def _begins(self, path: str) -> int:
        """Return the time at which a layer began to run; 0 if it did not run."""
        return self._began.get(self._attend.get(path, self._runs.model), 0)

    def enter(self, module: nn.Module, inputs: Any, named: Any) -> None:
        """Record the time at which a module first starts to run in the thread of the replay."""
        if threading.get_ident() == self._thread:
            self._began.setdefault(module, next(self._clock))

    def leave(self, module: nn.Module, output: Any) -> None:
        """Do nothing; the outputs are kept by the wrappers of the blocks."""

    def _recording(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that also records a copy of the output of a block, and when it was made.

        In other threads it only runs the block. After a second call the time is infinite: such a block is not replayed.
        """

        def keep(*args: Any, **kwargs: Any) -> Any:
            """Run the block, and record its output in the thread of the replay."""
            output = forward(*args, **kwargs)
            if threading.get_ident() == self._thread:
                ended = math.inf if module in self._kept else next(self._clock)
                self._kept[module] = ended, copies_of(output)
            return output

        return keep

    def _replaying(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that returns copies of the recorded output of a block, and runs it in other threads."""

        def again(*args: Any, **kwargs: Any) -> Any:
            """Return copies of the recorded output, or run the block in another thread."""
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            return copies_of(self._kept[module][1], *self._copies)

        return again


def _blocks(model: nn.Module, layers: Any) -> list[nn.Module]:
    """Return the members of all module lists in which one of the modules `layers` is, if they may be replayed.

    That is in eval mode, not scripted, and without hooks or a patched forward inside.
    """
    attend = {id(each) for each in layers}
    found: dict[nn.Module, None] = {}
    for some in model.modules():
        if isinstance(some, nn.ModuleList | nn.Sequential) and any(
            id(each) in attend for each in some.modules()
        ):
            found.update(dict.fromkeys(some))
    return [block for block in found if not any(map(_is_special, block.modules()))]


def _is_special(module: nn.Module) -> bool:
    """Return True for a module in training, one that is scripted, and one with hooks or a patched forward."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    is_patched = bool(hooks) or "forward" in vars(module)
    return module.training or isinstance(module, torch.jit.ScriptModule) or is_patched


def _replace_forward(undo: list[Any], module: nn.Module, make: Callable[..., Any]) -> None:
    """Replace the forward of a module by `make(module, forward)`; `undo` gets the step that restores it."""
    undo.append(lambda: vars(module).pop("forward", None))
    vars(module)["forward"] = make(module, module.forward)
