"""A call of a function of attention of transformers, read as a problem.

The meaning of its arguments depends on the implementation; `read_call` is the one place that knows.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask

from clearhead._text import shown
from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import UnsupportedError
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.dense import and_masks, dense
from clearhead.masks.documents import documents
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window as window
from clearhead.watching.hooks.described import NAME, Described
from clearhead.watching.mask_recovery import read_bias

READ = (
    "scaling", "dropout", "is_causal", "sliding_window", "softcap", "s_aux", "sinks", "position_bias",
)  # fmt: skip
"""The options that `read_call` reads."""

PACKED = ("cu_seq_lens_q", "cu_seq_lens_k")
"""The options that say where packed sequences begin. Eager, PyTorch's function and FlexAttention take no notice."""

HARMLESS = (
    "cache_position", "deterministic", "interpolate_pos_encoding", "kernel_options", "labels", "logits_to_keep",
    "max_length_k", "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states",
    "output_router_logits", "position_ids", "return_dict", "seq_idx", "use_cache",
)  # fmt: skip
"""The options that change no weight: what a model returns, how a kernel runs, and what query, key and mask know."""

Convention = Literal["eager", "sdpa", "flash", "flex", "clearhead"]


def convention_of(implementation: str | None) -> Convention | None:
    """Return the convention of an implementation: "eager", "sdpa", "flash", "flex" or "clearhead"; None if not known.

    An implementation of None is "eager"; a name with "flash" and without "|" is "flash".
    """
    if implementation is None or implementation == "eager":
        return "eager"
    if implementation in ("sdpa", NAME):
        return cast(Convention, implementation)
    if implementation == "flex_attention":
        return "flex"
    # Kernels from the hub, such as kernels-community/flash-attn3, are called in the same way.
    return "flash" if "flash" in implementation and "|" not in implementation else None


