"""The attention of a running model, without changing its kernel or its output.

While a model is watched, the functions that PyTorch attends by are monkeypatched with ones that
read the call and then run the original with the same arguments; `hooks` has a file for each. The
running module is known from hooks on all modules at once; hooks on the modules of the model itself
would turn PyTorch's fast paths off, and so change the result.
"""

import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Generic, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from clearhead._common.checks import as_ints, check_sizes
from clearhead._common.torch_internals import is_transformed
from clearhead.errors import ArgumentError, ArgumentTypeError, WatchError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary
from clearhead.watching.calls import Kept
from clearhead.watching.estimate import Estimate, estimated, sizes_of
from clearhead.watching.hooks import installing, tap
from clearhead.watching.recording import Copies, of_heads, summarised
from clearhead.watching.seen import Keep, Seen
from clearhead.watching.token_ids import TokenIds

_lock = threading.Lock()
_active: list["Watch[Any]"] = []
_restorers: list[Callable[[], None]] = []
_running = threading.local()


class Watch(Generic[Kept]):
    """The context manager that `watch` returns.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> watching = ch.watch(model, heads=[1])
        >>> watching
        watch(TransformerEncoderLayer): query and key of each call, heads [1]
        >>> print(watching.estimate(batch=1, query_len=1000))
        1 layer × 1 head, 1000 tokens: 64.0 kB with keep='matrix' (the matrices would take 4.0 MB)
    """

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[str, ...] | None,
        heads: tuple[int, ...] | None,
        keep: Keep,
        ids: TokenIds,
    ) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._layers = layers
        self._heads = heads
        self._keep: Keep = keep
        self._ids = ids
        self._ran = False
        self._trouble: Exception | None = None
        self._attended: dict[str, None] = {}
        self._copies = Copies()
        self._lock = threading.Lock()
        self.seen: Seen[Kept] = Seen(type(model).__name__, keep)

    def estimate(self, batch: int, query_len: int, kv_len: int | None = None) -> Estimate:
        """Return the memory that watching one run of the model would keep, in bytes.

        It is read from the sizes of the layers of this package and of nn.MultiheadAttention, or
        from the `config` of a model of transformers. Every module is taken to attend once, with
        these lengths.

        Args:
            batch: samples.
            query_len: tokens that attend.
            kv_len: tokens that are attended to; None is query_len.

        Raises:
            ArgumentError: code `argument.size`, for a size below 1.
            ArgumentTypeError: code `argument.type`, for what is no whole number.
            WatchError: codes `watch.sizes`, if sizes cannot be read, and `watch.heads`, for a head
                that a module does not have.

        Example:
            >>> import torch, clearhead as ch
            >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
            >>> print(ch.watch(model, keep="summary").estimate(batch=1, query_len=3000))
            2 layers × 2 heads, 3000 tokens: ... (the matrices would take 144.0 MB)
        """
        kv_len = query_len if kv_len is None else kv_len
        check_sizes(batch=batch, query_len=query_len, kv_len=kv_len)
        known = sizes_of(self._model, None if self._layers is None else self._chosen)
        return estimated(known, self._heads, self._keep, (batch, query_len, kv_len))

    def __repr__(self) -> str:
        kept = "query and key" if self._keep == "matrix" else "a summary"
        of = "" if self._layers is None else f" of {', '.join(map(repr, self._layers))}"
        heads = "" if self._heads is None else f", heads {list(self._heads)}"
        return f"watch({type(self._model).__name__}): {kept} of each call{of}{heads}"

    def __enter__(self) -> Seen[Kept]:
        with _lock:
            _active.append(self)
            if len(_active) == 1:
                _install()
        return self.seen

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with _lock:
            _active.remove(self)
            if not _active:
                _uninstall()
        with self._lock:
            self._copies.clear()
            self.seen._close()
        if error is None:
            self._raise_trouble()

    def path_of(self, stack: list[nn.Module], child: str | None) -> str | None:
        """Return the path of the innermost running module of this model, or of the child that it
        does the work of; None if none is running."""
        for module in reversed(stack):
            if id(module) in self._names:
                part = None if child is None else getattr(module, child, None)
                return self._names[id(module) if id(part) not in self._names else id(part)]
        return None

    def record(self, name: str, read: tap.Read) -> None:
        """Keep a call that a module makes. A failure is raised when the block ends: until then the
        model goes on as if it was not watched."""
        with self._lock:
            self._attended[name] = None
            if not self._chosen(name):
                return
            try:
                problem = read()
                if is_transformed(problem.query):
                    raise WatchError(
                        "watch.transformed", "it ran inside a transformation such as torch.vmap."
                    )
                tokens = self._ids.of(problem, name) if self._keep == "summary" else None
                problem = self._copies.of(problem)
                if self._heads is not None:
                    problem = of_heads(problem, self._heads, name)
                matrix = self._keep == "matrix"
                self.seen._add(name, problem if matrix else summarised(problem, tokens))
            except Exception as error:
                self._trouble = self._trouble or error

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """Follow a module that begins to run."""
        if module is self._model:
            self._ran = True
            self._ids.forget()
        self._ids.read(module, inputs)

    def leave(self, module: nn.Module) -> None:
        """Follow a module that has run."""
        if module is self._model:
            self._ids.forget()

    def _chosen(self, name: str) -> bool:
        return self._layers is None or any(fnmatchcase(name, each) for each in self._layers)

    def _raise_trouble(self) -> None:
        trouble = self._trouble
        # The arguments do not fit the model; the call itself is as it should be.
        if isinstance(trouble, WatchError) and trouble.code in ("watch.heads", "watch.tokens"):
            raise trouble
        if trouble is not None:
            raise WatchError(
                "watch.unreadable", f"a call of attention could not be read: {trouble}"
            ) from trouble
        name = type(self._model).__name__
        if not self._attended:
            self._raise_nothing_seen(name)
        for pattern in self._layers or ():
            if not any(fnmatchcase(path, pattern) for path in self._attended):
                known = ", ".join(map(repr, self._attended))
                raise WatchError(
                    "watch.layers",
                    f"no module of {name} that attended has a path like {pattern!r}; these "
                    f"attended: {known}.",
                )

    def _raise_nothing_seen(self, name: str) -> None:
        if not self._ran:
            raise WatchError(
                "watch.not-run",
                f"{name} was not called while it was watched, so nothing was seen. Code that "
                "torch.compile has compiled is not seen either.",
            )
        raise WatchError(
            "watch.nothing-seen",
            f"{name} ran without a call of attention that can be seen: of\n"
            "torch.nn.functional.scaled_dot_product_attention, nn.MultiheadAttention, clearhead, or the\n"
            "attention interface of transformers.\n"
            "  - a model with code of its own for the softmax of the scores is not seen\n"
            "  - code that torch.compile has compiled is not seen",
        )


