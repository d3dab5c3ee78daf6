"""The counts of what an edit changed, and what is said of an operation that changed nothing."""

import re
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clearhead as ch
from clearhead.errors import EditError, EditWarning
from tests.refusals import assert_refused, wrong
from tests.watching.models import OwnSoftmax

WIDTH, HEADS, LEN = 12, 4, 6


def layer() -> ch.MultiHeadAttention:
    return ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal())


def test_each_operation_has_its_counts() -> None:
    model, x = nn.Sequential(layer(), layer()), torch.randn(2, LEN, WIDTH)
    with ch.edit(model) as edit:
        edit[0].heads[0, 1].hide(query=slice(2, 4), key=[1, 3])
        edit[0].heads[2].scale(key=4, by=2.0)
        edit["*"].heads[-1].ablate()
        edit[1].heads[0].hide(mask=ch.sliding_window(left=1, right=0))
        model(x)
        model(x[:1])
    assert [tuple(row) for row in edit.report] == [
        # Query 2 sees key 1, query 3 both.
        ("0", "heads[0, 1].hide", 2, 2, 3 * 2 * 2),
        ("0", "heads[2].scale(by=2.0)", 2, 1, 3 * 2),
        ("*", "heads[-1].ablate", 4, 2, 2 * 3 * LEN),
        (
            "1",
            "heads[0].hide(mask=sliding_window(left=1, right=0))",
            2,
            1,
            3 * 4,
        ),
    ]
    assert list(edit.report[:2]) == list(edit.report)[:2]
    assert repr(edit.report[:2]).splitlines() == [
        "layer  operation               calls  heads  queries",
        "0      heads[0, 1].hide            2      2       12",
        "0      heads[2].scale(by=2.0)      2      1        6",
    ]
    assert "heads[0, 1].hide" in edit.report._repr_html_()
    with edit:
        model(x[:1])
    assert edit.report[0].queries == 4


def test_padding_and_checkpoints_do_not_count_twice() -> None:
    model, x = layer(), torch.randn(2, LEN, WIDTH, requires_grad=True)
    valid = torch.arange(LEN) < torch.tensor([[2], [LEN]])
    with ch.edit(model) as edit:
        edit[0].heads[0].hide(key=3)
        output: Any = checkpoint(lambda x: model(x, valid=valid), x, use_reentrant=False)
        output.sum().backward()
    assert [row.queries for row in edit.report] == [3]
    assert edit.report[0].calls == 1


NOTHING: dict[str, dict[str, Any]] = {
    "no such token": {"key": torch.zeros(2, LEN, dtype=torch.bool)},
    "none": {"key": []},
    "the future": {"query": 2, "key": slice(3, None)},
    "all shown": {"mask": ch.full()},
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_changes_nothing_is_said_and_keeps_every_bit(name: str) -> None:
    model, x = layer(), torch.randn(2, LEN, WIDTH)
    text = "[edit.no-effect] nothing in MultiHeadAttention was changed by heads[1].hide"
    edit = ch.edit(model)
    edit[0].heads[1].hide(**NOTHING[name])
    with pytest.warns(EditWarning, match=re.escape(text)) as said, edit:
        found = model(x)
    assert torch.equal(found, model(x))
    assert edit.report[0][2:] == (1, 1, 0)
    assert said[0].filename == __file__


def test_an_operation_that_no_run_follows_is_refused() -> None:
    model, x = nn.Sequential(layer(), layer()), torch.randn(1, LEN, WIDTH)

    def late() -> None:
        with ch.edit(model) as edit:
            model(x)
            edit[0].ablate()

    def never() -> None:
        with ch.edit(model) as edit:
            edit[0].ablate()

    assert_refused(late, "edit.not-run", "'0' // Sequential // ablate")
    assert_refused(never, "edit.not-run", "'0' // Sequential // ablate")
    text = "[edit.no-effect] 0 operations were added, so that Sequential was not edited. An operation is a call"
    asked: list[Any] = [
        lambda edit: None,
        lambda edit: edit[0].heads[1],
        lambda edit: edit[0].heads[1].ablate,
    ]
    for ask in asked:
        with pytest.warns(EditWarning, match=re.escape(text)) as said, ch.edit(model) as edit:
            ask(edit)
        assert said[0].filename == __file__
    with ch.edit(model) as edit:
        edit[0].ablate()
        edit.clear()


def test_a_model_that_is_edited_in_part_says_so() -> None:
    model, x = nn.Sequential(layer(), OwnSoftmax(), layer()), torch.randn(1, LEN, WIDTH)
    text = "[edit.missing] Sequential attended in 1 place that was not edited:\n  - 1 (OwnSoftmax): it "
    edit = ch.edit(model)
    edit["*"].heads[0].ablate()
    with pytest.warns(EditWarning, match=re.escape(text)) as said, edit:
        model(x)
    assert said[0].filename == __file__
    assert [each.path for each in edit.missing] == ["1"]
    with warnings.catch_warnings(action="ignore"), ch.watch(model) as seen, ch.edit(model) as edit:
        edit["*"].ablate()
        model(x)
    assert list(seen.missing) == edit.missing
    with warnings.catch_warnings(action="error"), ch.edit(model, strict=True) as edit:
        edit[0].ablate()  # which is all that was asked for
        model(x)
    edit = ch.edit(model, strict=True)
    edit["*"].ablate()
    with pytest.raises(EditError, match=re.escape(text)), edit:
        model(x)
    assert_refused(lambda: ch.edit(model, strict=wrong(1)), "strict.type", "strict // 1")


def test_effects_of_a_part_say_so() -> None:
    model, x = nn.Sequential(layer(), OwnSoftmax()), torch.randn(1, LEN, WIDTH)
    options: dict[str, Any] = {"metric": lambda output: output.sum(), "progress": False}
    with pytest.warns(EditWarning, match="attended in 1 place that was not edited") as said:
        assert len(ch.effects(model, x, **options)) == HEADS
    assert [each.filename for each in said] == [__file__]
    with warnings.catch_warnings(action="error"):
        ch.effects(model, x, layers=["0"], **options)


def test_weights_that_are_returned_are_no_softmax_of_its_own() -> None:
    model, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), torch.randn(1, LEN, WIDTH)
    with warnings.catch_warnings(action="error"), ch.edit(model) as edit, ch.watch(model) as seen:
        edit[""].heads[0].ablate()
        model(x, x, x)
    assert edit.missing == list(seen.missing) == []


def test_numbers_that_cannot_be_read_are_not_counted() -> None:
    class Batched(nn.Module):
        def forward(self, x: Tensor, shown: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, shown)

    model, x = Batched(), torch.randn(3, 1, 2, LEN, 4)
    shown = torch.rand(3, 1, 2, LEN, LEN) < 0.7
    with (
        warnings.catch_warnings(action="ignore"),
        ch.edit(model) as edit,
    ):  # of PyTorch, for its speed
        edit[""].hide(key=1)
        found = torch.vmap(model)(x, shown)
        alone = torch.stack([model(*each) for each in zip(x, shown, strict=True)])
    torch.testing.assert_close(found, alone)
    assert edit.report[0].queries is None
