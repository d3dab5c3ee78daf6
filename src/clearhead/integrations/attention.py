"""clearhead as an `attn_implementation` of transformers.

After `register()` every model of transformers that looks its attention up by name can run on the
kernels of this package: from when it is made, or later by `set_attn_implementation`.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clearhead._common.lazy import importing
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.errors import ModelError, UnsupportedError
from clearhead.integrations.transformers_internals import (
    REMAPPED,
    check_when_made,
    classes_by_name,
    collects_attentions,
    keeps_to_own_code,
    masking_utils,
    read_closure,
)
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.full import Full, full
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.watching.hooks.described import NAME, Described
from clearhead.watching.hooks.transformers_call import read_call


def register() -> None:
    """Make clearhead an attention implementation of transformers, by the name "clearhead".

    Models then run on `attend`, which picks the kernel, with all that they ask of it: grouped heads,
    windows, softcap, sinks, the relative positions of T5, dropout while they train, KV caches. Masks
    are descriptions of O(tokens) numbers as they go through the model. With
    `output_attentions=True` the model gives an `AttentionMatrix` for each layer, of the weights
    before dropout.

    A padded query that may attend to nothing gets zeros. In a process group tokens whose positions begin
    in the middle of a text, with no cache before them, are refused (code `model.positions`): ranks that
    share a text would each attend to their own tokens. Arguments of a model to its attention that clearhead does not
    know are refused by name, and so is a model of a type with code of attention of its own (code
    `model.ignores-interface`), when it is made.

    Raises:
        MissingExtraError: if transformers is not installed.

    Example:
        >>> import torch, transformers
        >>> from clearhead.integrations import attention
        >>> attention.register()
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> config = transformers.LlamaConfig(vocab_size=50, intermediate_size=16, **sizes)
        >>> model = transformers.LlamaForCausalLM(config)
        >>> model.set_attn_implementation("clearhead")
        >>> output = model(torch.arange(7)[None], output_attentions=True)
        >>> output.attentions[0]
        AttentionMatrix [batch=1, num_heads=2, query_len=7, kv_len=7] mask=causal()
    """
    with importing("transformers", extra="models", purpose="running a model of transformers"):
        import transformers
    transformers.AttentionInterface.register(NAME, _attention)
    transformers.AttentionMaskInterface.register(NAME, _mask)
    check_when_made(_check_kind)


def _check_kind(kind: type[Any], name: object) -> None:
    """Raise ModelError, `model.ignores-interface`, if a class of models would not run our attention by this name.

    Names that are not ours are not looked at.
    """
    if name != NAME:
        return
    table = classes_by_name(kind)
    if table is not None or keeps_to_own_code(kind, nn.Module):
        reason = "it attends by code of its own" if table is None else f"its {table} has no other"
        raise ModelError(
            "model.ignores-interface",
            f'{kind.__name__} cannot be made with attn_implementation="{name}": {reason}. Without '
            "it the model runs as it is, and watch reads what it can.",
        )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, AttentionMatrix | None]:
    """Run attention as transformers calls it, and return the context and the weights.

    Returns:
        The context, (batch, query_len, num_heads, value_head_dim), and the matrix if the
        attentions were requested, else None.

    Raises:
        UnsupportedError: code `model.positions`, for the middle of a text that ranks may share; and as `read_call`.
    """
    if isinstance(attention_mask, Described):
        _check_beginning(attention_mask, options.get("position_ids"))
    problem = read_call(NAME, module, query, key, value, attention_mask, **options)
    context = run(problem).transpose(1, 2).contiguous()
    # Not every model hands the question on, but most collect what their modules return.
    wanted = (
        options.get("output_attentions")
        or getattr(getattr(module, "config", None), "output_attentions", False)
        or collects_attentions()
    )
    return context, _matrix(problem) if wanted else None


def _check_beginning(mask: Described, positions: Tensor | None) -> None:
    """Raise UnsupportedError if the tokens of this rank may not begin their text.

    Where keys are only those of the call, and no row has the first token of a text, which some count from 1, another
    rank may hold it: attention to this rank's tokens alone would be another one. Packed documents and padding have it.
    Positions of None pass; a call that passes among ranks sets `has_beginning`.
    """
    query_len, kv_len = mask.shape[2:]
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    if (
        alone
        or positions is None
        or positions.ndim != 2
        or query_len != kv_len
        or mask.has_beginning
    ):
        return
    lowest, ones = positions.amin(dim=1), positions == 1
    # Padding alone may be ones.
    from_one = ones.any(dim=1) & ((positions == 2).any(dim=1) | ones.all(dim=1))
    elsewhere = (lowest > 0) & ~from_one
    if bool(elsewhere.any()):
        raise UnsupportedError(
            "model.positions",
            f"position_ids of rank {dist.get_rank()} begin at {int(lowest[elsewhere][0])} with no cache before them: "
            "of a text that ranks share, this model would attend to the tokens of each rank alone. Give each rank "
            "whole texts; a model of clearhead's layers takes across=. Texts of your own that begin later go with "
            'another attn_implementation, such as "sdpa".',
        )
    mask.has_beginning = True


# A compiled graph cannot hold such an object: it is made between two graphs.
@torch.compiler.disable()  # pyright: ignore[reportUntypedFunctionDecorator]
def _matrix(problem: Problem) -> AttentionMatrix:
    """Return the weights of a call, before dropout; keys are copied unless they require a gradient."""
    # A static KV cache writes to its keys later.
    key = problem.key if problem.key.requires_grad else problem.key.clone()
    return matrix_of(problem.replace(key=key))


def _mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> Tensor:
    """Return the mask that transformers asks for: a description if there is one, or else its own for SDPA.

    Args:
        batch_size: the number of samples.
        kv_length: the number of keys.
        kv_offset: position of the first key, in tokens.
        mask_function: says of indices of sample, head, query and key whether they see each other; None is causal.
        attention_mask: bool, (batch, tokens), True at real tokens from position 0 on; None if all are.
        allow_is_causal_skip: False, among other cases, for a step that may be compiled.
        **others: `q_length`, `q_offset`, the position of the first query, and `device`; before transformers 5.4
            `cache_position`, the positions of the queries. The rest is for other implementations.

    Returns:
        bool, (batch, 1, query_len, kv_len), True = may attend.
    """
    masking = masking_utils()
    function: Callable[..., Any] = mask_function or masking.causal_mask_function
    places = others.get("cache_position")
    if places is None:
        queries = {"q_length": 0, "q_offset": 0, "device": "cpu"}
        queries = {name: others.get(name, default) for name, default in queries.items()}
        q_length, q_offset, device = queries.values()
    else:
        queries = {"cache_position": places}
        q_length, q_offset, device = len(places), places[0], places.device
    # A compiled model takes ordinary tensors, and a mask of one query is small anyway.
    if not torch.compiler.is_compiling() and (q_length > 1 or allow_is_causal_skip):
        shift = int(q_offset) - kv_offset
        real = _real(attention_mask, kv_length, kv_offset)
        described = _and(_describe(function, shift, (q_length, kv_length)), real)
        if described is not None:
            shape = (batch_size, 1, q_length, kv_length)
            return Described(described, shape, torch.device(device))
    return masking.sdpa_mask(
        batch_size=batch_size,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        **queries,
        **{name: each for name, each in others.items() if name == "use_vmap"},
    )


def _real(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Mask | None:
    """Return the mask of the keys that are not padded: `full()` without padding, None for other than two axes."""
    if attention_mask is None:
        return full()
    if attention_mask.ndim != 2:
        return None
    room = max(0, kv_offset + kv_length - attention_mask.shape[1])
    valid = nn.functional.pad(attention_mask.bool(), (0, room))
    valid = valid[:, kv_offset : kv_offset + kv_length]
    return full() if bool(valid.all()) else padding(valid)


def _describe(function: Callable[..., Any], shift: int, lengths: tuple[int, int]) -> Mask | None:
    """Return the description of a mask function of transformers, if it is known by its code.

    Args:
        function: of indices of sample, head, query and key.
        shift: position of the first query, counted from the first key.
        lengths: query_len and kv_len.

    Returns:
        A mask of O(tokens) numbers, or None for any other function.
    """
    # The last query is on the last key, unless a cache has more room than tokens.
    offset = None if shift == lengths[1] - lengths[0] else shift
    name, held = read_closure(function)
    match name:
        case "causal_mask_function":
            return causal(offset=offset)
        case "bidirectional_mask_function":
            return full()
        case "sliding_window_overlay":
            return sliding_window(left=held["sliding_window"] - 1, offset=offset)
        case "sliding_window_bidirectional_overlay":
            reach = held["sliding_window"]
            return sliding_window(left=reach, right=reach, offset=offset)
        case "packed_sequence_mask_function" if shift == 0 and offset is None:
            ids = held["packed_sequence_mask"]
            return documents(ids if len(ids) > 1 else ids[0])
        case "or_masks":
            masks = (_describe(each, shift, lengths) for each in held["mask_functions"])
            return reduce(_or, masks)
        case "and_masks":
            read = [(each, *read_closure(each)) for each in held["mask_functions"]]
            packed = any(name == "packed_sequence_mask_function" for _, name, _ in read)
            # Positions count on within a sequence, and masks of positions compare distances.
            parts = [
                held["mask_function"] if packed and name == REMAPPED else each
                for each, name, held in read
            ]
            return reduce(_and, (_describe(each, shift, lengths) for each in parts))
        case _:
            return None


def _and(mask: Mask | None, other: Mask | None) -> Mask | None:
    """Return the mask of the pairs that both masks show; None if one of them is not known (None)."""
    if mask is None or other is None or isinstance(other, Full):
        return None if other is None else mask
    return other if isinstance(mask, Full) else mask & other


def _or(mask: Mask | None, other: Mask | None) -> Mask | None:
    """Return the mask of the pairs that either mask shows; None if one of them is not known (None)."""
    if mask is None or other is None:
        return None
    return full() if isinstance(mask, Full) or isinstance(other, Full) else mask | other
