"""The context manager of a watch, which listens while the model runs and records its attention."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from clearhead._common.checks import check_bool, check_choice
from clearhead._common.elements import Drawn
from clearhead._common.torch_internals import is_transformed
from clearhead._text import readable
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentError, WatchError, WatchWarning
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.continuing import Continuations
from clearhead.watching.finding import ChosenLayers, read_heads
from clearhead.watching.hooks import installing, tap
from clearhead.watching.kept_by_path import Keep, Kind
from clearhead.watching.listening import enter_context, listen
from clearhead.watching.missing import Paths, Ran, listed, nothing_seen, places_that
from clearhead.watching.module_calls import Kept
from clearhead.watching.recording import (
    Copies,
    head_numbers,
    kept_heads,
    reduced,
    summarised,
    totalled,
    with_mean_of,
)
from clearhead.watching.seen import Seen
from clearhead.watching.token_ids import TokenIds

OF_ARGUMENTS = ("watch.heads", "watch.tokens", "watch.function")
"""The codes of arguments that do not fit the model; the call itself is as it should be."""


Threads = Literal["own", "all"]

Layers = str | int | Sequence[str | int]


class WatchOptions(TypedDict, total=False):
    """The options of `watch` other than `keep`."""

    layers: Layers | None
    heads: Sequence[int] | None
    tokens: Tensor | None
    strict: bool
    source_tokens: Tensor | None
    values: bool
    contexts: bool
    threads: Threads


class Watch(Drawn, Generic[Kept]):
    """The context manager that `watch` returns.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> watching = ch.watch(model, heads=[1])
        >>> watching
        watch(TransformerEncoderLayer, keep='matrix'), heads [1]
    """

    def __init__(
        self,
        model: nn.Module,
        keep: Keep | Callable[[str, AttentionMatrix], Any],
        options: WatchOptions,
    ) -> None:
        """Check and store the arguments of `watch`; errors as there."""
        self._model, self._keep = model, keep
        self._kind: Kind = (
            "function" if callable(keep) else "matrix" if keep == "gradients" else keep
        )
        values, contexts = options.get("values", False), options.get("contexts", False)
        check_bool("values", values)
        check_bool("contexts", contexts)
        check_choice("threads", threads := options.get("threads", "own"), Threads)
        self._layers = ChosenLayers(options.get("layers"))
        self._heads = read_heads(options.get("heads"))
        self._tokens = options.get("tokens"), options.get("source_tokens")
        has_tokens = any(each is not None for each in self._tokens)
        if has_tokens and keep not in ("summary", "total"):
            raise ArgumentError("tokens.keep", 'tokens go with keep="summary" or keep="total".')
        if values and keep in ("contexts", "summary", "total"):
            raise ArgumentError("values.keep", f"values go with matrices; {keep!r} holds none.")
        if contexts and self._kind in ("summary", "function"):
            raise ArgumentError("contexts.keep", 'contexts go with keep="matrix" or keep="total".')
        TokenIds(model, *self._tokens)  # checks the ids
        self._strict = options.get("strict", False)
        self._given = [name for name in ("values", "contexts") if options.get(name)]
        self._values, self._contexts = values or keep == "gradients", contexts or keep == "contexts"
        self.every_thread = threads == "all"
        self.has_graphs = keep == "gradients" or callable(keep)
        self.entry: object = None

    def _begin(self) -> None:
        """Reset what a block needs, and set `seen` to an empty record."""
        model = self._model
        self._lock = threading.RLock()  # a context may be handed on while its call is recorded
        self._modules = dict(model.named_modules())
        self._paths, self._parts = Paths(self._modules), Ran(model, self._modules)
        self._ids = TokenIds(model, *self._tokens)
        self._ran = self._running = False
        self._trouble: Exception | None = None
        self._attended: dict[str, int] = {}
        self._in_run = Counter[str]()
        self._places: dict[str, int] = {}
        self._copies, self._links = Copies(graphs=self.has_graphs), Continuations()
        self.seen: Seen[Kept] = Seen(type(model).__name__, self._kind)

    def __repr__(self) -> str:
        keep = "function" if callable(self._keep) else self._keep
        more = "".join(f", {name}=True" for name in self._given)
        heads = "" if self._heads is None else f", heads {list(self._heads)}"
        name = type(self._model).__name__
        return readable(f"watch({name}, keep={keep!r}{more}){self._layers}{heads}")

    def __enter__(self) -> Seen[Kept]:
        """Install the hooks and return an empty record, which is filled while the model runs.

        Raises WatchError, code `watch.entered`, if the watch is entered already.
        """
        if any(each is self for each in installing.users()):
            raise WatchError(
                "watch.entered",
                "a watch must be left before it is entered again; this one is still entered. Nested "
                "blocks take a watch each.",
            )
        try:
            self._begin()
            if self._values or self._contexts:
                tap.value_readers.add(self)
            installing.install(self, listen)
            enter_context(self)
            installing.hold(self._modules.values())
        except BaseException:
            tap.value_readers.discard(self)
            installing.uninstall(self)
            raise
        return self.seen

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Uninstall the hooks and complete the record; after a block without an error, raise as `_raise_trouble`."""
        try:
            tap.value_readers.discard(self)
            installing.uninstall(self)
        except BaseException:
            installing.uninstall(self)  # finishes what an interrupt cut
            raise
        with self._lock:
            self._copies.clear()
            count = len(self._attended)
            for place, name in enumerate(self._attended):
                if not self._layers.has(
                    name, place, count
                ):  # a number from the end was not known before
                    self.seen._modules.pop(name, None)
            # What was not seen has no number, and those behind it would have others.
            missing = self._parts.missing(self._attended)
            every = bool(self._layers.numbers)
            self.seen._close([each for each in missing if every or self._layers.has(each.path)])
        if error is None:
            self._raise_trouble()

    def path_of(self, stack: list[nn.Module], child: str | None) -> str | None:
        """Return the path of the innermost running module of this model, or of the child whose work it does.

        None if none in `stack`, the innermost last, is of this model.
        """
        found = self._paths.innermost(stack)
        if found is None:
            return None
        part = None if child is None else self._paths.of(getattr(found[0], child, None))
        return found[1] if part is None else part

    def record(self, name: str, read: tap.Read, gives: tap.Gives) -> tap.Change | None:
        """Add a call that a module makes to the record.

        Return a function that takes its context, or None if none is needed. Calls of compiled parts and of layers that
        were not requested are not kept. A failure is stored, and raised when the block ends: until then the model runs
        as if it was not watched.
        """
        with self._lock:
            if name in self._parts.holding:
                return None  # it is listed as missing
            self._attended[name] = self._attended.get(name, 0) + 1
            place = self._places.setdefault(name, len(self._places))
            if not self._layers.has(name, place):
                return None
            self.seen._numbers[name] = place
            try:
                problem = read()
                if is_transformed(problem.query):
                    raise WatchError(
                        "watch.transformed", "it ran inside a transformation such as torch.vmap."
                    )
                # Gradient checkpointing counts what a module saves; the run in the backward pass is not recorded.
                hooks = saved_tensors_hooks(lambda saved: saved, lambda saved: saved)
                with hooks if self.has_graphs else nullcontext():
                    problem = self._ids.with_ended(self._copies.of_call(problem, name))
                    return self._kept(name, problem, gives)
            except Exception as error:
                self._trouble = self._trouble or error
            return None

    def _kept(self, name: str, problem: Problem, gives: tap.Gives) -> tap.Change | None:
        """Add a call to the record; return a function that takes its context, None if none is needed.

        Totals with contexts are added when that function is called. Raises what the record of the call raises.
        """
        every, heads = problem, self._heads
        link = self._links.of(name, problem, problem.value if self._values else None)
        tokens, first = self._ids.of(problem, name, link), None
        if self._keep in ("summary", "total"):
            first = self._ids.first_of(problem, name, self._links.prints.get(name))
        if heads is not None:
            heads = head_numbers(heads, problem.num_heads, name)
            problem = kept_heads(problem, heads, name)
        value = problem.value if self._values else None
        if callable(self._keep):
            self.seen._add(name, reduced(problem, value, name, self._keep, tokens))
        elif self._keep == "summary":
            self.seen._add(name, summarised(problem, tokens, first))
        elif self._keep == "total":
            place = self._in_run[name] if self._running else 0
            self._in_run[name] += 1
            totals = totalled(problem, tokens, first)

            def add(context: Any = None) -> Any:
                """Add the totals of the call, with the mean of its context if given; return the context."""
                with torch.inference_mode(False), self._lock:
                    mean = context is not None
                    whole = with_mean_of(context, totals, problem, heads) if mean else totals
                    self.seen._add(name, whole, place=place)
                return context

            if self._contexts:
                return self._handing_on(gives, every, add)
            add()
        else:
            graph = self.has_graphs
            call = self.seen._add(name, problem, value, graph=graph, tokens=tokens, link=link)
            call.heads = heads
            take = call.take if graph and not gives.ablated else None
            return self._handing_on(gives, every, call.hand_on, take) if self._contexts else take
        return None

    def _handing_on(
        self,
        gives: tap.Gives,
        problem: Problem,
        hand_on: tap.Change,
        take: tap.Change | None = None,
    ) -> tap.Change | None:
        """Return a function that takes the context to `take`, if there is one, and then to `hand_on`.

        Where no context is available, it is computed and given to `hand_on` at once, and `take`, or None, is returned.
        """
        if gives.context:
            return hand_on if take is None else lambda context: hand_on(take(context))
        hand_on(run(problem.replace(dropout=None)))
        return take

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """Note a module that starts to run, its arguments and ids; the model itself begins a run.

        No-op for other models.
        """
        name = self._paths.of(module)
        if name is None:
            return
        if module is self._model:
            self._ran = self._running = True
            self.seen._runs += 1
            self._in_run.clear()
            self._ids.forget()
        self._parts.enter(name, module, inputs)
        self._ids.read(module, inputs)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Note a module that has run, with its output.

        When it is the model, the run ends and its last ids are forgotten.
        """
        self._parts.left(self._paths.of(module), output)
        if module is self._model:
            self._running = False
            self._ids.forget()

    def witness(self, stack: list[nn.Module], kind: str, shape: tuple[int, ...]) -> None:
        """Note attention that cannot be read in the innermost module of this model in `stack`; there must be one.

        `kind` is "softmax" or "flex_attention"; `shape` is that of the scores.
        """
        found = self._paths.innermost(stack)
        assert found is not None  # else it would not be told
        self._parts.witness(found[1], found[0], kind, shape)

    def _raise_trouble(self) -> None:
        """Raise the WatchError of a call that could not be read, or of a block in which nothing was seen.

        Also for requested layers that no module has, and for parts not seen if strict; else a WatchWarning lists these.
        """
        trouble = self._trouble
        if isinstance(trouble, WatchError) and trouble.code in OF_ARGUMENTS:
            raise trouble
        if trouble is not None:
            raise WatchError(
                "watch.unreadable", f"a call of attention could not be read: {trouble}"
            ) from trouble
        name = type(self._model).__name__
        if not self._attended:
            raise nothing_seen(name, self.seen.missing, ran=self._ran)
        self._layers.check(name, self._attended)
        missing = self.seen.missing
        if not missing:
            return
        text = f"{name} attended in {places_that(missing)} not seen:{listed(missing)}"
        if self._strict:
            raise WatchError("watch.missing", text)
        warnings.warn(f"[watch.missing] {text}", WatchWarning, stacklevel=3)
