"""Contexts for patching heads, runs with several patches in a batch, and effects estimated by gradients."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.attention.planning import run
from clearhead.editing.context_operations import Find, OfContext
from clearhead.editing.edit import Edit, followed, is_like
from clearhead.editing.layer_edit import LayerEdit, Means
from clearhead.editing.operation import Operation, selection
from clearhead.errors import ArgumentTypeError, EditError
from clearhead.matrix.head_results import Contexts
from clearhead.watching.seen import Seen
from clearhead.watching.stream import called
from clearhead.watching.watch import watch

Patch = Literal["z", "pattern", "value", "query", "key"]
Head = tuple[str | int, int]
Heads = Head | Sequence[Any]
"""A head, several, or rows of a table that have a layer and a head."""


class Patched(NamedTuple):
    """The layer, head, position and call that a run patches.

    Attributes:
        layer: the path of the module.
        head: which head; None for all of the layer.
        position: of the query; None for all.
        call: which call of the module; None for all.
    """

    layer: str
    head: int | None
    position: int | None = None
    call: int | None = None

    def operation(self, find: Find | None, samples: slice | None) -> OfContext:
        """Return the operation for some samples of the batch: replace the context, or ablate it if `find` is None."""
        heads = slice(None) if self.head is None else (self.head,)
        query = selection("query", self.position)
        made = OfContext(heads, query, find, always=find is None)
        made.samples, made.call = samples, self.call
        return made


CallContexts = Mapping[str, Sequence[Tensor]]
"""The context of each call of each module, (batch, num_heads, query_len, value_head_dim), by its path."""


class Runs(NamedTuple):
    """A model and its inputs, to be run with an edit.

    Attributes:
        model, inputs: what runs, and on what.
        output: that of a run without edits.
        metric: the number of an output.
        contexts: those that edited heads get; None for 0.
    """

    model: nn.Module
    inputs: object
    output: object
    metric: Callable[[Any], Any]
    contexts: CallContexts | None = None


def contexts_in(
    model: nn.Module, inputs: object, layers: Sequence[str] = (), mean: Means | None = None
) -> CallContexts:
    """Return the contexts of a run without gradients by path, (batch, heads, tokens, width) for each call of a module.

    The heads of `layers` are ablated to a mean (None: 0). An ablated context does not depend on earlier layers, so one
    run is enough for all modules. Raises what `watch`, `edit` and the model raise.
    """
    with torch.no_grad(), followed(model) as edits, watch(model, keep="contexts") as seen:
        for path in layers:
            LayerEdit(partial(edits.add, path)).ablate(mean)
        called(model, inputs)
    return {path: [each.context for each in seen.calls(path)] for path in seen}


def patched_contexts(
    model: nn.Module, clean: object, corrupt: object, patch: Patch, layers: Sequence[str]
) -> CallContexts:
    """Return the contexts of each call in `layers` when one part of it, `patch`, comes from the clean run.

    Runs the model once on each input, without gradients: earlier layers stay corrupt, so that is enough for all
    modules. With "z" they are the clean contexts of all modules.

    Raises:
        EditError: code `effects.inputs`, where the two runs have other sizes.
    """
    if patch == "z":
        own, made = contexts_in(model, corrupt), contexts_in(model, clean)
        for path in layers:
            check_alike(path, made.get(path, ()), own[path])
        return made
    records: list[Seen[Any]] = []
    for inputs in (clean, corrupt):
        with torch.no_grad(), followed(model), watch(model, values=True) as seen:
            called(model, inputs)
        records.append(seen)
    return {path: _mixed(path, records, patch) for path in layers}


def _mixed(path: str, records: Sequence[Seen[Any]], patch: Patch) -> list[Tensor]:
    """Return the contexts of a module's calls in the second record with one part (`patch`) of the first.

    Raises EditError, code `effects.inputs`, for other sizes; [] if it has no calls in either.
    """
    clean, corrupt = (
        [each.problem.replace(value=each.value) for each in record.calls(path)]
        if path in record
        else []
        for record in records
    )
    for part in ("query", "key"):
        check_alike(path, *([getattr(each, part) for each in calls] for calls in (clean, corrupt)))
    with torch.no_grad():
        return [
            run(
                one.replace(value=other.value)
                if patch == "pattern"
                else other.replace(**{patch: getattr(one, patch)})
            )
            for one, other in zip(clean, corrupt, strict=True)
        ]


def check_alike(path: str, clean: Sequence[Tensor], corrupt: Sequence[Tensor]) -> None:
    """Check that the calls of a module in two runs have the same sizes.

    Raises:
        EditError: code `effects.inputs`.
    """
    sizes = [", ".join(str(tuple(each.shape)) for each in calls) for calls in (clean, corrupt)]
    if sizes[0] != sizes[1]:
        raise EditError(
            "effects.inputs",
            "the clean and the corrupt run must have the same numbers of samples, tokens and calls; "
            f"{path or 'the model'} has {sizes[0] or 'nothing'} and {sizes[1]}, (batch, heads, tokens, width). Pad "
            "both texts alike.",
        )


def copies_of(tree: Any, times: int = 1, batch: int = 0) -> Any:
    """Return a tree with detached copies of its tensors, those of `batch` rows repeated `times` times along dim 0.

    Leaves that are no tensors are unchanged.
    """

    def copy(each: Any) -> Any:
        """Return a detached copy of a leaf, repeated if it has `batch` rows; itself if it is no tensor."""
        if not isinstance(each, Tensor):
            return each
        if times == 1 or not each.ndim or each.shape[0] != batch:
            return each.detach().clone()
        return each.detach().repeat(times, *[1] * (each.ndim - 1))

    return _pytree.tree_map(copy, tree)


def as_found(contexts: CallContexts, times: int) -> Find:
    """Return a function that finds the context of a call, of all heads, repeated `times` times along the batch."""

    def find(path: str, heads: list[int], number: int) -> Contexts:
        """Return the repeated contexts of all heads in call `number` of a module; `heads` is not used."""
        return Contexts(contexts[path][number].repeat(times, 1, 1, 1), 0)

    return find


def by_gradients(runs: Runs, layers: Sequence[str]) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Return a metric, and the first-order estimate of its change when contexts are replaced, by head and query.

    The change is (new − z) · ∂metric/∂z, summed over the batch: float64, (num_heads, query_len), for each call of a
    path. New contexts are 0 if `runs.contexts` is None. Layers with a call whose graph is not known are left out.

    Raises:
        EditError: code `effects.gradients`, if the metric is not one number with a gradient, or no layer is left.
    """
    model, inputs, _, metric, contexts = runs
    followers = followed(model), watch(model, keep="gradients", contexts=True)
    with torch.enable_grad(), followers[0], followers[1] as seen:
        number = metric(called(model, inputs))
    every = {path: seen._modules[path].graphs() for path in layers if path in seen}
    calls = [
        (path, at, call)
        for path, some in every.items()
        for at, call in enumerate(some)
        if all(each.context is not None for each in some)
    ]
    is_number = isinstance(number, Tensor) and number.numel() == 1 and number.requires_grad
    if not is_number or not calls:
        raise EditError(
            "effects.gradients",
            "gradients need a metric that is one number with a graph, and contexts that it depends on; got "
            f"{shown(number)}. A metric must not detach, and no .item().",
        )
    edges: Any = [call.context for *_, call in calls]
    gradients = torch.autograd.grad(number, edges, allow_unused=True)
    changes: dict[str, list[Tensor]] = {}
    for (path, at, call), gradient in zip(calls, gradients, strict=True):
        own = call.handed_on
        assert own is not None
        new = torch.zeros_like(own) if contexts is None else contexts[path][at].to(own)
        given = torch.zeros_like(own) if gradient is None else gradient
        changes.setdefault(path, []).append(((new - own) * given).double().sum(dim=(0, 3)))
    return number.detach(), changes


