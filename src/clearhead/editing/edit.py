"""The attention of a running model, edited under its own kernel.

The hooks are those of `watch`. The model's kernel runs as it does; what is edited replaces its context
in the heads and for the queries that an edit names, before the model goes on.
"""

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from clearhead._common.checks import as_int
from clearhead._common.elements import Drawn
from clearhead._common.text import shown
from clearhead._common.torch_internals import is_compiled
from clearhead.attention.problem import Problem
from clearhead.editing.layer_edit import LayerEdit
from clearhead.editing.operations import Ablate, EditedCall, Operation
from clearhead.editing.places import Running, places_of
from clearhead.editing.selections import Selection
from clearhead.errors import ArgumentTypeError, EditError
from clearhead.watching.estimate import attending
from clearhead.watching.hooks import installing, tap
from clearhead.watching.recording import of_texts

_lock = threading.Lock()
_active: list["Edit"] = []

GLOB = "*?["
"""The characters that make a path a glob."""


class Edit(Drawn):
    """The context manager that `edit` returns; a layer of it is edited by its path or number.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
        >>> edit = ch.edit(model)
        >>> edit["1"].heads[0].ablate()
        >>> edit
        edit(Sequential): 1 operation
          1  heads[0].ablate
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._operations: list[tuple[str, str, Operation]] = []
        self._restorers: list[Callable[[], None]] = []
        self._running = threading.local()
        self.attended: dict[str, int] = {}
        """The modules that have attended so far, by their paths, and how many heads they have."""
        self._first: dict[str, str] = {}
        self._total = 0
        self._ran = False

    def __getitem__(self, layer: str | int) -> "LayerEdit":
        """Return a layer to edit.

        Args:
            layer: the number of a module that attends, in the order of the model's modules; its
                path; a part of the path that only one has, such as "layers.5"; or a glob, such as
                "*.layers.[0-3].*", for every module that is like it.

        Raises:
            EditError: code `edit.layers`, for a layer that is not there, or that several are.
        """
        return LayerEdit(partial(self.add, self.pattern(layer)), slice(None))

    def add(self, layer: str, what: str, operation: Operation) -> None:
        """Add an operation on every module whose path is like this."""
        self._operations.append((layer, what, operation))

    def clear(self) -> None:
        """Take every operation back."""
        self._operations.clear()

    def __repr__(self) -> str:
        count = len(self._operations)
        lines = [f"edit({type(self._model).__name__}): {count} operation{'s' * (count != 1)}"]
        return "\n".join(lines + [f"  {layer}  {what}" for layer, what, _ in self._operations])

    def __enter__(self) -> "Edit":
        for path, module in self._model.named_modules():
            if is_compiled(module):
                raise EditError(
                    "edit.compiled",
                    f"{path or 'the model'} is compiled, and what torch.compile has compiled cannot "
                    "be edited. Edit the model as it was before.",
                )
        with _lock:
            if self in _active:
                raise EditError("edit.entered", "this edit has been entered already.")
            self.attended.clear()
            self._first.clear()
            self._total, self._ran = 0, False
            try:
                self._install()
            except BaseException:
                self._uninstall()
                raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with _lock:
            self._uninstall()
        if error is None and self._ran:
            self._report()

    def _install(self) -> None:
        _active.append(self)
        if len(_active) == 1:
            tap.editors.append(_edited)
        self._restorers.append(partial(installing.uninstall, self))
        installing.install(self)
        installing.hold(self._model.modules())
        # The fast paths of PyTorch's layers give no context of a head.
        fast = torch.backends.mha.get_fastpath_enabled()
        self._restorers.append(partial(torch.backends.mha.set_fastpath_enabled, fast))
        torch.backends.mha.set_fastpath_enabled(False)
        for module in self._model.modules():
            before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
            self._restorers.append(before.remove)
            after = module.register_forward_hook(self._leave, always_call=True)
            self._restorers.append(after.remove)

    def _uninstall(self) -> None:
        while self._restorers:
            self._restorers[-1]()
            self._restorers.pop()
        _active[:] = [each for each in _active if each is not self]
        if not _active and _edited in tap.editors:
            tap.editors.remove(_edited)

    def _enter(self, module: nn.Module, args: object, kwargs: dict[str, Any]) -> None:
        self._ran = True
        self._stack.append(Running(module, kwargs))

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        # A module that raised before its hook ran is still on top.
        while self._stack and self._stack.pop().module is not module:
            pass

    @property
    def _stack(self) -> list[Running]:
        if not hasattr(self._running, "stack"):
            self._running.stack = []
        return self._running.stack

    def _operations_on(self, child: str | None) -> tuple[str, list[Operation]] | None:
        """The path of the module that attends now and the operations on it; None for a module of
        another model."""
        if not self._stack:
            return None
        module = self._stack[-1].module
        part = None if child is None else getattr(module, child, None)
        path = self._paths[id(module) if id(part) not in self._paths else id(part)]
        found = [(layer, each) for layer, _, each in self._operations if is_like(path, layer)]
        for layer, _ in found:
            first = self._first.setdefault(layer, path)
            if first != path and not any(each in layer for each in GLOB):
                raise EditError(
                    "edit.layers",
                    f"a layer must be one module that attends, or a glob; {shown(layer)} has {shown(first)} "
                    f"and {shown(path)}.",
                )
        return path, [each for _, each in found]

    def _note(self, path: str, num_heads: int, total: int) -> None:
        self.attended[path] = num_heads
        self._total = max(self._total, total)

    def _report(self) -> None:
        """Refuse what was without effect, when the block ends."""
        name = type(self._model).__name__
        for layer, what, operation in self._operations:
            if not any(is_like(path, layer) for path in self.attended):
                known = ", ".join(map(shown, self.attended)) or "none"
                raise EditError(
                    "edit.layers",
                    f"{shown(layer)} of {name} is edited ({what}), and did not attend in a way that can be "
                    f"edited: {known} did. A model with a softmax of its own is edited once it attends "
                    'by PyTorch\'s function, such as with attn_implementation="sdpa".',
                )
            for chosen in (getattr(operation, "query", None), getattr(operation, "key", None)):
                if not isinstance(chosen, Selection) or chosen.first is None:
                    continue
                if chosen.first >= self._total:
                    raise EditError(
                        "edit.no-token",
                        f"{chosen.name}= of {shown(layer)} begins at position {chosen.first}; there were "
                        f"{self._total} tokens.",
                    )

    def pattern(self, layer: object) -> str:
        """Return the path or the glob of a layer, as `edit[layer]` takes it."""
        known = list(attending(self._model))
        number = as_int(layer)
        if number is not None and -len(known) <= number < len(known):
            return known[number]
        if isinstance(layer, str):
            if any(each in layer for each in GLOB) or layer in known:
                return layer
            like = [path for path in known if _holds(path, layer)]
            if len(like) == 1:
                return like[0]
            # A module that attends may be called anything.
            holding = [path for path in self._paths.values() if _holds(path, layer)]
            if not like and holding and all(is_like(path, holding[0]) for path in holding):
                return holding[0]
            if like:
                known, layer = like, f"{layer}, which are {len(like)}"
        raise EditError(
            "edit.layers",
            "a layer must be the number, the path, or a part of the path of one module that attends, "
            f"or a glob; got {shown(layer)}. These attend: {', '.join(map(shown, known)) or 'none'}.",
        )


def is_like(path: str, layer: str) -> bool:
    """Return True for the path itself, for what is inside it, and for what a glob matches."""
    return fnmatchcase(path, layer) or path.startswith(f"{layer}.")


def _holds(path: str, layer: str) -> bool:
    """True for a path with these parts in it, one after the other."""
    return f".{layer}." in f".{path}."


def _edited(read: tap.Read, child: str | None) -> tap.Edited | None:
    """The edit of a call that is about to run, by every edit that is entered."""
    problem: Problem | None = None
    operations: list[Operation] = []
    place, at = "", None
    for each in list(_active):
        found = each._operations_on(child)
        if found is None:
            continue
        if problem is None:
            with tap.guard():
                problem = of_texts(read(), found[0])
        with tap.guard():
            at = places_of(each._stack, problem)
        place = found[0]
        each._note(place, problem.num_heads, max(at.total, problem.kv_len))
        operations += found[1]
    if problem is None or at is None or not operations:
        return None
    call = EditedCall(problem, operations, at, place)
    ablated = any(isinstance(each, Ablate) for each in operations)
    return tap.Edited(call.read, call.context, ablated)


def edit(model: nn.Module) -> Edit:
    """Edit the attention of a model while a block runs: what if this head could not look there?

    The model runs on its own kernel. Heads and queries that are not edited keep its numbers, bit for
    bit; those that are edited are computed by the kernel that `attend` takes. Every way of attending
    that `watch` reads is edited, with gradients, in batches, and in generation with a KV cache,
    where positions go on from step to step. `watch` inside the block sees the edited calls. Outside
    of the block, or after an exception in it, the model is as it was.

    A gradient is taken inside the block, where checkpointing runs the model again.

    Args:
        model: any PyTorch model that is not compiled.

    Returns:
        An `Edit`; `edit[layer]` is a layer of it, with `ablate`, `hide`, `scale`, `patterns_from`
        and `average`, and `edit[layer].heads[…]` some heads of it, with the same.

    Raises:
        ArgumentTypeError: code `edit.model`, for something that is not a module.
        EditError: codes `edit.compiled` and `edit.entered` when the block begins; `edit.layers` and
            `edit.no-token` when it ends, for an edit of a layer that did not attend, or of a token
            that was not there.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 16)
        >>> before = layer(x)
        >>> with ch.edit(layer) as edit:
        ...     edit["self_attn"].heads[1].ablate()
        ...     edited = layer(x)
        >>> bool((edited != before).any()), bool((layer(x) == before).all())
        (True, True)
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "edit.model", f"model must be a torch.nn.Module; got {type(model).__name__}."
        )
    return Edit(model)
