"""The function `trace`: every stage between the input and the output of a call of attention."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead._common.memory import within_memory
from clearhead.attention.functional import attend
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.tracing.library_call import attend_call, check_call, layer_call
from clearhead.tracing.text import labels
from clearhead.tracing.traced_call import Trace
from clearhead.tracing.user_call import user_call

INSTEAD = "Trace fewer tokens; AttentionMatrix gives rows and numbers of any length."


@with_hints
def trace(
    thing: Callable[..., Any] | str,
    *inputs: Tensor,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    **options: Any,
) -> Trace:
    """Run attention and keep every stage between the input and the output.

    The stages are scores → scaled_scores → capped_scores → masked_scores → weights →
    dropped_weights → context → output, with the projections before them; weights stand before *and*
    after dropout. Scores and weights take query_len × kv_len numbers each. The trace also says how far
    the context is from that of the kernel which would run this untraced.

    Code of your own is read as `check` reads it, operation by operation, whether it is right or wrong: the stages
    are those that it computed, bit for bit, each with its line. Next to the first one that differs from the
    definition stands what it should be. A module is copied, and its mode is left as it is.
    A rung of the ladder is read in the same way.

    Args:
        thing: `attend`, a `MultiHeadAttention`, a rung of the ladder; or code of your own: a function, an
            instance, a class, or "file.py:Name".
        inputs: what the thing takes: query, key and value, or x, or x and a context.
        tokens: a word for each query, for the tables.
        source_tokens: a word for each key, where they are not those of the queries.
        options: further arguments of the thing, such as `mask`; and what is declared of code of your own, as
            for `check`: causal=True.

    Raises:
        ArgumentTypeError: codes `trace.thing`, for anything else, and `trace.inputs`, for a call without its inputs;
            and what the thing itself raises.
        UnsupportedError: code `trace.unread`, for code in which no attention can be read.
        ArgumentError: code `trace.tokens`, if there are more or fewer words than tokens; for declarations that make no
            sense, and a place of another form.
        ModelError: for code of your own that cannot be found or made.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> steps = ch.trace(layer, torch.randn(1, 3, 8))
        >>> steps["weights"].shape
        torch.Size([1, 2, 3, 3])
        >>> float(steps["weights"][0, 0, 0, 0].detach())
        1.0
        >>> def mine(x):
        ...     return (x @ x.T).softmax(dim=0) @ x
        >>> ch.trace(mine, torch.tensor([[1.0, 0.0], [0.5, 2.0]]), scale=1.0).expected.stage
        'weights'
    """
    with within_memory(INSTEAD):
        given = inputs if thing is attend else (thing, *inputs)
        function: Callable[..., Trace] = user_call
        if thing is attend or isinstance(thing, MultiHeadAttention):
            function = attend_call if thing is attend else layer_call
            check_call(function, given, options)
        made = function(*given, **options)
    made.tokens = labels(tokens, made.query_len, "tokens")
    if source_tokens is None and made.query_len == made.kv_len:
        source_tokens = tokens
    made.source_tokens = labels(source_tokens, made.kv_len, "source_tokens")
    return made
