"""A trace as the payload of a page."""

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element import trace_page
from clearhead.drawing.element.trace_page import trace_payload
from clearhead.drawing.page.payload import Payload
from tests.refusals import assert_refused, refusals


def arrays_of(payload: Payload) -> dict[str, Tensor]:
    assert all(isinstance(array, Tensor) for array in payload.arrays.values())
    return cast(dict[str, Tensor], payload.arrays)


def layer_trace() -> ch.types.Trace:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=ch.causal())
    return ch.trace(layer, torch.randn(3, 5, 8))


def test_every_number_is_there_once() -> None:
    trace = layer_trace()
    payload = trace_payload(trace)
    named = {step["name"]: step["same_as"] for step in payload.data["stages"]}
    assert [name for name in named if name in trace] == list(trace)
    assert named["capped_scores"] == "scaled_scores"
    assert set(payload.arrays) == {name for name, same in named.items() if same is None}
    for name, array in arrays_of(payload).items():
        assert array.ndim == 4
        if name in trace:
            assert torch.equal(array.reshape(trace[name].shape), trace[name].detach())
    assert payload.data["samples"], payload.data["heads"] == ([0, 1, 2], [0, 1, 2, 3])


def held(made: Tensor, terms: Tensor, axis: int) -> None:
    """The terms add up to what was made of them, but for the rounding of float32."""
    terms = terms.double()
    rounding = terms.shape[axis] * torch.finfo(torch.float32).eps * terms.abs().sum(axis)
    assert bool(((terms.sum(axis) - made.double()).abs() <= rounding).all())


def linear(x: Tensor, weight: Tensor, bias: bool) -> Tensor:
    """The terms of x @ weight, (..., rows, terms, columns), the last of which is the bias."""
    if bias:
        x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
    return x.double()[..., None] * weight.double()[..., None, :, :]


class Doubled(ch.layers.Part):
    """Changes the key and the context."""

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return query, 2 * key

    def transform_context(self, context: Tensor, x: Tensor) -> Tensor:
        return 2 * context


MASK = ch.causal()
GRAPHS = {
    "heads in groups": (
        lambda: ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=MASK),
        (2, 5, 8),
    ),
    "with a bias": (
        lambda: ch.MultiHeadAttention(6, num_heads=3, value_head_dim=5, bias=True),
        (3, 6),
    ),
    "parts": (lambda: ch.MultiHeadAttention(8, num_heads=2, parts=[Doubled()]), (1, 5, 8)),
    "a rung": (lambda: ladder.SelfAttention(3, head_dim=2), (6, 3)),
    "linear layers": (lambda: ladder.MaskedAttention(3, head_dim=2, mask=MASK, bias=True), (6, 3)),
    "split": (lambda: ladder.SplitHeads(6, num_heads=3, bias=True), (5, 6)),
    "side by side": (
        lambda: ladder.ConcatenatedHeads([ladder.MaskedAttention(3, head_dim=2) for _ in range(2)]),
        (5, 3),
    ),
}


@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_arithmetic_is_missing_from_x_to_the_output(name: str, head: int | None) -> None:
    make, size = GRAPHS[name]
    trace = ch.trace(make(), torch.randn(size))
    num_heads = trace["weights"].shape[-3] if "num_heads" in trace.steps["weights"].axes else 1
    head = head if head is None or num_heads > 1 else 0
    payload = trace_payload(trace, head=head)
    arrays = arrays_of(payload)
    told = {step["name"]: step for step in payload.data["stages"]}
    stage = {}
    for each, step in told.items():
        stage[each] = arrays[each] if step["same_as"] is None else stage[step["same_as"]]
    heads = stage["weights"].shape[1]
    for each in ("query", "key", "value"):
        matrix = told[f"W_{each}"]
        terms = linear(stage["x"], stage[f"W_{each}"], matrix["bias"])
        held(stage[each] / (2 if matrix["parts"] and each == "key" else 1), terms, -2)
        assert matrix["parts"] == ("Doubled" if (name, each) == ("parts", "key") else "")
    key, value = (
        stage[each].repeat_interleave(heads // stage[each].shape[1], 1) for each in ("key", "value")
    )
    held(stage["scores"], stage["query"][..., :, None, :] * key[..., None, :, :], -1)
    mixed = stage["dropped_weights"][..., None] * value[..., None, :, :]
    held(stage["context"], mixed, -2)
    if "output" not in trace:
        return
    last = stage["contexts" if "contexts" in stage else "output"][:, 0]
    shown = last.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    shown = shown if head is None else shown[:, head : head + 1]
    assert torch.equal(shown, stage["context"] * (2 if name == "parts" else 1))
    if "contexts" in stage:
        held(
            stage["output"],
            linear(stage["contexts"], stage["W_output"], told["W_output"]["bias"]),
            -2,
        )


def test_a_cache_has_keys_that_no_projection_of_x_gives() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()).requires_grad_(False)
    x, cache = torch.randn(1, 5, 8), ch.layers.GrowingCache()
    layer(x[:, :3], cache=cache)
    arrays = arrays_of(trace_payload(ch.trace(layer, x[:, 3:], cache=cache)))
    assert arrays["key"].shape[-2] == 5
    assert not {"W_key", "W_value"} & arrays.keys()


