"""The relevance of tokens through the layers of a watched model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_bool
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, WatchError
from clearhead.matrix.indexing import read_index
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.rollout import WeightGradients, relevance_of
from clearhead.watching.module_calls import Call
from clearhead.watching.seen import Seen


@with_hints
def relevance(
    seen: Seen[AttentionMatrix],
    target: Tensor,
    *,
    output: int | Sequence[int] | Tensor = -1,
    retain_graph: bool = False,
) -> Tensor:
    """Return the relevance of every input token for a number that the model computed from an output.

    It is gradient × attention, propagated through the layers.

    Chefer, Gur & Wolf (2021, https://arxiv.org/abs/2103.15679), the rule for self-attention: each layer makes
    R ← R + Ā R with Ā = mean over heads of relu(weights ∘ gradients), from the identity on. Only the rows of the
    outputs are followed, from the last layer down, in one pass over the weights for each layer: O(tokens) memory.

    With fewer queries than keys, as where a KV cache was filled before the watch, the queries are the last of the
    tokens. What they take from a token of the cache counts for that token, in whichever layer they take it; the
    tokens of the cache are not followed further.

    Args:
        seen: of self-attention, watched with `watch(model, keep="gradients")`. Layers that were not watched, and
            calls that the target was not made of, pass on what they get.
        target: the number to explain, such as the logit of a class or of the next token; of a batch the sum over
            the samples.
        output: the place of the output that the target was made of: −1 for the next token, 0 for a class token; several
            give a row each.
        retain_graph: True keeps the graph for another target, as in `torch.autograd.grad`.

    Returns:
        (batch, tokens), or (batch, outputs, tokens) for several outputs; 0 or more. An output has 1 of its own
        token, by the residual path; rows are not normalised.

    Raises:
        ArgumentTypeError: codes `relevance.type`, unless it is a record of a watch, or a tensor, and
            `retain_graph.type`.
        ArgumentError: code `relevance.target`, for a target that is not one real number, has no graph, or
            does not depend on what was seen.
        WatchError: codes `relevance.gradients`, for a watch without keep="gradients"; `relevance.graph`, where a
            module ran without gradients, or by a path that has no context of its heads; `relevance.dropout`;
            `relevance.cross`, for cross-attention; `relevance.shape`, for layers that are not of the same tokens;
            `relevance.missing`, where a part of the model was not seen; `watch.written`, where the model wrote to
            query, key or value after the call.
        SelectionError: codes `matrix.index` and `matrix.range`, for an output that is not there.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(
        ...     *(ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()) for _ in range(3))
        ... )
        >>> with ch.watch(model, keep="gradients") as seen:
        ...     output = model(torch.randn(1, 5, 8))
        >>> ch.reading.relevance(seen, output[0, 3, 0], output=3).shape
        torch.Size([1, 5])
    """
    layers = _calls(seen)
    if seen.missing:
        raise WatchError(
            "relevance.missing",
            f"relevance goes through every layer, and a part of the model attended and was not seen: {seen.missing[0]} "
            "Or name the layers to follow: watch(model, layers=…).",
        )
    first = next(iter(layers.values()))
    for path, call in layers.items():
        if call.problem.cross:
            raise WatchError(
                "relevance.cross",
                f"relevance follows self-attention; {shown(path)} attends to another text, or to keys that are no "
                "tokens. Watch the layers of one text: watch(model, layers=…).",
            )
        sizes = call.problem.batch, call.kv_len
        if sizes != (first.problem.batch, first.kv_len) or call.problem.query_len > call.kv_len:
            raise WatchError(
                "relevance.shape",
                "every layer must attend to the same tokens; the first has "
                f"batch={first.problem.batch}, kv_len={first.kv_len}, {shown(path)} batch={sizes[0]}, "
                f"query_len={call.problem.query_len}, kv_len={sizes[1]}.",
            )
    if isinstance(output, slice):
        raise SelectionError(
            "matrix.index", f"output must be an int or a list of ints; got {output}."
        )
    places, single = read_index(output, first.kv_len, -1)
    assert isinstance(places, Tensor)
    gradients = _gradients(layers, target, retain_graph)
    in_order = sorted(layers, key=lambda path: layers[path].number)
    rows = relevance_of([gradients[path] for path in in_order], places)
    return rows[:, 0] if single else rows


def _gradients(
    calls: Mapping[str, Call], target: Tensor, retain_graph: bool
) -> dict[str, WeightGradients]:
    """Return the gradient of the target w.r.t. the weights of each call, before dropout, by path.

    With the context c = P v and g = dL/dc it is dL/dP[i, j] = gᵢ · vⱼ; 0 for a call that the target does not depend on.
    The graph is freed unless `retain_graph`.

    Raises:
        ArgumentTypeError, ArgumentError: codes `relevance.type`, `retain_graph.type` and `relevance.target`.
        WatchError: code `watch.written`.
    """
    _check_target(target)
    check_bool("retain_graph", retain_graph)
    contexts = [call.context for call in calls.values() if call.context is not None]
    found = torch.autograd.grad(target, contexts, retain_graph=retain_graph, allow_unused=True)
    if all(each is None for each in found):
        raise ArgumentError(
            "relevance.target",
            "target must be made of the attention that was seen; it is of another run, or of what comes "
            "before it.",
        )
    gradients: dict[str, WeightGradients] = {}
    for (path, call), grad in zip(calls.items(), found, strict=True):
        matrix = call.matrix()
        assert matrix.value is not None
        assert call.no_gradient is not None
        grad = call.no_gradient if grad is None else grad
        grad = grad if call.heads is None else grad[:, list(call.heads)]
        gradients[path] = WeightGradients(matrix, matrix.value, grad.detach())
    return gradients


def _calls(seen: Seen[Any]) -> dict[str, Call]:
    """Return every watched call with its graph, by path, or as "path, call 0" where a module has several.

    Raises:
        ArgumentTypeError: code `relevance.type`, unless `seen` is the record of a watch.
        WatchError: codes `relevance.gradients`, `relevance.graph` and `relevance.dropout`.
    """
    if not isinstance(seen, Seen):
        raise ArgumentTypeError(
            "relevance.type", f"seen must be what a watch gave; got {shown(seen)}."
        )
    calls = seen._graphs()
    if not calls:
        raise WatchError(
            "relevance.gradients",
            'the gradients of weights need what watch(model, keep="gradients") keeps; this watch kept less.',
        )
    for path, call in calls.items():
        if call.context is None:
            raise WatchError(
                "relevance.graph",
                f"the call of {shown(path)} has no graph. Way out: no torch.no_grad(), inference_mode() or gradient "
                "checkpointing around the model, nn.MultiheadAttention with need_weights=False, no ablated heads.",
            )
        if call.problem.dropout is not None:
            raise WatchError(
                "relevance.dropout",
                f"{shown(path)} dropped weights, which are not those of its gradients. Call model.eval().",
            )
    return calls


def _check_target(target: object) -> None:
    """Raise an error unless the target is a tensor of one real number that requires grad.

    Raises:
        ArgumentTypeError, ArgumentError: codes `relevance.type` and `relevance.target`.
    """
    if not isinstance(target, Tensor):
        raise ArgumentTypeError(
            "relevance.type", f"target must be a tensor of one number; got {shown(target)}."
        )
    if target.numel() != 1 or not target.requires_grad or target.is_complex():
        why = f"shape {tuple(target.shape)}" if target.numel() != 1 else "no graph"
        why = why if not target.is_complex() else f"{target.dtype}"
        raise ArgumentError(
            "relevance.target",
            f"target must be one number that the watched run computed with gradients; got {why}.",
        )
