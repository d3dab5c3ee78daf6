"""The attention of a running model, without changing its kernel or its output.

While a model is watched, the functions that PyTorch attends by are monkeypatched with ones that
read the call and then run the original with the same arguments; `hooks` has a file for each. The
running module is known from hooks on all modules at once; hooks on the modules of the model itself
would turn PyTorch's fast paths off, and so change the result.
"""

from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

from torch import nn

from clearhead._common.checks import check_choice
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentTypeError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.kept_by_path import Keep
from clearhead.watching.watcher import Watch, WatchOptions


@overload
def watch(
    model: nn.Module,
    *,
    keep: Literal["matrix", "gradients"] = "matrix",
    **options: Unpack[WatchOptions],
) -> Watch[AttentionMatrix]: ...
@overload
def watch(
    model: nn.Module,
    *,
    keep: Keep | Callable[[str, AttentionMatrix], Any],
    **options: Unpack[WatchOptions],
) -> Watch[Any]: ...
@with_hints
def watch(
    model: nn.Module,
    *,
    keep: Keep | Callable[[str, AttentionMatrix], Any] = "matrix",
    **options: Unpack[WatchOptions],
) -> Watch[Any]:
    """Record every call of attention that a model makes, by whichever function of PyTorch.

    The model runs on its own kernel and gives its own output, bit for bit. Query and key of each call are kept
    (O(tokens) memory); weights are computed where they are indexed. A call is seen of PyTorch's function of attention,
    of nn.MultiheadAttention in all of its modes, the fast path of nn.TransformerEncoder included, of the models of
    transformers with any attn_implementation, and of the layers of clearhead. Weights are those before dropout.

    Args:
        model: any PyTorch model.
        layers: only modules whose path is like this glob ("encoder.layer.[0-3].*"), of this number, or one of several;
            they keep the numbers that they have among all that attend, `seen[11]` after `layers=[11]`.
        heads: only these query heads, with the key heads that they use; None is all.
        keep: "matrix" keeps query and key. "contexts" keeps the context of each head alone, z = weights · values,
            as `Contexts`. "gradients" keeps the graph of each call too, for `relevance` and losses; a
            model whose parameters are frozen gets one. "summary" keeps neither: each call is turned into a `Summary`
            before it runs, with the 8 largest weights of each query, a map of up to 64 × 64, and the roles of the
            heads. "total" keeps the averages of each head over all calls, `Totals`, for batches of any length of a
            whole data set. A function is called as `function(path, matrix)` before each call runs, and what it
            returns is kept, nothing else. It runs without gradients; in `torch.enable_grad()` it returns
            numbers with gradients into the model.
        tokens: ids of the tokens, int64 (batch, len) or (len,), for the roles that need them, from the first key on.
            None takes those that the model's input embedding reads, if it has `get_input_embeddings`.
        strict: True raises an error if a part of the model attended and was not seen; else that is a
            `WatchWarning`. `Seen.missing` lists them.
        source_tokens: in a model of an encoder and a decoder the ids that the encoder reads, in the same form;
            `tokens` are then those of the decoder.
        values: True keeps the value of each call next to its key, as `AttentionMatrix.value`.
        contexts: True keeps the context of each head as well, as the model used it, after dropout: `context` of
            the matrix or the summary, and with keep="total" the mean of it over all queries. Not with a
            function.
        threads: "own" takes the calls of the context that enters the block, as `contextvars` has it: those of this
            thread or task, and of threads that are started with a copy of its context. "all" takes those of every
            thread.

    Returns:
        A context manager; entering it gives a `Seen`, which maps the paths of modules to their
        `AttentionMatrix`, `Summary` or result.

    Raises:
        ArgumentTypeError: codes `watch.model`, for something that is not a module, `layers.type`,
            `heads.type`, `tokens.type`, `values.type`, `contexts.type`.
        ArgumentError: codes `layers.value`, `heads.value`, `keep.value`, `tokens.keep`, `values.keep`,
            `contexts.keep` and `threads.value`.
        ShapeError: code `tokens.shape`.
        WatchError: when the block ends, codes `watch.not-run` if the model was not called, `watch.nothing-seen` if
            it attends by another route, `watch.layers` if no module that attended is like one of the layers,
            `watch.heads` if one has no such head, `watch.tokens` if one attends to more than the tokens,
            `watch.function` if the function raises or keeps the matrix, `watch.missing` with `strict` if a part
            attended and was not seen, and `watch.unreadable` if a call could not be read, as in torch.vmap; and when
            it begins, code `watch.entered` for one that is entered already.

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
        >>> with ch.watch(layer, keep=lambda path, matrix: matrix.max_score().amax(dim=-1)) as seen:
        ...     output = layer(torch.randn(1, 5, 16))
        >>> seen["self_attn"].shape
        torch.Size([1, 2])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "watch.model", f"model must be a torch.nn.Module; got {type(model).__name__}."
        )
    if not callable(keep):
        check_choice("keep", keep, Keep, " or a function")
    return Watch(model, keep, options)
