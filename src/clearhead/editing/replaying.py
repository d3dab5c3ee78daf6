"""Runs that start at the edited layer: earlier blocks return their outputs of a run without edits.

Sound where such a block is a function of its arguments, or writes next to them only to a cache that grows by `update`,
whose calls are made again. All else runs: a block in training, one that ran several times, was given something that it
may write to, changed an argument or an attribute, or has hooks or a `forward` of somebody's inside. A run without
edits from the last layer, and one from the middle, must give what the whole run gave, bit for bit; one of several
copies of the inputs, to which each block gives as many copies, the same to rounding.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils import _pytree

from clearhead._common.checks import arguments_of
from clearhead._common.undoing import undoing
from clearhead.editing.activation_patching import copies_of, samples_of
from clearhead.editing.edit import followed
from clearhead.watching.hooks import installing, running, tap
from clearhead.watching.hooks.transformers import grows_by_update
from clearhead.watching.stream import called

TOKENS = 256
"""Tokens in one run of several edits: products of more are no faster for each token."""

PLAIN = bool | int | float | complex | str | torch.dtype | torch.device


@dataclass
class _Replayed:
    """The recorded call of a block.

    Attributes:
        ended: when, in a count of what began and ended.
        output: a copy.
        updates: what it gave to each cache among its arguments.
    """

    ended: int
    output: Any
    updates: list[list[tuple[Any, Any]]]


class Replay:
    """The outputs of the blocks of a model in a run without edits, to be replayed for the same inputs.

    What the blocks wrote to a cache is kept as well. Memory is O(layers × tokens).

    Attributes:
        output: of the model.
    """

    def __init__(self, model: nn.Module, inputs: object, layers: Sequence[str]) -> None:
        """Run the model once to record its blocks, and twice to test the replay; false if nothing is replayed.

        `layers` are the paths of the modules to edit. Raises what the model raises in the first run.
        """
        self._model, self._inputs = model, inputs
        self._thread = threading.get_ident()
        self._clock, self._began = 0, dict[nn.Module, int]()
        self._copies = 1, 0
        self._attend = _modules_at(model, layers)
        self._kept: dict[nn.Module, _Replayed] = {}
        self._calls: dict[nn.Module, int] = {}
        blocks = [] if _is_seen(model) else _blocks(model, layers)
        with torch.no_grad(), followed(model), undoing() as undo:
            for each in blocks:
                _replace_forward(undo, each, self._recording)
            tap.register(undo, running.followers, self)
            self.output = called(model, inputs)
        self._kept = {each: kept for each, kept in self._kept.items() if self._calls[each] == 1}
        if self._kept and not self._holds(layers):
            self._kept.clear()

    def __bool__(self) -> bool:
        """Return True if a block can be replayed."""
        return bool(self._kept)

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
            for module, kept in self._kept.items():
                if kept.ended < first:
                    _replace_forward(undo, module, self._replaying)
            yield

    def copies(self, sizes: Collection[tuple[int, int]], count: int) -> int:
        """Return the number of edits in one run, each on its own copy of the inputs in the batch.

        Runs the model to test it. It is 1 unless all that the model takes and returns are rows of samples. It is also 1
        if a hook of the user sees the run.

        Args:
            sizes: batch and query_len of each call of attention.
            count: the number of edits.
        """
        given, named = arguments_of(self._inputs)
        batch = max(sizes)[0]
        times = min(count, TOKENS // max(1, batch * max(query_len for _, query_len in sizes)))
        if (
            times < 2
            or any(each._forward_hooks or each._forward_pre_hooks for each in self._model.modules())
            or any(each != batch for each, _ in sizes)
            or not all(
                each is None or isinstance(each, PLAIN) or _is_rows(each, batch)
                for each in [*given, *named.values()]
            )
        ):
            return 1
        last = max(self._attend, key=self._begins)
        output = self._run([last], self.inputs_of(times, batch), times, batch)
        return times if all(self.is_copy(output, at, times, batch) for at in range(times)) else 1

    def inputs_of(self, times: int, batch: int) -> Any:
        """Return copies of the inputs, a batch of `batch` samples repeated `times` times."""
        inputs = self._inputs
        return copies_of(dict(inputs) if isinstance(inputs, Mapping) else inputs, times, batch)

    def is_copy(self, output: Any, at: int, times: int, batch: int) -> bool:
        """Return True if copy number `at` in a batched output equals the output of a run on the inputs alone.

        Equal means to half of the digits of the dtype. False if the output has anything but rows of samples, None and
        caches that grow by `update`.
        """
        rows, leaves = slice(at * batch, (at + 1) * batch), _pytree.tree_leaves(output)
        return all(
            each is None or grows_by_update(each) or _is_rows(each, times * batch)
            for each in leaves
        ) and _trees_match(_is_close, samples_of(output, rows, times * batch), self.output)

    def _holds(self, layers: Sequence[str]) -> bool:
        """Return True if replayed runs from the last and a middle layer have the output of the original run."""
        order = sorted(layers, key=self._begins)
        runs = (self._run([path], self._inputs) for path in (order[-1], order[len(order) // 2]))
        return all(_trees_match(torch.equal, each, self.output) for each in runs)

    def _run(self, layers: Sequence[str], inputs: object, times: int = 1, batch: int = 0) -> Any:
        """Return the output of a run without edits that replays blocks as `before` does; None if it raised."""
        try:
            with torch.no_grad(), followed(self._model), self.before(layers, times, batch):
                return called(self._model, inputs)
        except Exception:
            return None

    def _tick(self) -> int:
        """Return the next time of a clock that counts modules that begin and end."""
        self._clock += 1
        return self._clock

    def _begins(self, path: str) -> int:
        """Return the time at which a layer began to run; 0 if it did not run."""
        return self._began.get(self._attend.get(path, self._model), 0)

    def enter(self, module: nn.Module, inputs: Any, named: Any) -> None:
        """Record the time at which a module first starts to run in the thread of the replay."""
        if threading.get_ident() == self._thread:
            self._began.setdefault(module, self._tick())

    def leave(self, module: nn.Module, output: Any) -> None:
        """Do nothing; the outputs are kept by the wrappers of the blocks."""

    def _recording(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that also records output and cache updates of a block, if it changes nothing else.

        Not recorded: other threads, arguments that may be written to, and blocks that change arguments or attributes.
        """

        def keep(*args: Any, **kwargs: Any) -> Any:
            """Run the block; record the call if it is in the thread of the replay and can be repeated."""
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            self._calls[module] = self._calls.get(module, 0) + 1
            caches, others = _split_caches(args, kwargs)
            is_plain = all(map(_is_plain, others))
            before = _versions(module, others) if is_plain else None
            updates: list[list[tuple[Any, Any]]] = [[] for _ in caches]
            with undoing() as undo:
                for cache, calls in zip(caches, updates, strict=True):
                    _record_updates(undo, cache, calls)
                output = forward(*args, **kwargs)
            is_same = before is not None and _is_unchanged(before, _versions(module, others))
            if is_same and all(map(_is_plain, _pytree.tree_leaves(output))):
                self._kept[module] = _Replayed(self._tick(), copies_of(output, 1, 0), updates)
            return output

        return keep

    def _replaying(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that repeats the recorded cache updates of a block and returns copies of its output.

        In other threads it runs the block.
        """
        kept = self._kept[module]

        def again(*args: Any, **kwargs: Any) -> Any:
            """Return copies of the recorded output, after updates of the caches among the arguments."""
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            for cache, calls in zip(_split_caches(args, kwargs)[0], kept.updates, strict=True):
                for given in calls:
                    some, named = copies_of(given, *self._copies)
                    cache.update(*some, **named)
            return copies_of(kept.output, *self._copies)

        return again


def _is_rows(each: Any, count: int) -> bool:
    """Return True for a tensor with `count` rows."""
    return isinstance(each, Tensor) and each.ndim > 0 and len(each) == count


def _is_seen(model: nn.Module) -> bool:
    """Return True if other code may observe a run: an edit, a watch, global module hooks, or a compiler."""
    compiled = (getattr(each, "_compiled_call_impl", None) for each in model.modules())
    hooks = torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks
    is_compiled = any(each is not None for each in compiled) or hasattr(model, "_orig_mod")
    return bool(installing.users()) or is_compiled or any(hooks)


def _modules_at(model: nn.Module, layers: Sequence[str]) -> dict[str, nn.Module]:
    """Return the module at each of these paths, without paths that the model does not have."""
    every = dict(model.named_modules(remove_duplicate=False))
    return {path: every[path] for path in layers if path in every}


def _blocks(model: nn.Module, layers: Sequence[str]) -> list[nn.Module]:
    """Return the members of all module lists in which one of `layers` is, without members that are not `_is_alone`."""
    attend = {id(each) for each in _modules_at(model, layers).values()}
    found: dict[nn.Module, None] = {}
    for some in model.modules():
        if isinstance(some, nn.ModuleList | nn.Sequential) and any(
            id(each) in attend for each in some.modules()
        ):
            found.update(dict.fromkeys(each for each in some if _is_alone(each)))
    return list(found)


def _is_alone(block: nn.Module) -> bool:
    """Return True if a block is in eval mode with all inside, and none inside has hooks or a patched forward.

    False if one is scripted.
    """
    inside = list(block.modules())
    if any(each.training or isinstance(each, torch.jit.ScriptModule) for each in inside):
        return False
    return not any(
        each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each)
        for each in inside[1:]
    )


def _replace_forward(undo: list[Any], module: nn.Module, make: Callable[..., Any]) -> None:
    """Replace the forward of a module by `make(module, forward)`; `undo` gets the step that restores it."""
    forward, own = module.forward, vars(module).get("forward")
    undo.append(
        (lambda: vars(module).pop("forward", None))
        if own is None
        else lambda: vars(module).update(forward=own)
    )
    vars(module)["forward"] = make(module, forward)


def _record_updates(undo: list[Any], cache: Any, calls: list[tuple[Any, Any]]) -> None:
    """Append copies of the arguments of each update of a cache to `calls`; `undo` gets the step that ends it."""
    update = cache.update

    def listening(*args: Any, **kwargs: Any) -> Any:
        """Record copies of the arguments, and return what `update` of the cache returns."""
        calls.append(copies_of((args, kwargs), 1, 0))
        return update(*args, **kwargs)

    undo.append(lambda: vars(cache).pop("update", None))
    vars(cache)["update"] = listening


def _split_caches(args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Split arguments into caches that grow by `update`, and others; both in order."""
    every = [*args, *kwargs.values()]
    caches = [each for each in every if grows_by_update(each)]
    return caches, [each for each in every if not any(each is some for some in caches)]


def _is_plain(each: object) -> bool:
    """Return True if a value is immutable, or a tensor, whose version shows writes."""
    if type(each) is tuple:
        return all(map(_is_plain, each))
    is_tensor = isinstance(each, Tensor) and not each.is_inference()
    return each is None or is_tensor or isinstance(each, PLAIN)


def _versions(module: nn.Module, given: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return what a call of a module may change, each with its version (`_version`).

    These are the attributes and buffers of the module and those inside, and the leaves of its arguments `given`.
    """
    held = [each for one in module.modules() for each in vars(one).values()]
    held += [each for one in module.modules() for each in one.buffers(recurse=False)]
    return [(each, _version(each)) for each in [*held, *_pytree.tree_leaves(list(given))]]


def _version(each: Any) -> int:
    """Return the version of a tensor, the length of a list, dict or set, and 0 for any other object."""
    if isinstance(each, Tensor):
        return each._version
    return len(each) if isinstance(each, list | dict | set) else 0


def _is_unchanged(before: Sequence[tuple[Any, int]], after: Sequence[tuple[Any, int]]) -> bool:
    """Return True if both lists have the same objects, each in the same version."""
    return len(before) == len(after) and all(
        one[0] is other[0] and one[1] == other[1] for one, other in zip(before, after, strict=True)
    )


def _trees_match(alike: Callable[[Tensor, Tensor], bool], one: Any, other: Any) -> bool:
    """Return True if two trees have as many leaves, of like types and shapes, and `alike` holds for all tensors."""
    some, others = _pytree.tree_leaves(one), _pytree.tree_leaves(other)
    return len(some) == len(others) and all(
        mine.shape == theirs.shape and alike(mine, theirs)
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor)
        else type(mine) is type(theirs)
        for mine, theirs in zip(some, others, strict=True)
    )


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal to half of the digits of their dtype."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    off = torch.linalg.vector_norm(one - other)
    return bool(off <= torch.finfo(one.dtype).eps ** 0.5 * torch.linalg.vector_norm(other))
