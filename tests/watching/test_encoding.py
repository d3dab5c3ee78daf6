"""Masks as files have them: any that can be written comes back as what it was."""

import json

import torch
from hypothesis import given, settings

import clearhead as ch
from clearhead._common.kinds import Filed
from clearhead.watching.encoding import Encoder, decode
from tests.masks.expressions import Expression, as_tensor, expressions, leaves, sizes


@settings(max_examples=20)
@given(expressions)
def test_a_mask_comes_back_as_it_was(expression: Expression) -> None:
    encoder = Encoder()
    written = json.loads(json.dumps(encoder.encode(expression.mask)))
    back = decode(written, encoder.tensors())
    assert back.describe() == expression.mask.describe()
    assert torch.equal(as_tensor(back, expression.sizes), expression.expected)


def test_every_kind_of_mask_is_drawn() -> None:
    """But what is made of others, and the documents of two texts, which have sizes of their own."""
    drawn: set[type] = set()

    @settings(max_examples=60, database=None)
    @given(sizes.flatmap(leaves))
    def draw(expression: Expression) -> None:
        drawn.add(type(expression.mask))

    draw()
    left = {
        name
        for name, kind in Filed.KINDS.items()
        if issubclass(kind, ch.Mask) and kind not in drawn
    }
    assert left == {"and", "or", "not", "each_document"}
