"""clearhead as an `attn_implementation` of transformers.

After `register()` every model of transformers that fetches its attention by name can be told to run
on the kernels of this package: when it is made, or later by `set_attn_implementation`.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError, missing_extra
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.full import Full, full
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.watching.hooks.transformers import NAME, Described, read_call

REMAPPED = "remap_positions_for_packed_sequence"

FUNCTIONS = (
    "causal_mask_function",
    "bidirectional_mask_function",
    "and_masks",
    "or_masks",
    "sliding_window_overlay",
    "sliding_window_bidirectional_overlay",
    "packed_sequence_mask_function",
    REMAPPED,
)
"""The functions of transformers that say who may see whom, as far as they are read."""

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""What a model of transformers looks its function of attention up in."""


def register(name: str = NAME) -> None:
    """Make clearhead an attention implementation of transformers, by this name.

    Models then run on `attend`, which picks the kernel, with all that they ask of it: grouped heads,
    windows, softcap, sinks, the relative positions of T5, dropout while they train, caches. Masks
    are descriptions of O(tokens) numbers as they go through the model. With
    `output_attentions=True` the model gives an `AttentionMatrix` for each layer, of the weights
    before dropout.

    A padded query that may attend to nothing gets zeros. What else a model hands to its attention
    and clearhead does not know is refused by name.

    Args:
        name: what to call it. Names that transformers gives a meaning to are refused.

    Raises:
        MissingExtraError: if transformers is not installed.
        ModelError: code `model.interface`, for a transformers without attention by name (before
            4.53).
        ArgumentTypeError: code `register.type`, for a name that is no string.
        ArgumentError: code `register.name`, for a name that is taken.

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
    if not isinstance(name, str):
        raise ArgumentTypeError(
            "register.type", f"name must be a string; got {type(name).__name__}."
        )
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise missing_extra("transformers", "models", "running a model of transformers") from error
    interface: Any = getattr(transformers, "AttentionInterface", None)
    masks: Any = getattr(transformers, "AttentionMaskInterface", None)
    if interface is None or masks is None:
        raise ModelError(
            "model.interface",
            "attention by name needs transformers 4.53 or later; this is "
            f"{transformers.__version__}.",
        )
    functions = interface._global_mapping
    free = name not in functions or functions[name] is _attention
    # transformers reads slashes, bars and the word flash in a name as kinds of kernels.
    if not name.isidentifier() or "flash" in name or name == "eager" or not free:
        raise ArgumentError(
            "register.name",
            "name must be an identifier without flash in it, and not one that transformers has, "
            f"{', '.join(['eager', *functions])}; got {name!r}.",
        )
    interface.register(name, _attention)
    masks.register(name, _mask)


def check_model(model: nn.Module) -> None:
    """Refuse a model that would not run on clearhead, though it takes the name.

    Some models of transformers keep to their own code of attention and never ask for another.
    `set_attn_implementation` only logs that.

    Raises:
        ArgumentTypeError: code `model.type`, for something that is not a module.
        ModelError: code `model.ignores-interface`, with the paths of the modules that attend by
            code of their own; `model.no-attention`, if no module attends.

    Example:
        >>> import transformers
        >>> from clearhead.integrations import attention
        >>> sizes = {"vocab_size": 50, "hidden_size": 16, "n_layer": 2, "n_head": 2}
        >>> model = transformers.BloomModel(transformers.BloomConfig(**sizes))
        >>> attention.check_model(model)
        Traceback (most recent call last):
        ...
        clearhead.errors.ModelError: [model.ignores-interface] BloomModel attends by code of its own, ...
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "model.type", f"model must be a torch.nn.Module; got {type(model).__name__}."
        )
    name = type(model).__name__
    attending = list(_attending(model))
    if not attending:
        raise ModelError(
            "model.no-attention",
            f"model must have modules that attend; none in {name} has Attention in the name of "
            "its class.",
        )
    own = {path: kind for path, kind in attending if not _asks_by_name(kind)}
    if own:
        shown = ", ".join(list(own)[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
        kinds = ", ".join(dict.fromkeys(kind.__name__ for kind in own.values()))
        raise ModelError(
            "model.ignores-interface",
            f"{name} attends by code of its own, whatever its attn_implementation says: {shown} "
            f"({kinds}).",
        )


def _attending(model: nn.Module) -> Iterator[tuple[str, type[nn.Module]]]:
    """The modules that attend, by the names of their classes: an attention with none inside."""
    named = {
        path: type(module)
        for path, module in model.named_modules()
        if "Attention" in type(module).__name__
    }
    for path, kind in named.items():
        if not any(other.startswith(f"{path}.") for other in named):
            yield path, kind


def _asks_by_name(kind: type[nn.Module]) -> bool:
    """Whether a method of a module looks its function of attention up."""
    methods = [
        inspect.unwrap(method)
        for parent in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for method in vars(parent).values()
        if inspect.isfunction(method)
    ]
    return any(INTERFACE in method.__code__.co_names for method in methods)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, AttentionMatrix | None]:
    """The function of attention as transformers calls it.

    Returns:
        The context, (batch, query_len, num_heads, value_head_dim), and the matrix if the model was
        asked for its attentions.
    """
    problem = read_call(NAME, module, query, key, value, attention_mask, **given)
    context = run(problem).transpose(1, 2).contiguous()
    if not _wanted(module, given):
        return context, None
    return context, _matrix(problem)


# A compiled graph cannot hold such an object: it is made between two graphs.
@torch.compiler.disable()  # pyright: ignore[reportUntypedFunctionDecorator]
def _matrix(problem: Problem) -> AttentionMatrix:
    """The weights of a call, before dropout."""
    # A cache with a fixed room writes to its keys later.
    key = problem.key if problem.key.requires_grad else problem.key.clone()
    return matrix_of(problem.replace(key=key))


def _wanted(module: nn.Module, given: dict[str, Any]) -> bool:
    """Whether the model was asked for its attentions.

    Not every model hands the question on, but most collect what their modules return.
    """
    if given.get("output_attentions"):
        return True
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # before transformers 5.3
        return True
    return any("attentions" in name for name in _active_collector.get() or ())


def _mask(
    batch_size: int,
    kv_length: int,
    q_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    cache_position: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """The function of masks as transformers calls it; its own for PyTorch's function does the rest.

    Args:
        batch_size, kv_length, q_length: the sizes of the mask.
        q_offset: position of the first query, in tokens.
        kv_offset: position of the first key, in tokens.
        mask_function: says of indices of sample, head, query and key whether they see each other.
        attention_mask: bool, (batch, tokens), True at real tokens from position 0 on.
        allow_is_causal_skip: False, among other cases, for a step that may be compiled.
        device: where the mask is wanted.
        cache_position: positions of the queries, in the place of q_length and q_offset before
            transformers 5.4.
        **others: what is for other implementations, and how the mask is to be filled.

    Returns:
        bool, (batch, 1, query_len, kv_len), True = may attend.
    """
    masking = _masking()
    function: Callable[..., Any] = mask_function or masking.causal_mask_function
    queries: dict[str, Any] = {"q_length": q_length, "q_offset": q_offset, "device": device}
    if cache_position is not None:
        queries = {"cache_position": cache_position}
        q_length, q_offset, device = len(cache_position), cache_position[0], cache_position.device
    described = None
    # What is compiled takes ordinary tensors, and a mask of one query is small anyway.
    if not torch.compiler.is_compiling() and (q_length > 1 or allow_is_causal_skip):
        shift = int(q_offset) - kv_offset
        real = _real(attention_mask, kv_length, kv_offset)
        described = _and(_described(function, shift, (q_length, kv_length)), real)
    if described is None:
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
    return Described(described, (batch_size, 1, q_length, kv_length), torch.device(device))


def _masking() -> Any:
    """Where transformers makes its masks; imported in here so that the compiler can follow."""
    from transformers import masking_utils

    return masking_utils


def _real(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Mask | None:
    """Which keys are real, as a mask; None for a mask of other dimensions."""
    if attention_mask is None:
        return full()
    if attention_mask.ndim != 2:
        return None
    room = max(0, kv_offset + kv_length - attention_mask.shape[1])
    valid = nn.functional.pad(attention_mask.bool(), (0, room))
    valid = valid[:, kv_offset : kv_offset + kv_length]
    return full() if bool(valid.all()) else padding(valid)


def _described(function: Callable[..., Any], shift: int, lengths: tuple[int, int]) -> Mask | None:
    """What a function of transformers says about who may see whom, if it is known by its code.

    Args:
        function: of indices of sample, head, query and key.
        shift: position of the first query, counted from the first key.
        lengths: query_len and kv_len.

    Returns:
        A mask of O(tokens) numbers, or None for any other function.
    """
    query_len, kv_len = lengths
    # The last query is on the last key, unless a cache has more room than tokens.
    offset = None if shift == kv_len - query_len else shift
    held = _held(function)
    match _name(function):
        case "causal_mask_function":
            return causal(offset)
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
            return reduce(
                _or, (_described(each, shift, lengths) for each in held["mask_functions"])
            )
        case "and_masks":
            parts = held["mask_functions"]
            if any(_name(each) == "packed_sequence_mask_function" for each in parts):
                # Positions count on within a sequence, and masks of positions compare distances.
                parts = [
                    _held(each)["mask_function"] if _name(each) == REMAPPED else each
                    for each in parts
                ]
            return reduce(_and, (_described(each, shift, lengths) for each in parts))
        case _:
            return None


def _name(function: Callable[..., Any]) -> str | None:
    """What `masking_utils` calls a function, or the one that has it inside and made it."""
    masking = _masking()
    code = getattr(function, "__code__", None)
    for name in FUNCTIONS:
        known = getattr(masking, name, None)
        if known is not None and (code is known.__code__ or code in known.__code__.co_consts):
            return name
    return None


def _held(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a function holds from where it was made."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or cells is None:
        return {}
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}


def _and(mask: Mask | None, other: Mask | None) -> Mask | None:
    """What both show; None if one of them is not known."""
    if mask is None or other is None or isinstance(other, Full):
        return None if other is None else mask
    return other if isinstance(mask, Full) else mask & other


def _or(mask: Mask | None, other: Mask | None) -> Mask | None:
    """What one of them shows; None if one of them is not known."""
    if mask is None or other is None:
        return None
    return full() if isinstance(mask, Full) or isinstance(other, Full) else mask | other