def read_call(
    implementation: str | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None = None,
    **options: Any,
) -> Problem:
    """Read a call of a function of attention of transformers, in the conventions of its implementation.

    Returns a problem.

    - "eager": the mask is added to the scores, and what is the lowest number of its dtype or −∞
      hides. It says everything, causality and window included.
    - "sdpa": the mask is bool, True = may attend, or added. Without one, and with several queries,
      the call is causal if `is_causal` or else the module says so, counted from the first key. It
      has neither softcap nor sinks.
    - "flash_attention_2" and other names with flash: the mask is which keys are real, (batch,
      kv_len). Causality is that of `is_causal` or the module, with the last query on the last key;
      `sliding_window` counts the query itself.
    - "flex_attention": the mask is a `BlockMask`, or added; it says everything.
    - "clearhead": as "sdpa", with softcap and sinks; without a mask the window counts as well.

    A query that sees nothing has no weights here; "eager" gives it some.

    Args:
        implementation: its name; None is "eager".
        module: the module that attends.
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, kv_len, head_dim), heads not repeated.
        value: (batch, num_kv_heads, kv_len, value_head_dim).
        attention_mask: see above.
        **options: `scaling`, which the scores are multiplied by, None for 1/√head_dim; `dropout`,
            the share of the weights to drop; `is_causal`, which goes before the module's;
            `sliding_window`, how many tokens a query sees, itself included; `softcap`, a bound of
            the scaled scores; `s_aux`, sinks, (num_heads,); `sinks`, one of each query, (batch,
            num_heads, query_len, 1), as in Inkling 2; `position_bias`, added to the scores, as in T5
            (Raffel et al., 2020, https://arxiv.org/abs/1910.10683); `PACKED` and `HARMLESS` ones.

    Raises:
        UnsupportedError: codes `transformers.implementation`, for a name whose conventions are not
            known, and `transformers.argument`, for another option that is not None.
        ClearheadError: for tensors that `attend` refuses.

    Example:
        >>> layer, query, key = nn.Module(), torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
        >>> problem = read_call("sdpa", layer, query, key, key, None, is_causal=True)
        >>> print(problem.describe())
        query  [batch=1, num_heads=4, query_len=3, head_dim=8] float32 cpu
        key    [batch=1, num_kv_heads=2, kv_len=3, head_dim=8] float32 cpu
        value  [batch=1, num_kv_heads=2, kv_len=3, value_head_dim=8] float32 cpu
        mask=causal(), scale=0.353553
    """
    convention = convention_of(implementation)
    if convention is None:
        raise UnsupportedError(
            "transformers.implementation",
            'attn_implementation must be "eager", "sdpa", "flex_attention", "clearhead" or one of '
            f'the flash attentions; how "{implementation}" reads its arguments is not known.',
        )
    for name, option in options.items():
        if option is not None and name not in (*READ, *PACKED) and name not in HARMLESS:
            raise UnsupportedError(
                "transformers.argument",
                f"what {name}={_brief(option)} means to the attention of {type(module).__name__} is "
                f"not known. Known are {', '.join((*READ, *PACKED))}; and, as they change no weight, "
                f"{', '.join(HARMLESS)}.",
            )
    is_causal, sliding_window = options.get("is_causal"), options.get("sliding_window")
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    # Learned queries may be one sample for all.
    batch = max(query.shape[0], key.shape[0])
    query, key, value = (each.expand(batch, -1, -1, -1) for each in (query, key, value))
    lengths = query.shape[2], key.shape[2]
    mask, bias, sinks = None, options.get("position_bias"), options.get("s_aux")
    of_queries = None if convention == "sdpa" else options.get("sinks")
    if of_queries is not None:
        # The softmax next to a sink of a query is that of scores lower by it, next to a sink of 0.
        bias = -of_queries if bias is None else bias - of_queries
        sinks = query.new_zeros(query.shape[1])
    if convention == "flash":
        mask = _flash(cast(Any, attention_mask), is_causal, sliding_window, lengths)
        if attention_mask is None:
            mask = and_masks(mask, _packed(options, lengths, query.shape[0]))
    elif isinstance(attention_mask, BlockMask):
        mask = _of_blocks(attention_mask, lengths)
    elif isinstance(attention_mask, Described):
        mask = attention_mask.description
    elif attention_mask is not None:
        given = _four_dimensions(attention_mask)[..., : lengths[1]]
        if given.dtype == torch.bool and convention in ("sdpa", NAME):
            mask = dense(given)
        else:
            # FlexAttention reads the mask of the first head for all.
            mask, added = split_added(given[:, :1] if convention == "flex" else given, query.dtype)
            if added is not None:
                bias = added if bias is None else bias + added
    elif convention in ("sdpa", NAME):
        mask = _without_mask(is_causal, sliding_window if convention == NAME else None, lengths)
    if convention == NAME:
        mask = and_masks(mask, _by_lengths(options, lengths))
    # PyTorch's function and flash attention always drop, the others while they train.
    drops = convention in ("sdpa", "flash") or module.training
    return make_problem(
        query,
        key,
        value,
        mask=mask,
        bias=None if bias is None else _four_dimensions(bias)[..., : lengths[1]],
        scale=options.get("scaling"),
        softcap=None if convention == "sdpa" else options.get("softcap"),
        sinks=None if convention == "sdpa" else sinks,
        dropout=options.get("dropout", 0.0) if drops else None,
    )


def _without_mask(
    is_causal: bool, sliding_window: int | None, lengths: tuple[int, int]
) -> Mask | None:
    """Return the mask of PyTorch's function when no mask is given; None if neither causality nor a window hides a key.

    If causal, the first of several queries is at the first key, and a single query is the last token.
    """
    query_len, kv_len = lengths
    offset = None if query_len in (1, kv_len) or not is_causal else 0
    past = causal(offset=offset) if is_causal and query_len > 1 else None
    return and_masks(past, _window(sliding_window, is_causal, offset, kv_len))


def _flash(
    valid: Tensor | None, is_causal: bool, sliding_window: int | None, lengths: tuple[int, int]
) -> Mask | None:
    """Return the mask of flash attention: padding, causal, and the window; None if there is none of these."""
    query_len, kv_len = lengths
    real, offset = None, None
    if valid is not None:
        # A cache may have room for more keys than the mask has.
        room = kv_len - valid.shape[-1]
        offset = valid.shape[-1] - query_len if room > 0 else None
        real = padding(nn.functional.pad(valid.bool(), (0, room)))
    past = causal(offset=offset) if is_causal else None
    near = _window(sliding_window, is_causal, offset, kv_len)
    if near is not None and valid is not None and _is_scattered(valid.bool(), query_len):
        raise UnsupportedError(
            "transformers.argument",
            "a window of flash attention must have no padding between the real tokens of a row.",
        )
    return and_masks(and_masks(past, real), near)


