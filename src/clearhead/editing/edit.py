"""The attention of a running model, edited under its own kernel.

The hooks are those of `watch`. The model's kernel runs as it does; what is edited replaces its context
in the heads and for the queries that an edit names, before the model goes on.
"""

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn

from clearhead._common.checks import as_int, check_bool
from clearhead._common.elements import Drawn
from clearhead._common.foreign_names import Answering
from clearhead._common.hints import with_hints
from clearhead._common.torch_internals import in_backward, is_compiled
from clearhead._text import kind_of, shown
from clearhead.attention.problem import Problem
from clearhead.editing import entering
from clearhead.editing.call_positions import Running
from clearhead.editing.layer_edit import LayerEdit
from clearhead.editing.operation import EditReport, Operation, Tally
from clearhead.errors import ArgumentTypeError, EditError, EditWarning
from clearhead.watching.finding import attending
from clearhead.watching.hooks import installing
from clearhead.watching.missing import Missing, Paths, Ran, listed, places_that

GLOB = "*?["
"""The characters that make a path a glob."""


class Edit(Answering, Drawn):
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

    def __init__(self, model: nn.Module, strict: bool = False) -> None:
        self._model = model
        self._modules = dict(model.named_modules())
        self._strict = strict
        self._operations: list[tuple[str, str, Operation]] = []
        self._prepared: Callable[[], entering.Use | None] = lambda: None
        self._use = self._prepared
        self._owned: entering.Use | None = None
        self.expects_changes = True
        """False where an operation without effect, or a block without operations, is no reason to warn."""
        self._was_used = False
        self._begin()
        self.attended: dict[str, int] = {}
        """The number of heads of each module that has attended so far, by its path; 0 where only others are edited."""

    def _begin(self) -> None:
        """Reset what a block needs, such as its counts of calls."""
        self._paths = Paths(self._modules)
        self._running = threading.local()
        self._first: dict[str, str] = {}
        self._ran = False
        self.calls: Counter[str] = Counter()
        """The number of calls of each module that attended in this block, by its path."""
        self.sizes: set[tuple[int, int]] = set()
        """The batch and the query_len of these calls."""
        self._parts = Ran(self._model, self._modules)

    @property
    def report(self) -> EditReport:
        """The number of queries that each operation has changed, in this block or the last one.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with ch.edit(layer) as edit:
            ...     edit[0].heads[1].hide(key=0)
            ...     output = layer(torch.randn(3, 5, 8))
            >>> edit.report
            layer        operation      calls  heads  queries
            (the model)  heads[1].hide      1      1       15
        """
        return EditReport(
            [each.tally.counts(layer, what) for layer, what, each in self._operations]
        )

    @property
    def missing(self) -> list[Missing]:
        """The parts of the model that attended in this or the last block and cannot be edited.

        Example:
            >>> import torch, clearhead as ch
            >>> edit = ch.edit(ch.MultiHeadAttention(8, num_heads=2))
            >>> edit.missing
            []
        """
        return self._parts.missing(self.attended)

    def __getitem__(self, layer: str | int) -> "LayerEdit":
        """Return a layer to edit.

        Args:
            layer: the number of a module that attends, in the order of the model's modules; its
                path; a part of the path that only one has, such as "layers.5"; or a glob, such as
                "*.layers.[0-3].*", for every module that is like it.

        Raises:
            EditError: code `edit.layers`, for a layer that is not there, or that several are.
        """
        return LayerEdit(partial(self.add, self.pattern(layer)))

    def add(self, layer: str, what: str, operation: Operation) -> None:
        """Append an operation, described by `what`, on every module whose path is like `layer` (`is_like`)."""
        self._was_used = True
        self._operations.append((layer, what, operation))

    def clear(self) -> None:
        """Remove every operation, and count calls from 0 again."""
        self._operations.clear()
        self.calls.clear()

    def __repr__(self) -> str:
        count = len(self._operations)
        lines = [f"edit({type(self._model).__name__}): {count} operation{'s' * (count != 1)}"]
        return "\n".join(lines + [f"  {layer}  {what}" for layer, what, _ in self._operations])

    def __enter__(self) -> "Edit":
        """Install the hooks, reset the counts, and return the edit.

        Raises EditError, `edit.compiled` if a module of the model is compiled, `edit.entered` if the edit is active.
        """
        self._modules = dict(self._model.named_modules())
        for path, module in self._modules.items():
            if is_compiled(module):
                raise EditError(
                    "edit.compiled",
                    f"{path or 'the model'} is compiled, and what torch.compile has compiled cannot "
                    "be edited. Edit the model as it was before.",
                )
        if entering.is_entered(self):
            raise EditError("edit.entered", "this edit has been entered already.")
        use = self._prepared()
        if use is None:  # not by a `with`
            use = self._owned = entering.Use(Edit.__exit__, self)
        self._use = weakref.ref(use)
        self.attended.clear()
        self._begin()
        for _, _, operation in self._operations:
            operation.tally = Tally()
        try:
            entering.enter(use)
            installing.hold(self._modules.values())
        except BaseException:
            self._end()
            raise
        return self

    @entering.by_use
    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Uninstall the hooks; if the block raised nothing, raise or warn as `check_effects` and `warn_of_missing`."""
        try:
            self._end()
        except BaseException:
            self._end()  # finishes what an interrupt cut
            raise
        if error is None:
            self.check_effects()
            self.warn_of_missing([layer for layer, _, _ in self._operations], stacklevel=3)

    def _end(self) -> None:
        """Uninstall the hooks of this block, and forget the running modules."""
        installing.uninstall(self._use())
        self._owned = None
        self._running = threading.local()

    def _enter_module(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any] | None
    ) -> None:
        """Push a module on the stack of this thread, with its arguments by name or place; no-op for other models.

        The model then counts as run in this block. `named` of None is no keyword arguments.
        """
        path = self._paths.of(module)
        if path is not None:
            self._ran = True
            self._stack.append(Running(module, dict(enumerate(inputs)) | dict(named or {})))
            self._parts.enter(path, module)

    def _leave_module(self, module: nn.Module, output: object) -> None:
        """Pop a module from the stack of this thread, and those above it, which raised; no-op if it is not there."""
        stack = self._stack
        if any(each.module is module for each in reversed(stack)):
            # A module that raised before its hook ran is still on top.
            while stack.pop().module is not module:
                pass

    def _witness(self, kind: str, shape: tuple[int, ...]) -> None:
        """Note a call of softmax or FlexAttention in a module of the model, for `missing`."""
        path = self._paths.of(self._stack[-1].module) if self._stack else None
        if path is not None:
            self._parts.witness(path, self._stack[-1].module, kind, shape)

    @property
    def _stack(self) -> list[Running]:
        """The modules that run in this thread, the innermost last."""
        running = self._running.__dict__  # of this thread
        return running.setdefault("stack", [])

    def _operations_on(self, child: str | None) -> tuple[str, list[Operation]] | None:
        """Return the path of the attending module and its operations in this call.

        The module is the innermost that runs, or its attribute `child`. None if no module of the model runs, or if
        edits exist, but none for it; it is then counted. Sets the number of the call on each operation of the module.
        Raises EditError if a layer that is no glob matches two modules, or if one call is edited in a backward pass.
        """
        if not self._stack:
            return None
        module = self._stack[-1].module
        part = None if child is None else self._paths.of(getattr(module, child, None))
        path = part or self._paths.of(module) or ""
        found = [(layer, each) for layer, _, each in self._operations if is_like(path, layer)]
        for layer, _ in found:
            first = self._first.setdefault(layer, path)
            if first != path and not any(each in layer for each in GLOB):
                raise EditError(
                    "edit.layers",
                    f"a layer must be one module that attends, or a glob; {shown(layer)} has {shown(first)} "
                    f"and {shown(path)}.",
                )
        if found or not self._operations:
            # What a checkpoint runs again has no number among the calls.
            number, some = -1 if in_backward() else self.calls[path], [each for _, each in found]
            if number < 0 and any(each.call is not None for each in some):
                raise EditError(
                    "edit.checkpoint",
                    f"one call of {shown(path)} is edited, and which call a backward pass runs again is not known. "
                    "Run the model without gradient checkpointing.",
                )
            for each in some:
                each.number = number
            return path, [each for each in some if each.call in (None, number)]
        return self.note(path, None)

    def note(self, path: str, problem: Problem | None) -> None:
        """Count a call of a module, and its sizes; `problem` is None if no operation is for it. Returns None."""
        self.calls[path] += 1
        self.attended[path] = 0 if problem is None else problem.num_heads
        if problem is not None:
            self.sizes.add((problem.batch, problem.query_len))

    def check_effects(self) -> None:
        """Raise EditError if an operation could have no effect, and warn if it had none, when the block ends.

        Warns as well if no operation was added; never if `expects_changes` is False.
        """
        name, idle = type(self._model).__name__, []
        for layer, what, operation in self._operations:
            tally, known = operation.tally, ", ".join(map(shown, self.attended)) or "none"
            if self._ran and not any(is_like(path, layer) for path in self.attended):
                raise EditError(
                    "edit.layers",
                    f"{shown(layer)} of {name} is edited ({what}), and did not attend in a way that can be "
                    f"edited: {known} did. A model with a softmax of its own is edited once it attends "
                    'by PyTorch\'s function, such as with attn_implementation="sdpa".',
                )
            if not tally.calls:
                raise EditError(
                    "edit.not-run",
                    f"{shown(layer)} of {name} is edited ({what}), and did not run in the block after "
                    "that, or not so often. Add operations before the model runs, and run it inside the block.",
                )
            operation.check_done(shown(layer), name)
            if tally.counts(layer, what).queries == 0:
                idle.append(f"{what} of {shown(layer)}")
        text = (
            f"nothing in {name} was changed by {', '.join(idle)}: no query saw what was chosen, or it was there "
            "already."
            if idle
            else f"0 operations were added, so that {name} was not edited. An operation is a call, such as "
            "edit[0].heads[1].ablate()."
        )
        if self.expects_changes and (idle or not self._was_used):
            warnings.warn(f"[edit.no-effect] {text}", EditWarning, stacklevel=3)

    def warn_of_missing(self, layers: list[str], stacklevel: int) -> None:
        """Warn of parts that match these layers, attended and were not edited; raise EditError if strict."""
        found = [
            each for each in self.missing if any(is_like(each.path, layer) for layer in layers)
        ]
        if not found:
            return
        name, whole = type(self._model).__name__, "edit.missing"
        text = f"{name} attended in {places_that(found)} not edited:{listed(found, whole)}"
        if self._strict:
            raise EditError("edit.missing", text)
        warnings.warn(f"[edit.missing] {text}", EditWarning, stacklevel=stacklevel)

    def pattern(self, layer: object) -> str:
        """Return the path or the glob of a layer, from a number, a path, a unique part of a path, or a glob.

        Raises EditError, code `edit.layers`, for anything else.
        """
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
            holding = [path for path, _ in self._model.named_modules() if _holds(path, layer)]
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
    """Return True if a path is the layer, is inside it, or matches its glob."""
    return fnmatchcase(path, layer) or path.startswith(f"{layer}.")


def _holds(path: str, layer: str) -> bool:
    """Return True if consecutive parts of a path are those of `layer`: "a.b.c" has "b.c"."""
    return f".{layer}." in f".{path}."


def followed(model: nn.Module, *, strict: bool = False) -> Edit:
    """Return an `Edit`, to be entered, that only records the modules that attend; arguments and errors as of `edit`."""
    made = edit(model, strict=strict)
    made.expects_changes = False
    return made


@with_hints
def edit(model: nn.Module, *, strict: bool = False) -> Edit:
    """Edit the attention of a model while a block runs: what if this head could not look there?

    The model runs on its own kernel. Heads and queries that are not edited keep its numbers, bit for
    bit; those that are edited are computed by the kernel that `attend` takes. Every implementation
    that `watch` reads is edited, with gradients, in batches, and in generation with a KV cache,
    where positions continue from step to step. `watch` inside the block sees the edited calls. Outside
    of the block, or after an exception in it, the model is as it was. The edit belongs to the context
    that entered it, as `contextvars` has it: other threads run the model as it is.

    A gradient is taken inside the block, where checkpointing runs the model again.

    Args:
        model: any PyTorch model that is not compiled.
        strict: True raises an error if a part of a layer that is edited attended and cannot be
            edited; else that is an `EditWarning`. `Edit.missing` lists all such parts.

    Returns:
        An `Edit`; `edit[layer]` is a layer of it, with `ablate`, `hide`, `scale` and
        `patterns_from`, and `edit[layer].heads[…]` some heads of it, with the same. Its `report` counts
        what each operation changed; one that changed nothing is an `EditWarning` as well.

    Raises:
        ArgumentTypeError: codes `edit.model`, for something that is not a module, and `strict.type`.
        EditError: codes `edit.compiled` and `edit.entered` when the block begins; `edit.layers`,
            `edit.not-run`, `edit.no-token` and `edit.missing` when it ends, for an edit of a layer
            that did not attend, or not after the operation was added, of a token that was not there,
            and, with `strict`, of a layer that is edited in part; `edit.checkpoint` in a backward
            pass that attends again outside of any module; `edit.parallel` when some heads of a
            layer are edited whose heads are shared among ranks.

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
            "edit.model", f"model must be a torch.nn.Module; got {kind_of(model)}."
        )
    check_bool("strict", strict)
    return Edit(model, strict)
