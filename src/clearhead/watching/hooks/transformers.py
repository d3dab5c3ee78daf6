"""The models of transformers, at the place where each of them fetches its function of attention.

There every implementation passes through, the eager one included, and key heads are not repeated
yet. transformers itself is not imported: it is looked for among what is loaded, again before each
module runs, since it may be loaded later.

What the arguments mean depends on the implementation. `read_call` is the one place that knows.
"""

import reprlib
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_map_only

from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import ModelError, UnsupportedError
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.coerce import and_masks
from clearhead.masks.dense import dense
from clearhead.masks.documents import documents
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window as window
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.patching import replace

NAME = "clearhead"
"""The implementation that runs on the kernels of this package."""

HARMLESS = {
    "cache_position": "where in the cache the queries are, which the mask knows",
    "deterministic": "how the backward of a kernel sums up",
    "kernel_options": "how a kernel is compiled",
    "max_length_k": "the longest of the packed sequences, which their lengths tell",
    "max_length_q": "likewise",
    "num_items_in_batch": "for the loss",
    "output_attentions": "what the model returns",
    "output_hidden_states": "likewise",
    "output_router_logits": "likewise",
    "position_ids": "they are in query and key; of packed sequences see `_packed`",
    "return_dict": "what the model returns",
    "seq_idx": "packed sequences, for layers that do not attend",
    "use_cache": "the cache is read before the call",
}
"""What models hand on that changes no weight, with the reason why."""

PACKED = ("cu_seq_lens_q", "cu_seq_lens_k")
"""Where packed sequences begin. Eager, PyTorch's function and FlexAttention take no notice."""

Convention = Literal["eager", "sdpa", "flash", "flex", "clearhead"]


class Described(Tensor):
    """A mask as transformers hands it through a model, which is a description until it is used.

    It is a bool tensor of shape (batch, 1, query_len, kv_len), True = may attend, and takes no
    memory. Whoever computes with it gets a tensor of queries × keys; `read_call` asks for the
    description.

    Args:
        description: who may see whom.
        shape: (batch, 1, query_len, kv_len).
        device: where the tensor would be.

    Raises:
        ModelError: code `model.ignores-interface`, when it is added to something or written to, as
            a model does that keeps to its own code of attention.

    Example:
        >>> mask = Described(causal(), (1, 1, 2, 3), torch.device("cpu"))
        >>> mask.shape, mask.description.describe()
        (torch.Size([1, 1, 2, 3]), 'causal()')
        >>> mask & torch.tensor([True, True, False])
        tensor([[[[ True,  True, False],
                  [ True,  True, False]]]])
    """

    description: Mask

    def __new__(
        cls, description: Mask, shape: tuple[int, int, int, int], device: torch.device
    ) -> "Described":
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        made.description = description
        return made

    def __init__(
        self, description: Mask, shape: tuple[int, int, int, int], device: torch.device
    ) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Described({self.description.describe()}, {tuple(self.shape)})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # What is computed with it is an ordinary tensor.
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # A bool mask that is added to the scores would count as 0 and 1.
        if func.overloadpacket is torch.ops.aten.add or func._schema.is_mutable:
            raise ModelError(
                "model.ignores-interface",
                f'the model must attend by its attn_implementation "{NAME}"; it works on the mask '
                f"itself ({func.overloadpacket.__name__}), so it keeps to its own code of "
                "attention.",
            )
        given, named = tree_map_only(Described, Described._filled, (args, kwargs or {}))
        return func(*given, **cast(dict[str, Any], named))

    def _filled(self) -> Tensor:
        """The mask as an ordinary tensor."""
        _, _, query_len, kv_len = self.shape
        drawn = self.description.to_dense(query_len, kv_len, device=self.device)
        return drawn.expand(self.shape)


def install() -> Callable[[], None]:
    """Begin to tell of the calls of models of transformers; what is returned ends it."""
    endings: list[Callable[[], None]] = []

    def look(*_: object) -> None:
        loaded = sys.modules.get("transformers.modeling_utils")
        if hasattr(loaded, "ALL_ATTENTION_FUNCTIONS"):
            hook.remove()
            endings.append(_replace(loaded))

    hook = register_module_forward_pre_hook(look)
    look()

    def end() -> None:
        hook.remove()
        for each in endings:
            each()

    return end


