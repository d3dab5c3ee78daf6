"""Checks of plain arguments that several parts of the package take."""

from typing import Any

from clearhead.errors import ArgumentError, ArgumentTypeError


def check_sizes(**sizes: Any) -> None:
    """Refuse sizes that are no whole numbers of 1 or more."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise ArgumentTypeError(
                "argument.size", f"{name} must be a whole number; got {type(size).__name__}."
            )
        if size < 1:
            raise ArgumentError("argument.size", f"{name} must be 1 or more; got {size}.")


def check_switch(name: str, value: Any) -> None:
    """Refuse what is neither True nor False; a number is not read as one of them."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name}.type", f"{name} must be True or False; got {value!r}.")


def check_dropout(dropout: Any) -> None:
    """Refuse what is neither None nor a probability below 1."""
    if dropout is None:
        return
    expected = "dropout must be a probability in [0, 1), or None for no dropout; got"
    if not is_number(dropout):
        raise ArgumentTypeError("dropout.type", f"{expected} {type(dropout).__name__}.")
    if not 0 <= dropout < 1:
        raise ArgumentError("dropout.value", f"{expected} {dropout}.")


def is_number(value: Any) -> bool:
    """Whether it is an int or a float; True and False are not numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool)
