"""The operations on a layer, or on some of its heads, as methods."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from clearhead._common.checks import as_ints, check_number, check_tensor
from clearhead._common.foreign_words import Answering, no_attribute
from clearhead._text import kind_of, shown
from clearhead.editing.context_operations import Ablate, AddVector, Find, FindMean, Replace
from clearhead.editing.operation import Operation
from clearhead.editing.operations import Hide, Patterns, Restrict, ScaleKeys
from clearhead.editing.selections import heads_text, selection
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError
from clearhead.masks.base import Mask
from clearhead.matrix.contexts import Contexts
from clearhead.matrix.head_numbers import numbers_of_heads
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


class Called(Answering):
    """Base of objects that have methods only; assigning an attribute raises."""

    def __setattr__(self, name: str, value: object) -> None:
        """Raise for an assignment of a public attribute, because it would change nothing.

        Raises:
            NoAttributeError: code `attribute.name`.
        """
        if not name.startswith("_"):
            way = "an assignment changes nothing; call a method such as edit[layer].heads[head].ablate()."
            raise no_attribute(self, name, way)
        super().__setattr__(name, value)


class LayerEdit(Called):
    """A layer of a model, or some of its heads, to edit: `edit[layer]`, `edit[layer].heads[3, 5]`."""

    def __init__(self, add: Add, heads: tuple[int, ...] | slice) -> None:
        self._add_operation, self._heads = add, heads

    @property
    def heads(self) -> "HeadPicker":
        """The heads, to be indexed: `heads[3]`, `heads[3, 5]`, `heads[2:5]`, `heads[-1]`."""
        return HeadPicker(self._add_operation)

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
            EditError: when the layer runs, codes `edit.heads`, `edit.mean`, `edit.context`, `edit.positions` and
                `edit.batch`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
            >>> with ch.edit(layer) as edit:
            ...     edit[0].ablate()
            ...     bool((layer(x) == layer.output_projection.bias).all())
            True
        """
        chosen = selection("query", query)
        means = means_of(mean)
        if isinstance(mean, Tensor) and mean.ndim == 3:
            self._add("ablate", Replace(self._heads, chosen, contexts_of(mean.detach()[None])))
        else:
            self._add("ablate", Ablate(self._heads, chosen, means))

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
        chosen = selection("query", query)
        self._add("replace", Replace(self._heads, chosen, contexts_of(other)))

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
            EditError: when the layer runs or the block ends, codes `edit.vector`, `edit.heads`, `edit.positions`
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
        factor = check_number("scale", scale, "a finite number", math.isfinite)
        chosen = selection("query", query)
        self._add("add", AddVector(self._heads, chosen, vector, factor))

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
            mask: hides what it does not show (True = may attend, as everywhere), in the place of
                query and key.

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
            other: what `watch` has seen of the same model on a text of the same length, or a matrix.

        Raises:
            ArgumentTypeError: code `edit.other`.
            EditError: when the layer runs, codes `edit.heads`, `edit.patterns` for other sizes and
                `edit.conflict` next to hide or scale of the same head.
        """
        if isinstance(other, AttentionMatrix):
            find = lambda path: other  # noqa: E731
        elif isinstance(other, Seen) and other._keep == "matrix":
            find = other.__getitem__
        else:
            raise ArgumentTypeError(
                "edit.other",
                'other must be what watch has seen with keep="matrix", or an AttentionMatrix; got '
                f"{type(other).__name__}.",
            )
        self._add("patterns_from", Patterns(self._heads, find))

    def _add(self, what: str, operation: Operation) -> None:
        """Add an operation, under a name that starts with its heads unless it is for all of them."""
        heads = operation.heads
        if heads != slice(None):
            what = f"{heads_text(heads)}.{what}"
        self._add_operation(what, operation)


class HeadPicker(Called):
    """The heads of a layer, to be indexed."""

    def __init__(self, add: Add) -> None:
        self._add_operation = add

    def __getitem__(self, heads: int | slice | Sequence[int]) -> LayerEdit:
        """Return an edit of the indexed heads.

        Raises:
            ArgumentTypeError: code `heads.type`, for what is no number of a head.
            ArgumentError: code `heads.value`, for a number twice, and for none.
        """
        return LayerEdit(self._add_operation, numbers_of(heads))


def contexts_of(other: object) -> Find:
    """Return a function that finds the contexts of a module, by its path and the numbers of its heads.

    They come from a record, from the contexts of one layer, or from a tensor of just the heads that are edited.

    Raises:
        ArgumentTypeError: code `edit.other`.
    """
    if isinstance(other, Tensor) and other.ndim == 4 and other.is_floating_point():
        return lambda path, heads: Contexts(other, 0, heads=tuple(heads))
    if isinstance(other, Contexts):
        return lambda path, heads: other
    record: Any = other
    kept = (
        [each for path in record for each in record.calls(path)] if isinstance(other, Seen) else []
    )
    # The contexts of totals are means, which ablate(mean=) takes.
    if not kept or any(getattr(getattr(each, "context", None), "ndim", 0) != 4 for each in kept):
        raise ArgumentTypeError(
            "edit.other",
            'other must be what watch has seen with keep="contexts" or contexts=True, the Contexts of a layer, or a '
            "tensor (batch or 1, heads, positions, value_head_dim); got "
            f"{type(other).__name__}{f' {tuple(other.shape)}' if isinstance(other, Tensor) else ''}.",
        )

    def find(path: str, heads: list[int]) -> Contexts:
        found: Any = record[path]
        return Contexts(found.context, found.kv_len, found.real, numbers_of_heads(found))

    return find


def means_of(mean: object) -> FindMean | None:
    """Return a function that finds the mean context of heads, by the path of their module; None if `mean` is None.

    The means come from a record, from what was kept of one layer, or from a tensor of just the heads that are
    edited.

    Raises:
        ArgumentTypeError: code `mean.type`.
    """
    if mean is None:
        return None
    if isinstance(mean, Tensor):
        check_tensor("mean", mean, MEAN)
        return lambda path, heads: mean.detach()
    kept: list[Any] = list(mean.values()) if isinstance(mean, Seen) else [mean]
    if not kept or any(_mean_in(each) is None for each in kept):
        raise ArgumentTypeError("mean.type", f"mean must be {MEAN}; got {shown(mean)}.")

    def find(path: str, heads: list[int]) -> Tensor:
        found: Any = mean[path] if isinstance(mean, Seen) else mean
        numbers, made = numbers_of_heads(found), _mean_in(found)
        if made is None or not set(heads) <= set(numbers):
            raise EditError(
                "edit.mean",
                f"heads {heads} of {path or 'the model'} are ablated to their means; seen were heads {list(numbers)}.",
            )
        return made[[numbers.index(head) for head in heads]]

    return find


def _mean_in(kept: Any) -> Tensor | None:
    """Return the mean context in what was kept of a layer, (num_heads, value_head_dim); None if it has none."""
    if isinstance(kept, Totals):
        return kept.context
    context = getattr(kept, "context", None)
    if not isinstance(context, Tensor) or context.ndim != 4:
        return None
    return Contexts(context.detach(), 0, kept.real).mean


def numbers_of(heads: object) -> tuple[int, ...] | slice:
    """Return the numbers of heads as a tuple; a slice is returned unchanged. Raises as `HeadPicker` does."""
    if isinstance(heads, slice):
        start, step, stop = heads.start or 0, 1 if heads.step is None else heads.step, heads.stop
        numbers = as_ints([start, step, 0 if stop is None else stop])
        # Which a number of heads cannot change, where both ends are counted from the same side.
        is_empty = step == 0 or (
            numbers is not None
            and stop is not None
            and (start < 0) == (stop < 0)
            and not range(start, stop, step)
        )
    else:
        numbers = as_ints(heads if isinstance(heads, Sequence) else [heads])
        is_empty = numbers is not None and (not numbers or len(set(numbers)) < len(numbers))
    if numbers is None:
        raise ArgumentTypeError("heads.type", f"heads must be whole numbers; got {shown(heads)}.")
    if is_empty:
        raise ArgumentError(
            "heads.value", f"heads must be different numbers, at least one; got {shown(heads)}."
        )
    return heads if isinstance(heads, slice) else numbers
