"""The records of a watch, by the paths of the modules that attended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Literal, Self, TypeVar

from torch import Tensor

from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    SelectionError,
    ShapeError,
    WatchError,
)
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import Contexts
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.totals import Totals
from clearhead.watching.continuing import fingerprints
from clearhead.watching.finding import check_layers, path_of_layer
from clearhead.watching.missing import Missing
from clearhead.watching.module_calls import Accumulated, Call, Calls, Kept, Matrices


def without_numbers(problem: Problem) -> Problem:
    """Return the call with a query of width 0, fingerprints as key and value, and no bias, softcap or sinks.

    Key and value are (batch, 1, kv_len, 1), int64, one fingerprint of each key.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> bare = without_numbers(make_problem(*torch.zeros(3, 1, 2, 5, 4)))
        >>> bare.query.shape, bare.key.shape
        (torch.Size([1, 2, 5, 0]), torch.Size([1, 1, 5, 1]))
    """
    key = fingerprints(problem.key)[:, None, :, None]
    query = problem.query.detach()[..., :0]
    changes: dict[str, Any] = {"bias": None, "softcap": None, "sinks": None}
    return problem.replace(query=query, key=key, value=key, **changes)


class ContextCalls(Matrices[Contexts]):
    """The calls of one module, as contexts."""

    def add(self, call: Any, value: Tensor | None = None, **options: Any) -> Call:
        """Append a call as `without_numbers` leaves it, and return it as stored; its context is set later.

        `value` is ignored. `options` are those of `Matrices.add`.
        """
        return super().add(without_numbers(call), **options)

    def shown(self, matrix: AttentionMatrix) -> Contexts:
        """Return the contexts that a matrix carries.

        Raises:
            WatchError: code `watch.context`, for a call that raised.
        """
        if matrix.context is None:
            raise WatchError(
                "watch.context",
                "a call raised before it had a context, so that there is none to read.",
            )
        heads = None if matrix.heads is None else numbers_of_heads(matrix)
        return Contexts(matrix.context, matrix.kv_len, matrix.real, heads)


Keep = Literal["matrix", "gradients", "contexts", "summary", "total"]
Kind = Literal["matrix", "contexts", "summary", "total", "function"]

Texts = tuple[str, ...] | tuple[int, ...] | None

Part = TypeVar("Part")

KINDS: dict[str, Callable[[list[Any]], Calls[Any]]] = {
    "matrix": Matrices,
    "contexts": ContextCalls,
    "total": lambda others: Accumulated(),
}
"""Makes what has the calls of a module, from those of the modules before it, by what is kept of each."""


class KeptByPath(Mapping[str, Kept], Generic[Kept]):
    """The calls of every module, by its path or its number."""

    def __init__(self, model_name: str, keep: Kind) -> None:
        self._model_name = model_name
        self._keep = keep
        self._modules: dict[str, Calls[Any]] = {}
        self._runs = 0
        self._numbers: dict[str, int] = {}
        self.tokens: Texts = None
        """The tokens that were read, if they were saved; None otherwise."""
        self.source_tokens: Texts = None
        """The tokens of the keys in cross-attention, if they were saved; None otherwise."""
        self.missing: list[Missing] = []
        """The parts of the model that attended and were not seen."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the modules that attended, in order."""
        return tuple(self._modules)

    def calls(self, layer: str | int) -> tuple[Kept, ...]:
        """Return every call that a module made, in order.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.
        """
        return self._modules[self.path(layer)].all()

    def whole_and_call(self, path: str, number: int) -> list[Kept]:
        """Return the one object of a module, if its calls are parts of one, and then call `number`, if it is there.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.
        """
        module = self._modules[self.path(path)]
        one = [] if module.several() else [module.whole()]
        return [*one, *module.all()[number : number + 1]]

    def _paths(self, layers: Sequence[str | int] | None) -> list[str]:
        """Return the paths of these layers, or of all if `layers` is None.

        Raises:
            ArgumentTypeError: code `layers.list`.
            SelectionError: code `watch.layer`.
        """
        if layers is None:
            return list(self._modules)
        check_layers(layers)
        return [self.path(layer) for layer in layers]

    def parts(self, layers: Sequence[str | int] | None = None) -> list[tuple[str, Kept]]:
        """Return every module by its path, with its one matrix or summary, in the order of the record.

        Call by call, as "path, call 0", where its calls are not rows of one matrix.

        Args:
            layers: only these, by path or number; None for all.

        Raises:
            ArgumentTypeError: code `layers.list`, if `layers` is no list.
            SelectionError: code `watch.layer`, if no such module attended.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 3, 8)), layer(torch.randn(1, 5, 8))
            >>> [path for path, matrix in seen.parts()]
            [', call 0', ', call 1']
        """
        wanted = self._paths(layers)
        every = self._modules.items()
        return [
            pair for name, each in every if name in wanted for pair in named(name, each.parts())
        ]

    def apart(self, layers: Sequence[str | int] | None = None) -> list[tuple[str, list[Any]]]:
        """Return every layer by its path, with the list of its parts: its one matrix, or its calls.

        A module that attends several times in each run of the model, with as many queries and keys each time, as one
        that is several layers does, is as many: "path, call 0" and on.

        Args:
            layers: only these modules, by path or number; None for all.

        Raises:
            ArgumentTypeError: code `layers.list`, if `layers` is no list.
            SelectionError: code `watch.layer`, if no such module attended.

        Example:
            >>> import torch, clearhead as ch
            >>> shared = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
            >>> model = torch.nn.Sequential(shared, shared)
            >>> with ch.watch(model) as seen:
            ...     output = model(torch.randn(1, 3, 16))
            >>> [path for path, calls in seen.apart()]
            ['0.self_attn, call 0', '0.self_attn, call 1']
        """
        paths = self._paths(layers)
        return [p for name in paths for p in named(name, self._modules[name].layers(self._runs))]

    def numbering(self) -> dict[str, Any]:
        """Return what a file needs in addition to the results: runs, numbers of layers and parts; {} if nothing.

        These are the runs if a module is several layers, the numbers of the layers if some were left out, and the parts
        of the model that were not seen.
        """
        apart = any(name not in self._modules for name, _ in self.apart())
        numbers = list(self._by_number())
        said = {
            "runs": self._runs if apart else 0,
            "numbers": numbers if numbers != list(range(len(numbers))) else None,
            "missing": self.missing,
        }
        return {name: each for name, each in said.items() if each}

    def head_numbers(self, layer: str | int) -> tuple[int, ...]:
        """Return the number, within its layer, of each head that was kept.

        The numbers are not 0, 1, … after `watch(heads=)`, and where ranks share the heads of a layer.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=4)
            >>> with ch.watch(layer, heads=[1, 3]) as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> seen.head_numbers(0)
            (1, 3)
        """
        return numbers_of_heads(self._modules[self.path(layer)].all()[0])

    def merge(self, other: "KeptByPath[Totals]") -> Self:
        """Return the totals of two watches of one model with `keep="total"`, as of two parts of a data set.

        Args:
            other: of the same modules.

        Raises:
            ArgumentTypeError: code `merge.type`, for what is no such record.
            ShapeError: code `merge.shape`, for other modules or heads.
            ArgumentError: code `merge.fields`, as `Totals.merge` does.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, keep="total") as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> seen.merge(seen)[0]
            Totals [num_heads=2] of 6 queries
        """
        if not isinstance(other, KeptByPath) or self._keep != "total" or other._keep != "total":
            raise ArgumentTypeError(
                "merge.type", 'merge takes two records of watches with keep="total".'
            )
        if self.layers != other.layers:
            raise ShapeError(
                "merge.shape",
                f"both records must have the same modules; got {', '.join(map(repr, self.layers))} and "
                f"{', '.join(map(repr, other.layers))}.",
            )
        both = type(self)(self._model_name, "total")
        both._numbers = dict(self._numbers)
        both.missing = list(dict.fromkeys([*self.missing, *other.missing]))
        both._runs = self._runs + other._runs
        for record in (self, other):
            for name in self.layers:
                for place, each in enumerate(record.calls(name)):
                    both._add(name, each, place=place)
        return both

    def need_attention(self, verb: str, *, totals: bool = False) -> None:
        """Raise an ArgumentError for a record of contexts or results of a function, or, unless `totals`, of totals.

        Raises:
            ArgumentError: code `watch.results`; `verb` names the method in its message.
        """
        if self._keep in ("contexts", "function") or (self._keep == "total" and not totals):
            raise ArgumentError(
                "watch.results", f"{verb} needs matrices or summaries; keep= was {self._keep!r}."
            )

    def path(self, layer: str | int) -> str:
        """Return the path of a module, by its path or its number; −1 is the last of the record.

        Raises:
            SelectionError: code `watch.layer`, if no such module attended, or if it was not watched.
        """
        return path_of_layer(layer, self._by_number())

    def _by_number(self) -> dict[int, str]:
        """Return the path of each module by its number in the model; its place in the record if that is not known."""
        return {self._numbers.get(path, at): path for at, path in enumerate(self._modules)}

    def number(self, path: str) -> int:
        """Return the number in the model of a module that attended; its place in the record if that is not known."""
        return self._numbers.get(path, self.layers.index(path))

    def __getitem__(self, layer: str | int) -> Kept:
        """Return the record of a module, by its path or its number.

        Raises:
            SelectionError: codes `watch.layer`, if no such module attended, and `watch.several`, where its calls
                are not rows of one matrix.
        """
        module = self._modules[self.path(layer)]
        reason = module.several()
        if reason:
            raise SelectionError(
                "watch.several",
                f"{shown(layer)} attended {len(module.all())} times, and not as rows of one matrix, since "
                f"{reason}; calls({shown(layer)}) has them all, returned(sequences) the rows of a generation.",
            )
        return module.whole()

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, layer: object) -> bool:
        """Return True for the path of a module that attended; False for any number."""
        return layer in self._modules

    def _graphs(self) -> dict[str, Call]:
        """Return every call that was kept with its graph, by its path, or as "path, call 0" of several.

        {} if none was.
        """
        every = self._modules.items()
        return dict(pair for name, each in every for pair in named(name, each.graphs()))

    def _of(self, modules: dict[str, Any]) -> Self:
        """Return a copy of the record with these modules instead; everything else is shared."""
        some = copy(self)
        some._modules = modules
        return some

    def _add(self, name: str, *call: Any, **options: Any) -> Any:
        """Add a call to the calls of a module, made if there are none yet, and return the result of their `add`."""
        if name not in self._modules:
            # Contexts of a file are results: nothing tells how they are put together.
            is_result = isinstance(call[0], Contexts)
            kind = KINDS.get("" if is_result else self._keep, lambda others: Calls())
            self._modules[name] = kind(list(self._modules.values()))
        return self._modules[name].add(*call, **options)

    def _close(self, missing: Sequence[Missing] = ()) -> None:
        """Free the memory reserved for more calls, and set `missing` to the parts that were not seen."""
        self.missing = list(missing)
        for module in self._modules.values():
            module.close()


def named(name: str, parts: Sequence[Part]) -> list[tuple[str, Part]]:
    """Return the parts of a module with their names: its path for a single one, "path, call 0" and on for several."""
    if len(parts) == 1:
        return [(name, parts[0])]
    return [(f"{name}, call {number}", each) for number, each in enumerate(parts)]
