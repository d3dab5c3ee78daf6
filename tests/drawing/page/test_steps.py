"""A trace as the payload of a page."""

import re
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.page import steps
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.steps import steps_payload
from clearhead.errors import SelectionError, TooLargeError


def arrays_of(payload: Payload) -> dict[str, Tensor]:
    assert all(isinstance(array, Tensor) for array in payload.arrays.values())
    return cast(dict[str, Tensor], payload.arrays)


def layer_trace() -> ch.Trace:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=ch.causal())
    return ch.trace(layer, torch.randn(3, 5, 8))


def test_every_number_is_there_once() -> None:
    trace = layer_trace()
    payload = steps_payload(trace)
    named = {step["name"]: step["same_as"] for step in payload.data["steps"]}
    assert list(named) == list(trace)
    assert named["capped_scores"] == "scaled_scores"
    assert set(payload.arrays) == {name for name, same in named.items() if same is None}
    for name, array in arrays_of(payload).items():
        assert array.ndim == 4
        assert torch.equal(array.reshape(trace[name].shape), trace[name].detach())
    assert payload.data["samples"], payload.data["heads"] == ([0, 1, 2], [0, 1, 2, 3])


def test_one_sample_and_head_are_those_that_were_asked_for() -> None:
    trace = layer_trace()
    payload = steps_payload(trace, sample=2, head=3)
    assert payload.data["samples"] == [2]
    assert payload.data["heads"] == [3]
    assert torch.equal(arrays_of(payload)["weights"][0, 0], trace["weights"][2, 3].detach())
    # Two query heads share a key head.
    assert torch.equal(arrays_of(payload)["key"][0, 0], trace["key"][2, 1].detach())
    assert torch.equal(arrays_of(payload)["x"][0, 0], trace["x"][2])


def test_without_batch_and_heads_there_is_one_of_each() -> None:
    payload = steps_payload(ch.trace(ladder.SimpleAttention(), ladder.EXAMPLE_EMBEDDINGS))
    assert (payload.data["samples"], payload.data["heads"]) == ([0], [0])
    assert arrays_of(payload)["weights"].shape == (1, 1, 6, 6)
    heads = ch.trace(ch.attend, *torch.randn(3, 2, 5, 4))
    assert arrays_of(steps_payload(heads))["weights"].shape == (1, 2, 5, 5)


def test_sinks_and_what_is_no_number() -> None:
    query = torch.randn(1, 2, 3, 4)
    trace = ch.trace(ch.attend, query, query, query, sinks=torch.tensor([0.5, 2.0]), softcap=3.0)
    data = steps_payload(trace, head=1).data
    assert (data["sinks"], data["softcap"]) == ([2.0], 3.0)
    query[0, 0, 1] = torch.nan
    payload = steps_payload(ch.trace(ch.attend, query, query, query))
    assert payload.data["difference"] is None
    assert payload.to_bytes()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"sample": 3}, "[trace.part] there are 3 along batch; got 3."),
        ({"sample": -1}, "[trace.part] there are 3 along batch; got -1."),
        ({"head": 4}, "[trace.part] there are 4 along num_heads; got 4."),
    ],
)
def test_parts_that_are_not_there(asked: dict[str, int], text: str, tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=f"^{re.escape(text)}$"):
        layer_trace().to_html(tmp_path / "steps.html", **asked)
    assert not list(tmp_path.iterdir())


def test_more_than_a_page_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_NUMBERS", 1000)
    with pytest.raises(
        TooLargeError, match=r"^\[trace.page-size\] the stages are 1,\d{3} numbers"
    ) as error:
        layer_trace().to_html(tmp_path / "steps.html")
    assert "of which a page holds 1,000 at most. sample= and head=" in str(error.value)
    assert not list(tmp_path.iterdir())
    assert layer_trace().to_html(tmp_path / "steps.html", sample=0).is_file()
