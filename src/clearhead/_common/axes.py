"""The names of the axes, as types, and what counts as a tensor or as a number of tokens.

`batch`, `num_heads` (of the queries), `num_kv_heads` (of keys and values), `query_len`, `kv_len`,
`head_dim` (width of a query and of a key) and `value_head_dim` (width of a value). The types say
what a function takes; they are checked at run time in the tests, and cost a user nothing.
"""

from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.errors import ArgumentError, ArgumentTypeError

Query = Float[Tensor, "batch num_heads query_len head_dim"]
Key = Float[Tensor, "batch num_kv_heads kv_len head_dim"]
Value = Float[Tensor, "batch num_kv_heads kv_len value_head_dim"]
Context = Float[Tensor, "batch num_heads query_len value_head_dim"]
Scores = Float[Tensor, "batch num_heads query_len kv_len"]
Weights = Float[Tensor, "batch num_heads query_len kv_len"]
Logsumexp = Float[Tensor, "batch num_heads query_len"]
Sinks = Float[Tensor, " num_heads"]
Visible = Bool[Tensor, "*#any query_len kv_len"]

QUERY_AXES = ("batch", "num_heads", "query_len", "head_dim")
KEY_AXES = ("batch", "num_kv_heads", "kv_len", "head_dim")
VALUE_AXES = ("batch", "num_kv_heads", "kv_len", "value_head_dim")


def named(tensor: Tensor, axes: tuple[str, ...]) -> str:
    """A tensor's sizes by the names of its axes, its dtype and its device, for a message.

    Fewer dimensions than names leave out the leading names, as everywhere in the package.

    Example:
        >>> import torch
        >>> named(torch.zeros(3, 5, 8), QUERY_AXES)
        '[num_heads=3, query_len=5, head_dim=8] float32 cpu'
    """
    sizes = tuple(tensor.shape)
    names = axes[len(axes) - len(sizes) :] if len(sizes) <= len(axes) else ()
    if names:
        inside = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    else:
        inside = ", ".join(str(size) for size in sizes)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"[{inside}] {dtype} {tensor.device}"


def check_tensor(name: str, given: object, expected: str = "a torch.Tensor") -> None:
    """Refuse what is no tensor, and a tensor whose numbers do not lie in memory as an array.

    Raises:
        ArgumentTypeError: code `<name>.type` or `<name>.layout`.
    """
    if not isinstance(given, Tensor):
        hint = " torch.as_tensor(…) makes a tensor of it." if hasattr(given, "__array__") else ""
        raise ArgumentTypeError(
            f"{name}.type", f"{name} must be {expected}; got {type(given).__name__}.{hint}"
        )
    if given.is_nested:
        raise ArgumentTypeError(
            f"{name}.layout",
            f"{name} must be a dense tensor; got a nested one. "
            "Pad it, and say which tokens are real: mask=clearhead.padding(lengths).",
        )
    if given.layout != torch.strided:
        raise ArgumentTypeError(
            f"{name}.layout",
            f"{name} must be a dense tensor; got one of layout {given.layout}. "
            ".to_dense() makes one of it.",
        )


def is_autocast(tensor: Tensor) -> bool:
    """Whether autocast is on where a tensor is; of the meta device it knows nothing.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_autocast(torch.ones(1)), is_autocast(torch.ones(1, device="meta"))
        (True, False)
    """
    # The name of a device is made anew each time that it is asked for.
    device = "cpu" if tensor.is_cpu else tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def whole(value: object) -> int | None:
    """The int that a whole number is, one of numpy's included; None for all else, as for a bool."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def check_length(name: str, length: object) -> int:
    """The length as an int, or a refusal of what is no number of tokens.

    Raises:
        ArgumentTypeError: code `length.type`, for what is not a whole number.
        ArgumentError: code `length.negative`, for one below zero.
    """
    tokens = whole(length)
    if tokens is None:
        raise ArgumentTypeError(
            "length.type", f"{name} must be a whole number of tokens; got {type(length).__name__}."
        )
    if tokens < 0:
        raise ArgumentError("length.negative", f"{name} must be 0 or more tokens; got {tokens}.")
    return tokens
