"""Vectors behind the output projection, held against hooks."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing.layer_output import AddToOutput, ToCome
from clearhead.errors import ArgumentError, EditError
from clearhead.watching.projections import projection_of
from tests.integrations.models import KINDS, inputs, make
from tests.refusals import assert_refused

WIDTH, HEADS, LEN = 12, 4, 5


@pytest.mark.parametrize("name", list(KINDS))
@torch.no_grad()
def test_a_vector_behind_the_projection_is_that_of_a_hook(name: str) -> None:
    model, given = make(name, KINDS[name].implementations[-1]).double(), inputs(name)
    vector = torch.randn(24, dtype=torch.float64)
    with ch.watch(model, keep="contexts") as seen:
        plain = model(**given)[0]
    for path in seen:
        projection = projection_of(model, path)
        assert projection is not None

        def add(module: Any, inputs: Any, output: Tensor) -> Tensor:
            output = output.clone()
            output[..., 1:3, :] += 2 * vector
            return output

        handle = projection.register_forward_hook(add)
        expected = model(**given)[0]
        handle.remove()
        with ch.edit(model) as edit:
            edit[path].add(vector, scale=2.0, query=[1, 2], output=True)
            found = model(**given)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert edit.report[0].queries == 6
    assert torch.equal(model(**given)[0], plain)


def test_gradients_rows_and_nested_edits() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(2, LEN, WIDTH)
    vector = torch.randn(WIDTH, requires_grad=True)
    rows = torch.zeros(2, LEN, dtype=torch.bool)
    rows[1, 3] = True
    before = layer(x)
    with ch.edit(layer) as outer, ch.edit(layer) as inner:
        outer[0].add(vector, query=rows, output=True)
        inner[0].add(vector, query=rows, output=True, scale=3.0)
        output = layer(x)
    expected = before.detach().clone()
    expected[1, 3] += 4 * vector.detach()
    torch.testing.assert_close(output, expected)
    assert torch.equal(output[~rows], before[~rows])
    (grad,) = torch.autograd.grad(output.sum(), vector)
    assert grad.tolist() == [4.0] * WIDTH


def test_what_has_no_projection_of_its_own_is_refused() -> None:
    theirs, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), torch.randn(1, LEN, WIDTH)
    edit = ch.edit(theirs)
    edit[0].add(torch.ones(WIDTH), output=True)
    text = "[edit.output] the output projection of '' of MultiheadAttention did not run"
    with pytest.raises(EditError, match=re.escape(text)), edit:
        theirs(x, x, x)
    layer = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
    edit = ch.edit(layer)
    edit[0].add(torch.ones(3), output=True)
    text = "[edit.vector] vector must have shape (embed_dim,) = (12,) in the model; got (3,)."
    with pytest.raises(EditError, match=re.escape(text)), edit:
        layer(x)
    text = "[edit.output] output=True adds behind the output projection, where the heads are summed"
    with pytest.raises(ArgumentError, match=re.escape(text)):
        edit[0].heads[1].add(torch.ones(WIDTH), output=True)

    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    bare = Bare()
    edit = ch.edit(bare)
    edit[""].add(torch.ones(3), output=True)
    text = "[edit.output] the output projection of the model is not known"
    with pytest.raises(EditError, match=re.escape(text)), edit:
        bare(x)
    coming = ToCome(AddToOutput(slice(None)), layer, torch.ones(2, 3, dtype=torch.bool), "")
    assert_refused(lambda: coming.added(torch.zeros(2, 4, WIDTH)), "edit.output", "the model // 6")


@torch.no_grad()
def test_a_run_that_raised_leaves_nothing_to_add() -> None:
    layer, x = ch.MultiHeadAttention(WIDTH, num_heads=HEADS), torch.randn(1, LEN, WIDTH)
    expected = layer(x) + 1

    def stop(module: Any, given: Any) -> None:
        raise KeyError

    with ch.edit(layer) as edit:
        edit[0].add(torch.ones(WIDTH), output=True)
        handle = layer.output_projection.register_forward_pre_hook(stop)
        with pytest.raises(KeyError):
            layer(x)
        handle.remove()
        torch.testing.assert_close(layer(x), expected)
