"""What a figure holds, and what is refused before anything is written."""

import json
import math
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.element.data import MOST_NUMBERS
from clearhead.drawing.element.figure import Figure
from tests.drawing.element.drawn import data_of, numbers_of
from tests.refusals import refusals, run

X = torch.arange(6.0).view(3, 2) / 3


def of(**options: Any) -> Figure:
    return ch.figure(X, X, X, **options)


def test_what_may_be_edited_is_drawn_in_the_order_of_the_work() -> None:
    data = data_of(of(show=["context", "weights"], edit=["scale", "mask", "key"]))
    assert data["show"] == ["key", "mask", "weights", "context"]
    assert data["edit"] == ["key", "mask", "scale"]
    asked = data_of(of(show=["context"], edit=[], predict=("weights", -1, 0)))
    assert (asked["show"], asked["predict"]) == (["weights", "context"], ["weights", 2, 0])


def test_numbers_are_those_of_the_tensors() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        query = torch.randn(3, 2).to(dtype)
        data = data_of(ch.figure(query, query, query))
        assert torch.equal(numbers_of(data["inputs"]["query"]), query.double())
        assert data["inputs"]["query"]["single"] == (dtype != torch.float64)


def test_mask_bias_scale_and_softcap() -> None:
    bias = torch.randn(3, 3)
    data = data_of(of(mask=ch.causal(), bias=bias, scale=0.3, softcap=2.0))
    assert data["mask"] == ["100", "110", "111"]
    assert (data["scale"], data["softcap"]) == (0.3, 2.0)
    steps = ch.trace(ch.attend, X, X, X, mask=ch.causal(), bias=bias, scale=0.3, softcap=2.0)
    added = steps["capped_scores"].double() + numbers_of(data["bias"])
    visible = torch.ones(3, 3).tril().bool()
    assert torch.equal(added[visible], steps["masked_scores"].double()[visible])
    plain = data_of(of())
    assert (plain["mask"], plain["bias"]) == (None, None)


def test_a_bias_of_infinity_is_no_mask() -> None:
    bias = torch.zeros(3, 3)
    bias[2, 0] = -math.inf
    data = data_of(of(bias=bias))
    assert data["mask"] is None
    assert data["bias"]["numbers"][6] == "-Infinity"


def test_a_number_that_is_none() -> None:
    query = X.clone()
    query[1, 0] = math.nan
    data = data_of(ch.figure(query, X, X))
    assert data["inputs"]["query"]["numbers"][2] == "NaN"
    assert data["bias"] is None


def test_a_layer_head_by_head() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, bias=True).requires_grad_(False)
    x = torch.randn(2, 5, 8)
    steps = ch.trace(layer, x)
    data = data_of(ch.figure(layer, x, sample=1, head=3))
    inputs = {name: numbers_of(each) for name, each in data["inputs"].items()}
    assert list(inputs) == ["x", "W_query", "W_key", "W_value"]
    assert data["edit"] == ["W_query", "scores", "mask", "scale"]
    for name, own in (("query", 3), ("key", 1), ("value", 1)):
        weight = inputs[f"W_{name}"]
        made = inputs["x"] @ weight[:-1] + weight[-1]
        torch.testing.assert_close(made.float(), steps[name][1, own])
    assert data_of(ch.figure(steps, sample=1, head=3)) == data


def test_two_texts() -> None:
    layer = ch.MultiHeadAttention(4, num_heads=1, context_dim=6).requires_grad_(False)
    data = data_of(ch.figure(layer, torch.randn(1, 3, 4), torch.randn(1, 2, 6)))
    assert list(data["inputs"]) == ["x", "source", "W_query", "W_key", "W_value"]
    assert (data["tokens"], data["source_tokens"]) == (["0", "1", "2"], ["0", "1"])


def test_a_projection_that_is_more_than_a_matrix_is_none() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, parts=[ch.layers.Rotary(4)])
    data = data_of(ch.figure(layer.requires_grad_(False), torch.randn(1, 3, 8)))
    assert list(data["inputs"]) == ["x", "W_value", "query", "key"]
    assert data["edit"] == ["query", "scores", "mask", "scale"]


def renormalised() -> ch.types.Trace:
    rung = ladder.RenormalisedAttention(3, head_dim=2, mask=ch.causal())
    return ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS)


SINKS: dict[str, Any] = {"sinks": torch.zeros(1)}


