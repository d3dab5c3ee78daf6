"""The operations on a layer, or on some of its heads, as methods."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from clearhead._common.checks import check_head_numbers, check_number, check_tensor
from clearhead._common.foreign_names import Answering
from clearhead._text import kind_of, shown
from clearhead.editing.context_operations import Find, OfContext
from clearhead.editing.edited_call import Hide, Patterns, Restrict, ScaleKeys
from clearhead.editing.operation import Operation, heads_text, selection
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError
from clearhead.masks.base import Mask
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import Contexts
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.totals import Totals
from clearhead.watching.seen import Seen

Add = Callable[[str, Operation], None]
"""Takes an operation on the layer, and what it is in a few words."""

Positions = int | slice | Sequence[int] | Tensor | None

Means = Seen[Any] | Contexts | Totals | Tensor
"""Whatever a mean of the contexts of heads is read from."""

MEAN = (
    'a tensor (heads, value_head_dim), or what watch has seen with contexts: keep="total" and contexts=True, or '
    'keep="contexts"'
)
OTHER = (
    'what watch has seen with keep="contexts" or contexts=True, the Contexts of a layer, or a tensor (batch or 1, '
    "heads, positions, value_head_dim)"
)
VECTOR = "a tensor (heads, value_head_dim) or (value_head_dim,)"


@dataclass(frozen=True, eq=False, repr=False)
class LayerEdit(Answering):
    """A layer of a model, or some of its heads, to edit: `edit[layer]`, `edit[layer].heads[3, 5]`."""

    _add_operation: Add
    _heads: tuple[int, ...] | slice = field(default_factory=lambda: slice(None))
    _call: int | None = None

    @property
    def heads(self) -> "HeadPicker":
        """The heads, to be indexed: `heads[3]`, `heads[3, 5]`, `heads[2:5]`, `heads[-1]`."""
        return HeadPicker(self._add_operation, self._call)

    def call(self, number: int) -> "LayerEdit":
        """Return an edit of one call of the module: a step, a refinement, or one layer of those that share it.

        Args:
            number: of the call in the block, from 0, as in `Seen.calls`.

        Raises:
            ArgumentTypeError: code `call.type`.
            ArgumentError: code `call.value`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
            >>> with torch.no_grad(), ch.edit(layer) as edit:
            ...     edit[0].call(1).heads[0].ablate()
            ...     outputs = layer(x), layer(x), layer(x)
            >>> outputs[0].equal(outputs[1]), outputs[0].equal(outputs[2])
            (False, True)
        """
        chosen = check_number("call", number, "0 or more", lambda x: x >= 0 == x % 1)
        return LayerEdit(self._add_operation, self._heads, int(chosen))

    def ablate(self, mean: Means | None = None, *, query: Positions = None) -> None:
        """Set the context of the heads to 0, or to a mean.

        Args:
            mean: (heads, value_head_dim), or (value_head_dim,) for all, or (heads, positions, value_head_dim) for each
                position of the text; or what `watch` has seen of a data set, with keep="total" and contexts=True, or
                with contexts: the mean of all real queries.
            query: the queries whose context it is, as in `hide`; None for all.

        Raises:
            ArgumentTypeError: codes `mean.type` and `edit.selection`.
            ArgumentError: code `edit.position`.
            EditError: when the layer runs, codes `edit.heads`, `edit.context`, `edit.positions` and
                `edit.batch`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
            >>> with ch.edit(layer) as edit:
            ...     edit[0].ablate()
            ...     bool((layer(x) == layer.output_projection.bias).all())
            True
        """
        find = None if mean is None else contexts_of("mean", mean, MEAN, (1, 2, 3))
        at_once = not isinstance(mean, Tensor) or mean.ndim < 3
        chosen = selection("query", query)
        self._add("ablate", OfContext(self._heads, chosen, find, None, at_once, True))

    def replace(self, other: Seen[Any] | Contexts | Tensor, *, query: Positions = None) -> None:
        """Replace the context of the heads, z = weights · values, by that of another run: activation patching.

        See Vig et al. (2020, https://arxiv.org/abs/2004.12265).

        Each query gets the context of its position in the text, padding included, also while the text grows by a KV
        cache.

        Args:
            other: what `watch(model, keep="contexts")` or `contexts=True` has seen of the same model, the `Contexts` of
                one layer, or a tensor (batch or 1, heads, positions, value_head_dim) of just these heads, which
                gradients go back to.
            query: the queries whose context it is, as in `hide`; None for all, of texts that are as long.

        Raises:
            ArgumentTypeError: codes `edit.other` and `edit.selection`.
            ArgumentError: code `edit.position`.
            EditError: when the layer runs or the block ends, codes `edit.context` for other sizes, `edit.heads`,
                `edit.positions` and `edit.batch`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(2, 1, 3, 8)
            >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as clean:
            ...     output = layer(x[0])
            >>> with torch.no_grad(), ch.edit(layer) as edit:
            ...     edit[0].replace(clean)
            ...     bool((layer(x[1]) == output).all())
            True
        """
        find = contexts_of("other", other, OTHER, (4,))
        self._add("replace", OfContext(self._heads, selection("query", query), find))

    def add(
        self,
        vector: Tensor,
        *,
        scale: float = 1.0,
        query: Positions = None,
    ) -> None:
        """Add a vector to the context of the heads: steering (Li et al., 2023, https://arxiv.org/abs/2306.03341).

        Args:
            vector: (value_head_dim,) for all heads, or (heads, value_head_dim); gradients go back to it.
            scale: times the vector.
            query: the queries whose context it is, as in `hide`; None for all.

        Raises:
            ArgumentTypeError: codes `vector.type`, `scale.type` and `edit.selection`.
            ArgumentError: codes `scale.value` and `edit.position`.
            EditError: when the layer runs or the block ends, codes `edit.context`, `edit.heads`, `edit.positions`
                and `edit.batch`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
            >>> with torch.no_grad(), ch.edit(layer) as edit, ch.watch(layer, keep="contexts") as seen:
            ...     edit[0].heads[1].ablate()
            ...     edit[0].heads[1].add(torch.ones(4), scale=2.0, query=-1)
            ...     output = layer(x)
            >>> seen[0].context[0, 1].amax(dim=-1)
            tensor([0., 0., 2.])
        """
        check_tensor("vector", vector)
        find = contexts_of("vector", vector, VECTOR, (1, 2))
        factor = check_number("scale", scale, "a finite number", math.isfinite)
        self._add(
            "add", OfContext(self._heads, selection("query", query), find, factor, everywhere=True)
        )

    def hide(
        self, query: Positions = None, key: Positions = None, *, mask: Mask | None = None
    ) -> None:
        """Hide keys from queries: attention knockout (Geva et al., 2023, https://arxiv.org/abs/2304.14767).

        The weights of the other keys are normalised again; a query that sees nothing more gets
        zeros. Positions are counted from the beginning of the sequence, padding included, also
        while it grows by a KV cache; next to a cache of clearhead, real tokens. Negative ones count
        from the end as it is then, the last real token of each row: in a generation `query=-1` is
        the token of each step.

        Args:
            query: a position, positions, a slice, or a bool tensor (len,) or (batch, len), True at
                what is chosen; None for all.
            key: the keys, in the same form; every chosen key is hidden from every chosen query.
            mask: hides what it does not show (True = may attend, as everywhere), instead of query
                and key.

        Raises:
            ArgumentTypeError: codes `edit.selection` and `mask.type`.
            ArgumentError: codes `edit.position`, for a slice that goes backwards, and `edit.hide`.
            EditError: when the layer runs, codes `edit.heads`, `edit.batch` and `edit.positions`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 4, 8)
            >>> with ch.edit(layer) as edit, ch.watch(layer) as seen:
            ...     edit[0].hide(query=slice(2, None), key=0)
            ...     output = layer(x)
            >>> (seen[0][0, 0, :, 0] > 0).tolist()
            [True, True, False, False]
        """
        if mask is not None:
            if not isinstance(mask, Mask):
                raise ArgumentTypeError(
                    "mask.type", f"mask must be a Mask, or None; got {kind_of(mask)}."
                )
            if query is not None or key is not None:
                raise ArgumentError("edit.hide", "give query= and key=, or mask=; got both.")
            self._add(f"hide(mask={mask.describe()})", Restrict(self._heads, mask))
            return
        queries, keys = selection("query", query), selection("key", key)
        if queries is None and keys is None:
            raise ArgumentError("edit.hide", "hide needs query=, key= or mask=; got none of them.")
        self._add("hide", Hide(self._heads, queries, keys))

    def scale(self, key: Positions = None, *, by: float) -> None:
        """Multiply the weights of some keys, and normalise all again.

        It adds log(by) to their scores, so that 0.5 halves them next to the others.

        Args:
            key: as in `hide`.
            by: above 0; `hide` is for 0.

        Raises:
            ArgumentTypeError: codes `by.type` and `edit.selection`.
            ArgumentError: codes `by.value` and `edit.position`.
            EditError: when the layer runs, codes `edit.heads` and `edit.batch`.
        """
        factor = check_number(
            "by", by, "a finite number above 0; hide(key=…) is for 0", lambda x: 0 < x < math.inf
        )
        self._add(
            f"scale(by={by})", ScaleKeys(self._heads, selection("key", key), math.log(factor))
        )

    def patterns_from(self, other: Seen[AttentionMatrix] | AttentionMatrix) -> None:
        """Use the weights of another run with the values of this one.

        Args:
            other: what `watch` has seen of the same model on a text of the same length, or a matrix. Where the module
                attends several times, as in the steps of a diffusion, each call gets the weights of the call of
                the same number.

        Raises:
            ArgumentTypeError: code `edit.other`.
            EditError: when the layer runs, codes `edit.heads`, `edit.patterns` for other sizes and
                `edit.conflict` next to hide or scale of the same head.
        """
        if isinstance(other, AttentionMatrix):
            find = lambda path, number: [other]  # noqa: E731
        elif isinstance(other, Seen) and other._keep == "matrix":
            find = other.whole_and_call
        else:
            raise ArgumentTypeError(
                "edit.other",
                'other must be what watch has seen with keep="matrix", or an AttentionMatrix; got '
                f"{type(other).__name__}.",
            )
        self._add("patterns_from", Patterns(self._heads, find))

    def _add(self, what: str, operation: Operation) -> None:
        """Add an operation, for the chosen call, under a name that starts with call and heads unless it is for all."""
        heads, operation.call = operation.heads, self._call
        if heads != slice(None):
            what = f"{heads_text(heads)}.{what}"
        if self._call is not None:
            what = f"call({self._call}).{what}"
        self._add_operation(what, operation)


@dataclass(frozen=True, eq=False, repr=False)
class HeadPicker(Answering):
    """The heads of a layer, to be indexed."""

    _add_operation: Add
    _call: int | None = None

    def __getitem__(self, heads: int | slice | Sequence[int]) -> LayerEdit:
        """Return an edit of the indexed heads.

        Raises:
            ArgumentTypeError: code `heads.type`, for what is no number of a head, or no slice of numbers.
            ArgumentError: code `heads.value`, for a number twice, and for none.
        """
        if isinstance(heads, slice):
            try:
                range(0)[heads]
            except (TypeError, ValueError) as error:
                raise ArgumentTypeError(
                    "heads.type", f"heads must be whole numbers; got {shown(heads)}."
                ) from error
            return LayerEdit(self._add_operation, heads, self._call)
        given = heads if isinstance(heads, Sequence) else [heads]
        return LayerEdit(self._add_operation, check_head_numbers(given, from_end=True), self._call)


def contexts_of(name: str, given: object, expected: str, dims: tuple[int, ...]) -> Find:
    """Return a function that finds the contexts of a module, by its path, the numbers of its heads, and the call.

    They come from a record, from the contexts of one layer, or from a tensor of just the heads that are edited.

    Args:
        name: of the argument; of "mean" it is their mean.
        given: its value.
        expected: what it must be, in words.
        dims: how many dimensions a tensor may have, of (batch, heads, positions, value_head_dim), (heads, positions,
            value_head_dim), (heads, value_head_dim) and (value_head_dim,).

    Raises:
        ArgumentTypeError: codes `edit.other`, `mean.type` and `vector.type`.
        EditError: code `edit.context`, when the function is called for a call that a record does not have.
    """
    is_mean = name == "mean"
    if isinstance(given, Tensor) and given.ndim in dims and given.is_floating_point():
        tensor = given.detach() if is_mean else given
        if tensor.ndim < 3:
            tensor = tensor[..., None, :]  # the same at all positions
        whole = tensor[(None,) * (4 - tensor.ndim)]

        def of_tensor(path: str, heads: list[int], number: int) -> Contexts:
            """Return the given tensor as the contexts of `heads`; path and number are not used."""
            spread = whole.expand(-1, len(heads), -1, -1) if given.ndim == 1 else whole
            return Contexts(spread, 0, heads=tuple(heads))

        return of_tensor
    kept: list[Any] = [given]
    if isinstance(given, Seen):
        kept = [each for path in given for each in given.calls(path)]
    if not kept or any(_context_in(each, is_mean) is None for each in kept):
        code = "edit.other" if name == "other" else f"{name}.type"
        shape = f" {tuple(given.shape)}" if isinstance(given, Tensor) else ""
        raise ArgumentTypeError(
            code, f"{name} must be {expected}; got {type(given).__name__}{shape}."
        )

    def find(path: str, heads: list[int], number: int) -> Contexts:
        """Return the contexts that a record has for a call, or those given for all calls; EditError if it has none."""
        some: Any = given.whole_and_call(path, number) if isinstance(given, Seen) else [given]
        made = _context_in(some[0], is_mean) if some else None
        if made is None:
            raise EditError("edit.context", f"the other run has no call {number} of {shown(path)}.")
        return made

    return find


def _context_in(kept: Any, is_mean: bool) -> Contexts | None:
    """Return the contexts in what was kept of a layer, or, if `is_mean`, their mean as those of one position.

    None if it has none; totals have a mean only.
    """
    context = getattr(kept, "context", None)
    if isinstance(kept, Totals):
        mean = context if is_mean else None
    elif isinstance(context, Tensor) and context.ndim == 4:
        made = Contexts(context, 0, kept.real, numbers_of_heads(kept))
        if not is_mean:
            return made
        mean = made.mean.detach()
    else:
        return None
    return None if mean is None else Contexts(mean[None, :, None], 0, heads=numbers_of_heads(kept))
