"""The checks of plain arguments, and what they say."""

import pytest

from clearhead._common.checks import check_bool, check_dropout, check_sizes, is_number
from tests.refusals import assert_refused, refusals

test_sizes = refusals(
    lambda size: check_sizes(height=2, width=size),
    (0, "argument.size", "width // 0"),
    (-3, "argument.size", "width // -3"),
    (2.0, "argument.type", "width // float"),
    (True, "argument.type", "width // bool"),
)


def test_a_switch_is_no_number() -> None:
    check_bool("bias", False)
    assert_refused(lambda: check_bool("bias", 1), "bias.type", "bias // 1")


@pytest.mark.parametrize("dropout", [None, 0, 0.0, 0.5, 0.999])
def test_a_probability_below_one(dropout: float | None) -> None:
    check_dropout(dropout)


test_no_probability = refusals(
    check_dropout,
    (1.0, "dropout.value", "dropout // a probability in [0, 1), or None for no dropout // 1.0"),
    (-0.1, "dropout.value", "dropout // a probability in [0, 1), or None for no dropout // -0.1"),
    (
        float("nan"),
        "dropout.value",
        "dropout // a probability in [0, 1), or None for no dropout // nan",
    ),
    ("0.1", "dropout.type", "dropout // a probability in [0, 1), or None for no dropout // str"),
    (True, "dropout.type", "dropout // a probability in [0, 1), or None for no dropout // bool"),
)


def test_true_is_no_number() -> None:
    assert is_number(1)
    assert is_number(0.5)
    assert not is_number(True)
    assert not is_number("1")