def _is_scattered(valid: Tensor, query_len: int) -> bool:
    """Return True if padding lies between real tokens of a row, bool, (batch, keys).

    With one query the last key counts as real.
    """
    before = (~valid).cumsum(dim=-1)
    counts = valid.clone()
    if query_len == 1:
        counts[:, -1] = True
    least = before.masked_fill(~counts, valid.shape[-1]).amin(dim=-1)
    most = before.masked_fill(~counts, 0).amax(dim=-1)
    return bool((most > least).any())


def _window(
    sliding_window: int | None, is_causal: bool, offset: int | None, kv_len: int
) -> Mask | None:
    """Return a window of `sliding_window` tokens, the query included, on both sides; None without one.

    If causal, later keys are left to other masks. `offset` is the key of the first query; None puts the last query on
    the last key. A window that covers all keys is None too.
    """
    if sliding_window is None or sliding_window >= kv_len:
        return None
    reach = sliding_window - 1
    return window(left=reach, right=None if is_causal else reach, offset=offset)


def _packed(others: Mapping[str, Any], lengths: tuple[int, int], batch: int) -> Mask | None:
    """Return the mask of the sequences that flash attention separates; None if the arguments name none.

    Cumulative lengths say where sequences begin. Without them, in a batch of one, positions that restart do.
    UnsupportedError as `_by_lengths`.
    """
    # Without the longest of them, lengths go unnoticed.
    complete = all(others.get(name) is not None for name in ("max_length_q", "max_length_k"))
    by_lengths = _by_lengths(others, lengths) if complete else None
    places = others.get("position_ids")
    if by_lengths is not None or places is None or batch != 1 or places.shape[-1] == 1:
        return by_lengths
    starts = places.flatten() == places.min()
    goes_on = bool((places.flatten().diff() == 1).all())
    return None if goes_on else documents(starts.cumsum(0))


def _by_lengths(others: Mapping[str, Any], lengths: tuple[int, int]) -> Mask | None:
    """Return the mask of sequences packed into one row, from their starts, (sequences + 1,); None without.

    Raises UnsupportedError, code `transformers.argument`, if queries and keys differ.
    """
    starts, key_starts = (others.get(name) for name in PACKED)
    if starts is None or key_starts is None:
        return None
    if lengths[0] != lengths[1] or not torch.equal(starts, key_starts):
        raise UnsupportedError(
            "transformers.argument",
            "cu_seq_lens_q must be cu_seq_lens_k, of sequences that attend to themselves; got "
            f"{_brief(starts)} and {_brief(key_starts)} for query_len={lengths[0]}, "
            f"kv_len={lengths[1]}.",
        )
    places = torch.arange(lengths[0], device=starts.device)
    return documents(torch.bucketize(places, starts, right=True))


def _of_blocks(blocks: BlockMask, lengths: tuple[int, int]) -> Mask:
    """Return the mask of FlexAttention as a dense one, from the function that its block mask has."""
    batch, heads = blocks.shape[:2]
    device = blocks.kv_num_blocks.device
    return dense(create_mask(blocks.mask_mod, batch, heads, *lengths, device=device.type))


def split_added(added: Tensor, dtype: torch.dtype) -> tuple[Mask | None, Tensor | None]:
    """Split a tensor that is added to the scores into (mask, bias); None for one that it does not have.

    −∞ and the lowest number of its dtype hide. Whole numbers are all bias, in `dtype`; a bias of 0 is None unless it
    requires gradients.
    """
    if not added.is_floating_point():
        return None, added.to(dtype)
    visible, rest = read_bias(added)
    return None if visible is None else dense(visible), rest


def _four_dimensions(tensor: Tensor) -> Tensor:
    """Return (…, query_len, kv_len) as a view (batch, num_heads, query_len, kv_len); missing axes are 1."""
    return tensor[(None,) * (4 - tensor.ndim)]


def _brief(given: object) -> str:
    """Return a value in a few words, for a message."""
    if isinstance(given, Tensor):
        return f"<{given.dtype} {tuple(given.shape)}>".replace("torch.", "")
    return shown(given)
