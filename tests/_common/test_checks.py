"""The checks of plain arguments, and what they say."""

import re
from typing import Any

import pytest

from clearhead._common.checks import check_bool, check_dropout, check_sizes, is_number
from clearhead.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (0, ArgumentError, "[argument.size] width must be 1 or more; got 0."),
        (-3, ArgumentError, "[argument.size] width must be 1 or more; got -3."),
        (2.0, ArgumentTypeError, "[argument.type] width must be a whole number; got float."),
        (True, ArgumentTypeError, "[argument.type] width must be a whole number; got bool."),
    ],
)
def test_sizes(size: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        check_sizes(height=2, width=size)


def test_a_switch_is_no_number() -> None:
    check_bool("bias", False)
    text = "[bias.type] bias must be True or False; got 1."
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(text)}$"):
        check_bool("bias", 1)


@pytest.mark.parametrize("dropout", [None, 0, 0.0, 0.5, 0.999])
def test_a_probability_below_one(dropout: float | None) -> None:
    check_dropout(dropout)


@pytest.mark.parametrize(
    ("dropout", "error", "ending"),
    [
        (1.0, ArgumentError, "[dropout.value] {} 1.0."),
        (-0.1, ArgumentError, "[dropout.value] {} -0.1."),
        (float("nan"), ArgumentError, "[dropout.value] {} nan."),
        ("0.1", ArgumentTypeError, "[dropout.type] {} str."),
        (True, ArgumentTypeError, "[dropout.type] {} bool."),
    ],
)
def test_no_probability(dropout: Any, error: type[Exception], ending: str) -> None:
    words = "dropout must be a probability in [0, 1), or None for no dropout; got"
    with pytest.raises(error, match=f"^{re.escape(ending.format(words))}$"):
        check_dropout(dropout)


def test_true_is_no_number() -> None:
    assert is_number(1)
    assert is_number(0.5)
    assert not is_number(True)
    assert not is_number("1")