STAGES = "scores, scaled_scores, capped_scores, mask, masked_scores, weights, value, context"
EDITS = "query, key, value, scores, weights, mask, scale, width, dropout, order, heads, rotary"
test_what_is_refused = refusals(
    run,
    (lambda: of(show=["wieghts"]), "figure.stage", "'wieghts'", f"query, key, plane, {STAGES}"),
    (lambda: of(show=["W_query"]), "figure.stage", "'W_query'", f"query, key, plane, {STAGES}"),
    (
        lambda: ch.figure(*torch.zeros(3, 2, 3), show=["plane"]),
        "figure.stage",
        f"'plane' // query, key, {STAGES}",
    ),
    (lambda: of(show="weights"), "figure.names", "show // 'weights'"),
    (lambda: of(edit=3), "figure.names", "edit // 3"),
    (lambda: of(edit=["context"]), "figure.edit", "'context'", EDITS),
    (lambda: of(edit=["W_query"]), "figure.edit", "'W_query'", EDITS),
    (lambda: of(edit=[["scores"]]), "figure.edit", "['scores']", EDITS),
    (lambda: of(predict="weights"), "figure.predict", "'weights'"),
    (
        lambda: of(show=["plane"], predict=("plane", 0, 0)),
        "figure.predict",
        f"'plane' // query, key, {STAGES.replace('mask, ', '')}",
    ),
    (lambda: of(predict=("weights", 0, 3)), "figure.predict", "weights //  // 3 columns // 3"),
    (lambda: of(predict=("weights", -4, 0)), "figure.predict", "weights //  // 3 rows // -4"),
    (lambda: of(predict=("weights", 0.5, 0)), "figure.predict", "weights //  // 3 rows // 0.5"),
    (
        lambda: ch.figure(*torch.zeros(3, 65, 64)),
        "figure.size",
        "query // 65 // 64 // 4,096 // The page of a trace shows more: trace(…).to_html(file).",
    ),
    (
        lambda: ch.figure(*torch.zeros(3, 65, 2)),
        "figure.size",
        "scores // 65 // 65 // 4,096 // The page of a trace shows more: trace(…).to_html(file).",
    ),
    (lambda: ch.figure(*torch.zeros(3, 0, 2)), "figure.empty", "query // 0 // 2"),
    (
        lambda: ch.figure(ch.trace(ch.attend, *X.expand(3, 1, 1, 3, 2), **SINKS)),
        "figure.stages",
        "sinks // …",
    ),
    (lambda: ch.figure(ch.trace(ch.attend, X, X, X, dropout=0.5)), "figure.stages", "dropout // …"),
    (
        lambda: ch.figure(renormalised()),
        "figure.stages",
        "stages that are not those of the definition // …",
    ),
    (lambda: of(head=1), "trace.part", "1 // num_heads // 1"),
    (lambda: of(sample="a"), "trace.part", "1 // batch // 'a'"),
    (lambda: of(tokens=["one"]), "trace.tokens", "tokens // 3 // 1"),
)


def test_the_most_that_goes() -> None:
    assert MOST_NUMBERS == 4096
    data = data_of(ch.figure(*torch.zeros(3, 64, 64)))
    assert len(data["inputs"]["query"]["numbers"]) == 4096


def test_the_plane_is_drawn_where_vectors_have_two_numbers() -> None:
    drawn = of(show=["plane", "weights"], edit=["query"])
    assert data_of(drawn)["show"] == ["query", "plane", "weights"]
    assert ">plane<" not in drawn.to_element(script=False)


def test_a_width_takes_the_place_of_query_and_key() -> None:
    query, key = torch.randn(1, 10), torch.randn(4, 10)
    data = data_of(ch.figure(query, key, key, show=["weights"], edit=["width"]))
    assert list(data["inputs"]) == ["value"]
    assert [each["width"] for each in data["widths"]] == [2, 4, 8, 10]
    for each in data["widths"]:
        width = each["width"]
        torch.testing.assert_close(
            numbers_of(each["scores"]).float(), query[:, :width] @ key[:, :width].T
        )
    with pytest.raises(ch.errors.SelectionError, match="there is no stage 'query'"):
        ch.figure(query, key, key, show=["query"], edit=["width"])


def test_dropout_has_stages_of_its_own() -> None:
    drawn = of(show=["weights"], edit=["dropout"])
    assert data_of(drawn)["show"] == ["weights", "dropped_weights", "mean_weights"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ch.figure(X[:2], X, X, edit=["order"]), "order"),
        (lambda: ch.figure(*torch.ones(3, 2, 3), edit=["rotary"]), "rotary"),
        (lambda: ch.figure(X, X, X, show=["weights"], edit=["width", "rotary"]), "width"),
    ],
)
def test_what_does_not_go_with_it(make: Any, name: str) -> None:
    with pytest.raises(ch.errors.ArgumentError, match=f"'{name}' cannot be edited"):
        make()


def test_the_space_before_a_word_is_no_part_of_its_name() -> None:
    names = json.dumps(data_of(of(tokens=[" the", "s", " "])), ensure_ascii=False)
    assert '["the", "s", "␣"]' in names
