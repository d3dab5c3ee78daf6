"""Masks made of masks: the laws of `&`, `|` and `~`, and their words."""

import operator
import re
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from tests.masks.expressions import (
    Expression,
    Sizes,
    as_tensor,
    expressions,
    expressions_for,
    sizes,
)


class Three(NamedTuple):
    """Three masks for the same sizes."""

    a: Expression
    b: Expression
    c: Expression


def three_of(sizes: Sizes) -> st.SearchStrategy[Three]:
    one = expressions_for(sizes)
    return st.builds(Three, one, one, one)


three = sizes.flatmap(three_of)


def same(left: ch.Mask, right: ch.Mask, sizes: Sizes) -> bool:
    return torch.equal(as_tensor(left, sizes), as_tensor(right, sizes))


@given(expressions)
def test_an_expression_of_masks_is_that_of_their_tensors(expression: Expression) -> None:
    assert torch.equal(as_tensor(expression.mask, expression.sizes), expression.expected)


@settings(max_examples=25)
@given(three)
def test_the_laws_of_the_operators(masks: Three) -> None:
    a, b, c = (each.mask for each in masks)
    sizes = masks.a.sizes
    one, other, third = (as_tensor(each, sizes) for each in (a, b, c))
    for both in (operator.and_, operator.or_):
        found = as_tensor(both(both(a, b), ~c), sizes)
        assert torch.equal(found, both(both(one, other), ~third))
    # Of de Morgan; distributive; twice the opposite; neutral and absorbing.
    assert same(~(a & b), ~a | ~b, sizes)
    assert same(~(a | b), ~a & ~b, sizes)
    assert same(a & (b | c), (a & b) | (a & c), sizes)
    assert same(a | (b & c), (a | b) & (a | c), sizes)
    assert same(~~a, a, sizes)
    assert same(a & ch.full(), a, sizes)
    assert same(a | ~ch.full(), a, sizes)
    assert as_tensor(a | ch.full(), sizes).all()
    assert not as_tensor(a & ~a, sizes).any()


@settings(max_examples=30)
@given(expressions)
def test_the_description_is_an_expression(expression: Expression) -> None:
    """Python reads it as it was built: brackets stand where they are needed."""
    text = re.sub(r"\w+\([^()]*\)", "full()", expression.mask.describe())
    assert eval(text, {"full": ch.full}).describe() == text


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (ch.causal() & ch.full() & ch.prefix(1), "causal() & full() & prefix(1)"),
        (ch.causal() & (ch.full() | ch.prefix(1)), "causal() & (full() | prefix(1))"),
        (ch.causal() & ch.full() | ch.prefix(1), "(causal() & full()) | prefix(1)"),
        (ch.causal() | (ch.full() & ch.prefix(1)), "causal() | (full() & prefix(1))"),
        (~(ch.causal() | ch.prefix(1)), "~(causal() | prefix(1))"),
        (~~ch.causal(), "~~causal()"),
        (~ch.causal() & ch.full(), "~causal() & full()"),
    ],
)
def test_brackets(mask: ch.Mask, text: str) -> None:
    assert mask.describe() == text


def test_a_lone_tensor_on_the_left_is_refused_as_on_the_right() -> None:
    tensor = torch.ones(2, 2).bool()
    for combine in (operator.and_, operator.or_):
        for left, right in ((tensor, ch.causal()), (ch.causal(), tensor)):
            with pytest.raises(
                ch.errors.ArgumentTypeError, match=r"Wrap it: clearhead\.dense\(tensor\)"
            ):
                combine(left, right)