def check_heads(code: str, name: str, given: Any) -> list[Any] | None:
    """Return heads, or rows that name them, as a list of tuples (layer, head, position, call); None for None.

    Position and call are those of a row, None for a pair (layer, head).

    Raises:
        ArgumentTypeError: the given `code`, for anything else or an empty list; `name` is that of the argument.
    """
    if given is None:
        return None
    is_one = hasattr(given, "head") or is_head(given)
    rows: list[Any] = list(given) if isinstance(given, Sequence) and not is_one else [given]
    pairs = [(each.layer, each.head) if hasattr(each, "head") else each for each in rows]
    if not rows or isinstance(given, str) or not all(map(is_head, pairs)):
        raise ArgumentTypeError(
            code,
            f"{name} must be (layer, head), a list of such, rows that name them, or None; got {shown(given)}.",
        )
    return [
        (*pair, getattr(row, "position", None), getattr(row, "call", None))
        for pair, row in zip(pairs, rows, strict=True)
    ]


def is_head(given: object) -> bool:
    """Return True if a value is a tuple of a layer, a path or number, and the number of a head."""
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    layer, head = given
    return (isinstance(layer, str) or as_int(layer) is not None) and as_int(head) is not None


def head_of(plain: Edit, layer: str | int, head: int) -> tuple[str, int]:
    """Return the path of the one module that attended while `plain` was entered, and the number of its head, from 0.

    Raises:
        EditError: codes `edit.layers` and `edit.heads`.
    """
    pattern = plain.pattern(layer)
    like = [path for path in plain.attended if is_like(path, pattern)]
    if len(like) != 1:
        known = ", ".join(map(shown, plain.attended)) or "none"
        raise EditError(
            "edit.layers",
            f"a layer must be one module that attends; {shown(layer)} is {len(like)} of these: {known}.",
        )
    return like[0], Operation((head,)).chosen(plain.attended[like[0]], like[0])[0]