@overload
def watch(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    keep: Literal["matrix"] = "matrix",
    tokens: Tensor | None = None,
) -> Watch[AttentionMatrix]: ...
@overload
def watch(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    *,
    keep: Literal["summary"],
    tokens: Tensor | None = None,
) -> Watch[Summary]: ...
def watch(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    keep: Keep = "matrix",
    tokens: Tensor | None = None,
) -> Watch[Any]:
    """Record every call of attention that a model makes, in whichever way PyTorch has for it.

    The model runs on its own kernel and gives its own output, bit for bit. Query and key of each
    call are kept (O(tokens) memory); weights are computed where they are indexed. A call is seen of
    PyTorch's function of attention, of nn.MultiheadAttention in all of its ways, the fast path of
    nn.TransformerEncoder included, of the models of transformers whatever their
    attn_implementation, and of the layers of clearhead. Weights are those before dropout.

    Args:
        model: any PyTorch model.
        layers: only modules whose path is like this glob, such as "encoder.layer.[0-3].*", or like
            one of several; None is all.
        heads: only these query heads, with the key heads that they use; None is all.
        keep: "matrix" keeps query and key. "summary" keeps neither: each call is turned into a
            `Summary` before it runs, with the 8 largest weights of each query, a map of up to
            64 × 64, and the roles of the heads.
        tokens: ids of the tokens, int64 (batch, len) or (len,), for the roles that need them; they
            begin with the first key. None takes those that the model's input embedding reads, if
            it has the method `get_input_embeddings` and reads one sequence.

    Returns:
        A context manager; entering it gives a `Seen`, which maps the paths of modules to their
        `AttentionMatrix` or `Summary`.

    Raises:
        ArgumentTypeError: codes `watch.model`, for something that is not a module, `layers.type`,
            `heads.type`, `tokens.type`.
        ArgumentError: codes `layers.value`, `heads.value`, `keep.value` and `tokens.keep`.
        ShapeError: code `tokens.shape`.
        WatchError: when the block ends, codes `watch.not-run` if the model was not called,
            `watch.nothing-seen` if it attends by another route, `watch.layers` if no module that
            attended is like one of the layers, `watch.heads` if one has no such head,
            `watch.tokens` if one attends to more than the tokens.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 16))
        >>> seen.layers
        ('self_attn',)
        >>> seen["self_attn"].shape
        torch.Size([1, 2, 5, 5])
        >>> with ch.watch(layer, layers="self_*", heads=[1], keep="summary") as seen:
        ...     output = layer(torch.randn(1, 5, 16))
        >>> seen["self_attn"]
        Summary [batch=1, num_heads=1, query_len=5, kv_len=5] with top_k, pooled, roles
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "watch.model", f"model must be a torch.nn.Module; got {type(model).__name__}."
        )
    if keep not in ("matrix", "summary"):
        raise ArgumentError("keep.value", f'keep must be "matrix" or "summary"; got {keep!r}.')
    if tokens is not None and keep == "matrix":
        raise ArgumentError(
            "tokens.keep",
            'tokens are for the roles in a summary; they go with keep="summary".',
        )
    return Watch(model, _globs(layers), _heads(heads), keep, TokenIds(model, tokens))


def _globs(given: object) -> tuple[str, ...] | None:
    if given is None:
        return None
    globs = [given] if isinstance(given, str) else given
    if not isinstance(globs, Sequence) or not all(isinstance(each, str) for each in globs):
        raise ArgumentTypeError(
            "layers.type",
            'layers must be a glob of paths such as "encoder.*", a list of them, or None for all; '
            f"got {given!r}.",
        )
    if not globs:
        raise ArgumentError("layers.value", "layers must hold a glob, or be None for all; got [].")
    return tuple(globs)


def _heads(given: object) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ArgumentTypeError(
            "heads.type",
            f"heads must be a list of numbers of heads, or None for all; got {given!r}.",
        )
    numbers = as_ints(given)
    if numbers is None:
        raise ArgumentTypeError("heads.type", f"heads must hold whole numbers; got {given!r}.")
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ArgumentError(
            "heads.value",
            f"heads must be different numbers, 0 or more, at least one; got {list(numbers)}.",
        )
    return numbers


def _stack() -> list[nn.Module]:
    if not hasattr(_running, "stack"):
        _running.stack = []
    return _running.stack


def _enter_module(module: nn.Module, inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _stack().append(module)
    for each in _active:
        each.enter(module, inputs)


def _leave_module(module: nn.Module, inputs: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    stack = _stack()
    # A module that raised before its hook ran is still on top.
    while stack and stack.pop() is not module:
        pass
    for each in _active:
        each.leave(module)


def _record(read: tap.Read, child: str | None) -> None:
    stack = _stack()
    # Read once for every watch; the guard is for what the reading and the summary call.
    read_once = cache(read)
    with tap.guard(), torch.no_grad():
        for each in list(_active):
            name = each.path_of(stack, child)
            if name is not None:
                each.record(name, read_once)


def _install() -> None:
    _stack().clear()
    tap.observers.append(_record)
    _restorers.append(lambda: tap.observers.remove(_record))
    _restorers.append(register_module_forward_pre_hook(_enter_module).remove)
    _restorers.append(register_module_forward_hook(_leave_module, always_call=True).remove)
    _restorers.append(installing.install())


def _uninstall() -> None:
    while _restorers:
        _restorers.pop()()