def _replace(modeling_utils: Any) -> Callable[[], None]:
    """Have functions that tell handed out in the place of the others."""
    interface = type(modeling_utils.ALL_ATTENTION_FUNCTIONS)
    if not hasattr(interface, "get_interface"):
        return _replace_each(modeling_utils.ALL_ATTENTION_FUNCTIONS)
    original = interface.get_interface

    @wraps(original)
    def get_interface(self: object, attn_implementation: str | None, default: Any) -> Any:
        function = original(self, attn_implementation, default)
        return function if tap.is_inside() else _telling(attn_implementation, function)

    interface.get_interface = get_interface

    def end() -> None:
        # A patch that somebody else put on top is left alone; below it this one is silent.
        if vars(interface).get("get_interface") is get_interface:
            interface.get_interface = original

    return end


def _replace_each(functions: Any) -> Callable[[], None]:
    """Likewise before transformers 5, where models look into a table, and else have a function of
    their own, which is named `eager_attention_forward` everywhere."""
    table: dict[str, Any] = getattr(type(functions), "_global_mapping", functions)
    originals = dict(table)
    eager = {
        id(function): function
        for module in list(sys.modules.values())
        if callable(function := getattr(module, "__dict__", {}).get("eager_attention_forward"))
    }
    table.update({name: _telling(name, function) for name, function in originals.items()})
    take_away = replace([(each, _telling("eager", each)) for each in eager.values()], {})

    def end() -> None:
        table.update(originals)
        take_away()

    return end


def _telling(implementation: str | None, function: Any) -> Any:
    """The function, telling of each call before it runs it, if its conventions are known."""
    if implementation == NAME or _convention(implementation) is None:
        return function  # ours tells of its problems; others may be seen by what they call

    @wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        if tap.is_inside():
            return function(*args, **kwargs)
        tap.tell(lambda: read_call(implementation, *args, **kwargs))
        with tap.inside():
            return function(*args, **kwargs)

    return telling


