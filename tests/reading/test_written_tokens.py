"""The tokens that heads raise and lower, held against plain hooks and the unembedding, in float64."""

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.errors import SelectionError
from clearhead.reading import written_tokens as module
from tests.reading.test_logit_shares import (
    EXACT,
    HEADS,
    IDS,
    LEN,
    MODELS,
    Ours,
    by_hand,
    made,
)
from tests.refusals import assert_refused, refusals

VOCABULARY = 50


def every(found: ch.types.Writes, name: str = "logit") -> Tensor:
    """(layers · heads, batch, query_len, vocabulary), of rows that hold every token once."""
    layers = list(dict.fromkeys(found["layer"]))
    got = torch.full((2 * HEADS, 2, LEN, VOCABULARY), torch.nan, dtype=torch.float64)
    for row in found:
        place = HEADS * layers.index(row.layer) + row.head, row.sample, row.query, row.token
        assert got[place].isnan()
        got[place] = getattr(row, name)
    return got


@pytest.mark.parametrize("chunk", [1, 1 << 22])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_each_head_writes_what_plain_hooks_and_the_unembedding_say(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    model = made(MODELS[name][0])
    head: Any = dict(model.named_modules())[MODELS[name][3]]
    want, _ = by_hand(model, name, head.weight.mT)
    close = 1e-10 if name in EXACT else 1e-6
    found = ch.reading.writes(model, IDS, query=None, top=VOCABULARY)
    torch.testing.assert_close(every(found), want, rtol=close, atol=close)
    less = want - want.mean(dim=-1, keepdim=True)
    torch.testing.assert_close(every(found, "above"), less, rtol=close, atol=close)
    for query in (-1, 2):
        one = ch.reading.writes(model, IDS, query=query, top=3)
        at = want[:, :, query % LEN]
        order = at.argsort(dim=-1, descending=True)
        tokens = torch.cat([order[..., :3], order[..., -3:].flip(-1)], dim=-1)
        assert one["token"].reshape(2, 2, HEADS, 6).transpose(1, 2).flatten(0, 1).equal(tokens)
        assert one["rank"].tolist() == [0, 1, 2, 49, 48, 47] * (2 * 2 * HEADS)
        assert set(one["query"].tolist()) == {query % LEN}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_other_dtypes_say_it_to_their_rounding(dtype: torch.dtype) -> None:
    model = made(MODELS["llama"][0]).to(dtype)
    exact = every(ch.reading.writes(model.double(), IDS, query=None, top=VOCABULARY))
    got = every(ch.reading.writes(model.to(dtype), IDS, query=None, top=VOCABULARY))
    close = 1e-4 if dtype == torch.float32 else 0.05
    assert float((got - exact).norm() / exact.norm()) < close


@torch.no_grad()
def test_rows_are_raised_or_lowered_and_go_by_layer_and_head() -> None:
    found = ch.reading.writes(made(Ours), {"ids": IDS}, query=None, top=2)
    assert len(found) == len(found.raised) + len(found.lowered) == 2 * HEADS * 2 * LEN * 4
    assert set(found.raised["rank"].tolist()) == {0, 1}
    assert set(found.lowered["rank"].tolist()) == {48, 49}
    part = found.of(1, head=2)
    assert [tuple(row) for row in part] == [
        tuple(row) for row in found if row[:2] == ("blocks.1.attention", 2)
    ]
    assert list(found.of("blocks.0.attention")) == list(found)[: len(found) // 2]
    assert list(found.of(-1, 3)) == list(found.of(1, 3))
    assert abs(found.top(1)[0].above) == float(found["above"].abs().max())


@torch.no_grad()
def test_plain_lists_say_the_same() -> None:
    found = ch.reading.writes(made(Ours), IDS, query=None, top=2)
    lists = json.loads(json.dumps(found.lists()))
    assert len(lists) == 2 * HEADS * 2 * LEN
    rows = iter(found)
    for each in lists:
        assert list(each) == ["layer", "head", "sample", "query", "raised", "lowered"]
        for token, above in (*each["raised"], *each["lowered"]):
            row = next(rows)
            assert [each[name] for name in module.PLACE] == list(row[:4])
            assert (token, above) == (row.token, row.above)


@torch.no_grad()
def test_what_heads_write_is_no_more_than_half_of_all() -> None:
    model = made(Ours)
    assert len(ch.reading.writes(model, IDS, top=999)) == 2 * HEADS * 2 * VOCABULARY


test_what_does_not_fit_is_refused = refusals(
    lambda given: ch.reading.writes(made(Ours), IDS, **given),
    ({"query": 1.5}, "logits.query", "1.5"),
    ({"query": 6}, "logits.query", "6 // 6"),
    ({"top": 0}, "argument.size", "top // 0"),
    ({"top": "a"}, "argument.type", "top // str"),
)


@torch.no_grad()
def test_a_layer_or_a_head_that_is_not_there_is_refused() -> None:
    found = ch.reading.writes(made(Ours), IDS, top=1)
    text = "[writes.head] head must be one of [0, 1, 2, 3] in 'blocks.1.attention'; got 4."
    with pytest.raises(SelectionError, match=re.escape(text)):
        found.of(1, head=4)
    known = "0 ('blocks.0.attention'), 1 ('blocks.1.attention')"
    assert_refused(lambda: found.of(2), "watch.layer", f"2 // {known}")
