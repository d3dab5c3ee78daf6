"""A matrix that somebody takes for a tensor or an array: nothing is computed, and the answer has a way."""

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch

QUERY = torch.zeros(1, 2, 3, 4)
HUGE = torch.zeros(1, 1, 1, 8).expand(1, 1, 3_000_000, 8)
PART = "index what is needed, such as A[..., 0, :]"


@pytest.fixture
def matrix() -> Any:
    return ch.AttentionMatrix(HUGE, HUGE)


@pytest.mark.parametrize(
    "call",
    [
        torch.as_tensor,
        torch.tensor,
        lambda it: torch.tensor([it, it]),
        torch.from_dlpack,
        lambda it: torch.stack([it, it]),
        lambda it: torch.softmax(it, dim=-1),
        lambda it: torch.add(torch.zeros(1), it),
        np.asarray,
        np.from_dlpack,
        len,
    ],
)
def test_nothing_makes_a_tensor_of_it_in_passing(
    matrix: Any, call: Callable[[Any], object]
) -> None:
    with pytest.raises(TypeError) as raised:
        call(matrix)
    assert isinstance(raised.value, ch.errors.ArgumentTypeError)
    assert raised.value.code == "matrix.array"
    assert raised.value.message.startswith("an AttentionMatrix is no ")
    assert raised.value.message.endswith(
        f", since it is never in memory as a whole: {PART}, or take all of it with A.dense()."
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("numpy", f"it is no tensor: {PART}.numpy(…), or take all of it with A.dense().numpy(…)."),
        ("mean", "A.dense().mean(…). Or write A.pool(rows, columns), a small map."),
        ("T", "A.dense().T. Or write A.mT, for products."),
        ("size", "Or write A.shape."),
        ("cpu", "A.dense().cpu(…)."),
        (
            "weights",
            "write A[sample, head, query, key], which is a weight, or A.dense() for all of them.",
        ),
        ("attentions", "which is a weight"),
    ],
)
def test_the_words_of_a_tensor(matrix: Any, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(says)) as raised:
        getattr(matrix, name)
    assert isinstance(raised.value, ch.errors.NoAttributeError)
    assert raised.value.code == "attribute.name"
    assert not hasattr(matrix, name)


def test_norms_answer_as_well() -> None:
    norms: Any = ch.AttentionMatrix(QUERY, QUERY, value=QUERY).norms()
    with pytest.raises(AttributeError) as raised:
        _ = norms.T
    assert raised.value.args[1].endswith("A.dense().T.")
    with pytest.raises(ch.errors.ArgumentTypeError, match="a Norms is no array"):
        np.asarray(norms)


def test_what_no_tensor_has_is_simply_not_there(matrix: Any) -> None:
    for name in ("entrop", "_ipython_display_", "__array_interface__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'") as raised:
            getattr(matrix, name)
        assert not isinstance(raised.value, ch.errors.ClearheadError)


def test_it_is_still_an_object() -> None:
    empty = ch.AttentionMatrix(QUERY[:0], QUERY[:0])
    assert empty
    assert copy.deepcopy(empty).shape == empty.shape
    assert [each.shape for each in ch.AttentionMatrix(QUERY, QUERY)] == [(2, 3, 3)]