def _convention(implementation: str | None) -> Convention | None:
    """How an implementation reads its arguments; None is what a model takes by itself."""
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
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> Problem:
    """A call of a function of attention of transformers as a problem, in the conventions of the
    implementation.

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
        scaling: what the scores are multiplied by; None is 1/√head_dim.
        dropout: share of the weights to drop.
        is_causal: what to go by instead of the module's `is_causal`.
        sliding_window: how many tokens a query sees, itself included.
        softcap: bound of the scaled scores.
        s_aux: sinks, (num_heads,).
        position_bias: added to the scores, as in T5 (Raffel et al., 2020,
            https://arxiv.org/abs/1910.10683).
        **others: what models hand on; known names are let pass, see `HARMLESS`.

    Raises:
        UnsupportedError: codes `transformers.implementation`, for a name whose conventions are not
            known, and `transformers.argument`, for another argument that is not None.
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
    convention = _convention(implementation)
    if convention is None:
        raise UnsupportedError(
            "transformers.implementation",
            'attn_implementation must be "eager", "sdpa", "flex_attention", "clearhead" or one of '
            f'the flash attentions; how "{implementation}" reads its arguments is not known.',
        )
    for name, given in others.items():
        if given is not None and name not in HARMLESS and name not in PACKED:
            raise UnsupportedError(
                "transformers.argument",
                f"what {name}={_brief(given)} means to the attention of {type(module).__name__} is "
                f"not known. Known are scaling, dropout, is_causal, sliding_window, softcap, "
                f"s_aux, position_bias, {', '.join(PACKED)}; and, as they change no weight, "
                f"{', '.join(HARMLESS)}.",
            )
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    # Learned queries may be one sample for all.
    batch = torch.broadcast_shapes(query.shape[:1], key.shape[:1])
    query, key, value = (each.expand(*batch, -1, -1, -1) for each in (query, key, value))
    lengths = query.shape[2], key.shape[2]
    mask, bias = None, position_bias
    if convention == "flash":
        mask = _flash(cast(Any, attention_mask), is_causal, sliding_window, lengths)
        if attention_mask is None:
            mask = and_masks(mask, _packed(others, lengths, query.shape[0]))
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
            mask, added = _of_added(given[:, :1] if convention == "flex" else given, query.dtype)
            if added is not None:
                bias = added if bias is None else bias + added
    elif convention in ("sdpa", NAME):
        mask = _without_mask(is_causal, sliding_window if convention == NAME else None, lengths)
    if convention == NAME:
        mask = and_masks(mask, _by_lengths(others, lengths))
    return make_problem(
        query,
        key,
        value,
        mask=mask,
        bias=None if bias is None else _four_dimensions(bias)[..., : lengths[1]],
        scale=scaling,
        softcap=None if convention == "sdpa" else softcap,
        sinks=None if convention == "sdpa" else s_aux,
        # PyTorch's function and flash attention drop what they are told to.
        dropout=dropout if convention in ("sdpa", "flash") or module.training else None,
    )


def _without_mask(
    is_causal: bool, sliding_window: int | None, lengths: tuple[int, int]
) -> Mask | None:
    """What PyTorch's function hides if there is no mask: of several queries the first is at the
    first key, a single one is the last token."""
    query_len, kv_len = lengths
    if not is_causal or query_len == 1:
        past = None
        offset = None
    else:
        offset = None if query_len == kv_len else 0
        past = causal(offset)
    return and_masks(past, _window(sliding_window, is_causal, offset, kv_len))


def _flash(
    valid: Tensor | None, is_causal: bool, sliding_window: int | None, lengths: tuple[int, int]
) -> Mask | None:
    """What flash attention hides: padding, the future and what is beyond the window."""
    query_len, kv_len = lengths
    real, offset = None, None
    if valid is not None:
        # A cache may have room for more keys than the mask tells of.
        room = kv_len - valid.shape[-1]
        offset = valid.shape[-1] - query_len if room > 0 else None
        real = padding(nn.functional.pad(valid.bool(), (0, room)))
    past = causal(offset) if is_causal else None
    near = _window(sliding_window, is_causal, offset, kv_len)
    if near is not None and valid is not None and _is_scattered(valid.bool(), query_len):
        near = _among_real(valid.bool(), cast(int, sliding_window), is_causal, lengths)
    return and_masks(and_masks(past, real), near)


def _is_scattered(valid: Tensor, query_len: int) -> bool:
    """Whether there is padding between a query and a key, both real; the only query always is."""
    before = (~valid).cumsum(dim=-1)
    counts = valid.clone()
    if query_len == 1:
        counts[:, -1] = True
    least = before.masked_fill(~counts, valid.shape[-1]).amin(dim=-1)
    most = before.masked_fill(~counts, 0).amax(dim=-1)
    return bool((most > least).any())


def _among_real(
    valid: Tensor, sliding_window: int, is_causal: bool, lengths: tuple[int, int]
) -> Mask:
    """A window as flash attention counts it, which takes the padding out before."""
    query_len, kv_len = lengths
    place = valid.cumsum(dim=-1)
    behind = place[:, None, -query_len:, None] - place[:, None, None]
    near = behind < sliding_window
    if not is_causal:
        near = near & (behind > -sliding_window)
    return dense(nn.functional.pad(near, (0, kv_len - valid.shape[-1])))


def _window(
    sliding_window: int | None, is_causal: bool, offset: int | None, kv_len: int
) -> Mask | None:
    """A window that counts the query itself, on both sides if the future is seen."""
    if sliding_window is None or sliding_window >= kv_len:
        return None
    reach = sliding_window - 1
    return window(left=reach, right=None if is_causal else reach, offset=offset)


def _packed(others: Mapping[str, Any], lengths: tuple[int, int], batch: int) -> Mask | None:
    """The sequences that flash attention keeps apart if there is no mask: by where they begin, or
    else of a single row by positions that begin anew."""
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
    """Sequences packed into one row, from where each begins: (sequences + 1,)."""
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
    """The mask of FlexAttention, from the function that it holds."""
    batch, heads = blocks.shape[:2]
    device = blocks.kv_num_blocks.device
    return dense(create_mask(blocks.mask_mod, batch, heads, *lengths, device=device.type))


def _of_added(added: Tensor, dtype: torch.dtype) -> tuple[Mask | None, Tensor | None]:
    """What is added to the scores, as what it hides and what else it adds."""
    if not added.is_floating_point():
        return None, added.to(dtype)
    hidden = added <= torch.finfo(added.dtype).min
    rest = added.masked_fill(hidden, 0.0)
    mask = dense(~hidden) if bool(hidden.any()) else None
    return mask, rest if rest.requires_grad or bool((rest != 0).any()) else None


def _four_dimensions(tensor: Tensor) -> Tensor:
    """(…, query_len, kv_len) as (batch, num_heads, query_len, kv_len)."""
    return tensor[(None,) * (4 - tensor.ndim)]


def _brief(given: object) -> str:
    """A value in a few words."""
    if isinstance(given, Tensor):
        return f"<{given.dtype} {tuple(given.shape)}>".replace("torch.", "")
    return reprlib.repr(given)
