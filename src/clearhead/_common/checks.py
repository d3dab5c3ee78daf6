"""Checks of arguments that several packages share; each error names the argument."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, cast, get_args

import torch
from torch import Tensor

from clearhead._common.torch_internals import is_concrete
from clearhead._text import kind_of, shown
from clearhead.errors import ArgumentError, ArgumentTypeError, DeviceError

# The names of the axes, for messages. `head_dim` is the width of a query and of a key, `num_heads` are of the queries.
QUERY_AXES = ("batch", "num_heads", "query_len", "head_dim")
KEY_AXES = ("batch", "num_kv_heads", "kv_len", "head_dim")
VALUE_AXES = ("batch", "num_kv_heads", "kv_len", "value_head_dim")


def describe_tensor(tensor: Tensor, axes: tuple[str, ...]) -> str:
    """Return a tensor's sizes by the names of its axes, its dtype and its device, for a message.

    Fewer dimensions than names leave out the leading names; for more there are no names.

    Example:
        >>> import torch
        >>> describe_tensor(torch.zeros(3, 5, 8), QUERY_AXES)
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
    """Raise ArgumentTypeError unless an argument is a dense tensor: strided, not nested; one of the meta device passes.

    `expected` says in words what it must be.

    Raises:
        ArgumentTypeError: code `<name>.type` or `<name>.layout`.
    """
    if not isinstance(given, Tensor):
        hint = " torch.as_tensor(…) makes a tensor of it." if hasattr(given, "__array__") else ""
        raise ArgumentTypeError(
            f"{name}.type", f"{name} must be {expected}; got {kind_of(given)}.{hint}"
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


def check_has_numbers(name: str, tensor: Tensor) -> None:
    """Raise DeviceError for a tensor without data: on the meta device or in FakeTensorMode.

    Raises:
        DeviceError: code `<name>.meta`.
    """
    if not is_concrete(tensor):
        kind = "on the meta device" if tensor.is_meta else "of FakeTensorMode"
        raise DeviceError(f"{name}.meta", f"{name} must hold numbers; got a tensor {kind}.")


def check_ids(tokens: object) -> Tensor:
    """Return token ids, unchanged, after checking that they are a dense tensor of integers.

    Raises:
        ArgumentTypeError: code `tokens.type` or `tokens.layout`.
    """
    check_tensor("tokens", tokens, "a tensor of ids, or None")
    assert isinstance(tokens, Tensor)
    if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
        raise ArgumentTypeError(
            "tokens.type", f"tokens must be ids, which are whole numbers; got {tokens.dtype}."
        )
    return tokens


def as_int(value: object) -> int | None:
    """Return an integer, also of NumPy, as an int; None for anything else, such as a bool.

    A SymInt of torch.export or torch.compile stays one.
    """
    if isinstance(value, torch.SymInt):
        return cast(int, value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def as_ints(values: Iterable[object]) -> tuple[int, ...] | None:
    """Return integers as a tuple of ints; None if one of the values is not an integer."""
    numbers = []
    for each in values:
        number = as_int(each)
        if number is None:
            return None
        numbers.append(number)
    return tuple(numbers)


def as_place(value: object, length: int) -> int | None:
    """Return an index normalised into [0, length), or None if it is not an integer or out of range.

    Example:
        >>> as_place(2, 3), as_place(-1, 3), as_place(3, 3), as_place(True, 3)
        (2, 2, None, None)
    """
    number = as_int(value)
    return number % length if number is not None and -length <= number < length else None


def check_head_numbers(heads: Iterable[object], *, from_end: bool = False) -> tuple[int, ...]:
    """Return distinct head numbers as a tuple of at least one, or raise.

    With `from_end` negative numbers are allowed; they count from the last head of a layer.

    Raises:
        ArgumentTypeError: code `heads.type`, if a number is not an integer.
        ArgumentError: code `heads.value`, for no number, a repeated or, without `from_end`, a negative one.
    """
    numbers = as_ints(heads)
    if numbers is None:
        raise ArgumentTypeError("heads.type", f"heads must hold whole numbers; got {shown(heads)}.")
    negative = not from_end and any(each < 0 for each in numbers)
    if not numbers or negative or len(set(numbers)) < len(numbers):
        least = "" if from_end else "0 or more, "
        raise ArgumentError(
            "heads.value",
            f"heads must be different numbers, {least}at least one; got {shown(list(numbers))}.",
        )
    return numbers


def check_length(name: str, length: object) -> int:
    """Return a number of tokens as an int, or raise an error.

    Raises:
        ArgumentTypeError: code `length.type`, for what is not a whole number.
        ArgumentError: code `length.negative`, for one below zero.
    """
    tokens = as_int(length)
    if tokens is None:
        raise ArgumentTypeError(
            "length.type", f"{name} must be a whole number of tokens; got {type(length).__name__}."
        )
    if tokens < 0:
        raise ArgumentError("length.negative", f"{name} must be 0 or more; got {shown(tokens)}.")
    return tokens


def check_sizes(**sizes: Any) -> None:
    """Raise unless each size is a Python int of 1 or more, or a SymInt of 1 or more; a bool is refused.

    Raises:
        ArgumentTypeError: code `argument.type`, for anything else, such as a float or an integer of NumPy.
        ArgumentError: code `argument.size`, below 1, or from 2⁶³ on.
    """
    for name, size in sizes.items():
        is_open = isinstance(size, torch.SymInt)
        if not is_open and (not isinstance(size, int) or isinstance(size, bool)):
            raise ArgumentTypeError(
                "argument.type", f"{name} must be a whole number; got {type(size).__name__}."
            )
        if size < 1 or not (is_open or size < 1 << 63):
            raise ArgumentError("argument.size", f"{name} must be 1 or more; got {shown(size)}.")


def check_bool(name: str, value: Any) -> None:
    """Raise ArgumentTypeError, code `<name>.type`, unless a value is True or False; numbers are not accepted."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(
            f"{name}.type", f"{name} must be True or False; got {shown(value)}."
        )


def check_number(
    name: str, given: object, expected: str, allowed: Callable[[float], bool]
) -> float:
    """Return a real number as a float, after checking its type and that `allowed` is True for it.

    `expected` says in words what it must be. A bool is no number, and one too large for a float counts as ∞.

    Raises:
        ArgumentTypeError: code `<name>.type`.
        ArgumentError: code `<name>.value`.
    """
    if not isinstance(given, Real) or isinstance(given, bool):
        raise ArgumentTypeError(f"{name}.type", f"{name} must be {expected}; got {kind_of(given)}.")
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if not allowed(number):
        raise ArgumentError(f"{name}.value", f"{name} must be {expected}; got {number}.")
    return number


def check_choice(name: str, given: object, choices: Any, more: str = "") -> None:
    """Raise ArgumentError unless a value is one of the words of the Literal `choices`.

    Raises:
        ArgumentError: code `<name>.value`; it lists the words, and then `more`.
    """
    if given not in get_args(choices):
        words = ", ".join(f'"{each}"' for each in get_args(choices)) + more
        raise ArgumentError(f"{name}.value", f"{name} must be one of {words}; got {shown(given)}.")


def arguments_of(inputs: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call, by position and by name: of one tensor, a tuple, or a mapping.

    Raises:
        ArgumentTypeError: code `inputs.type`.

    Example:
        >>> arguments_of((1, 2)), arguments_of({"x": 3})
        (((1, 2), {}), ((), {'x': 3}))
    """
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, Tensor | tuple):
        return inputs if isinstance(inputs, tuple) else (inputs,), {}
    raise ArgumentTypeError(
        "inputs.type",
        "inputs must be a tensor, a tuple of arguments, or a mapping of named arguments; got "
        f'{kind_of(inputs)}. Of a text, tokenizer(text, return_tensors="pt") is one; of a list of ids, '
        "torch.tensor(ids); of any other single argument, (argument,).",
    )


def check_dropout(dropout: Any) -> float | None:
    """Return the probability as a float, None for None.

    Raises ArgumentTypeError, `dropout.type`, for no number, and ArgumentError, `dropout.value`, unless it is in [0, 1).
    """
    if dropout is None:
        return None
    expected = "a probability in [0, 1), or None for no dropout"
    return check_number("dropout", dropout, expected, lambda share: 0 <= share < 1)


def is_number(value: Any) -> bool:
    """Return True for an int that a float can hold, or a float, NaN and ∞ included; False for a bool."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < 1024  # it has a float
    return isinstance(value, float)