def test_maps_that_are_not_plain_are_left_out() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    layer.query_projection.register_forward_hook(lambda *_: _[2] * 2)
    layer.key_projection = torch.nn.Sequential(torch.nn.Linear(8, 8))  # pyright: ignore[reportAttributeAccessIssue]
    trace = ch.trace(layer, torch.randn(3, 8))
    assert list(trace.projections) == ["value", "output"]
    names = [step["name"] for step in trace_payload(trace).data["stages"]]
    assert [name for name in names if name not in trace] == ["W_value", "contexts", "W_output"]


def test_weights_that_have_no_room_are_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix alone would say that the other two need none."""
    trace = layer_trace()
    arrays = trace_payload(trace).arrays
    three = [arrays[f"W_{name}"] for name in ("query", "key", "value")]
    inner = sum(each.numel() for each in three if isinstance(each, torch.Tensor))
    assert inner
    monkeypatch.setattr(trace_page, "MOST_WEIGHTS", inner)
    told = {step["name"]: step for step in trace_payload(trace).data["stages"]}
    assert {"W_query", "W_key", "W_value"} <= told.keys()
    assert not {"W_output", "contexts"} & told.keys()
    assert told["output"]["formula"].endswith("; its 192 weights have no room here")
    monkeypatch.setattr(trace_page, "MOST_WEIGHTS", inner - 1)
    told = {step["name"]: step for step in trace_payload(trace).data["stages"]}
    assert not {"W_query", "W_key", "W_value"} & told.keys()


def test_the_sentence_is_the_title() -> None:
    words = ["to", "be", "or"]
    trace = ch.trace(ladder.SimpleAttention(), torch.eye(3), tokens=words)
    assert trace_payload(trace).title == "to be or"
    assert trace_payload(trace).data["of"] == "trace of SimpleAttention"
    assert trace_payload(layer_trace()).title.startswith("trace of MultiHeadAttention(8, ")


def test_one_sample_and_head_are_those_that_were_asked_for() -> None:
    trace = layer_trace()
    payload = trace_payload(trace, sample=2, head=3)
    assert payload.data["samples"] == [2]
    assert payload.data["heads"] == [3]
    assert torch.equal(arrays_of(payload)["weights"][0, 0], trace["weights"][2, 3].detach())
    # Two query heads share a key head.
    assert torch.equal(arrays_of(payload)["key"][0, 0], trace["key"][2, 1].detach())
    assert torch.equal(arrays_of(payload)["x"][0, 0], trace["x"][2])


def test_sinks_and_what_is_no_number() -> None:
    query = torch.randn(1, 2, 3, 4)
    trace = ch.trace(ch.attend, query, query, query, sinks=torch.tensor([0.5, 2.0]), softcap=3.0)
    data = trace_payload(trace, head=1).data
    assert (data["sinks"], data["softcap"]) == ([2.0], 3.0)
    query[0, 0, 1] = torch.nan
    payload = trace_payload(ch.trace(ch.attend, query, query, query))
    assert torch.isnan(payload.arrays["scores"]).any()  # pyright: ignore[reportArgumentType]
    assert payload.to_bytes()


test_parts_that_are_not_there = refusals(
    lambda asked: layer_trace().to_html("steps.html", **asked),
    ({"sample": 3}, "trace.part", "3 // batch // 3"),
    ({"sample": -1}, "trace.part", "3 // batch // -1"),
    ({"head": 4}, "trace.part", "4 // num_heads // 4"),
)


def test_more_than_a_page_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_page, "MOST_NUMBERS", 1000)
    assert_refused(
        lambda: layer_trace().to_html(tmp_path / "steps.html"), "trace.page-size", "1,800 // 1,000"
    )
    assert not list(tmp_path.iterdir())
    assert layer_trace().to_html(tmp_path / "steps.html", sample=0).is_file()
