"""An error that was raised on purpose, and one that happened."""

from collections.abc import Callable

import pytest
import torch

from clearhead.checking.subject.refusals import deliberate, first_line, named_tensors


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of every kind
        call()
    return caught.value


def refuses() -> None:
    raise ValueError("the value must be\nas wide as the key")


def asserts() -> None:
    assert torch.ones(2).sum() == 3, "three are wanted"


@pytest.mark.parametrize("call", [refuses, asserts])
def test_in_so_many_words(call: Callable[[], object]) -> None:
    assert deliberate(raised(call))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(2, 3).view(5),
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(3)[5],
    ],
)
def test_by_an_operation(call: Callable[[], object]) -> None:
    assert not deliberate(raised(call))


def test_einops_raises_where_a_shape_does_not_fit() -> None:
    theirs: dict[str, Callable[[], object]] = {}
    exec(
        "def fails():\n    raise ValueError('Shape mismatch')",
        {"__name__": "einops.einops"},
        theirs,
    )
    assert not deliberate(raised(theirs["fails"]))


def test_an_error_that_was_never_raised_is_taken_at_its_word() -> None:
    assert deliberate(ValueError("no"))


def test_one_line() -> None:
    assert first_line(raised(refuses)) == "ValueError: the value must be"
    assert first_line(KeyError()) == "KeyError: "


def test_the_shapes_of_the_tensors_in_the_line_that_raised() -> None:
    def multiply(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return query @ keys

    with pytest.raises(RuntimeError) as caught:
        multiply(torch.zeros(2, 3), torch.zeros(4, 5))
    assert named_tensors(caught.value) == "\n  query is [2, 3], keys is [4, 5]"
