"""The refusals of a contract, and their words."""

from typing import Any

import pytest
import torch

import clearhead as ch

CASES: list[tuple[dict[str, Any], type[ch.errors.ClearheadError], str, str]] = [
    (
        {"causal": 1},
        ch.errors.ArgumentTypeError,
        "causal.type",
        "causal must be True or False; got 1.",
    ),
    (
        {"scale": 0},
        ch.errors.ArgumentError,
        "scale.value",
        "scale must be a finite number above 0, or None; got 0.",
    ),
    (
        {"softcap": "30"},
        ch.errors.ArgumentError,
        "softcap.value",
        "softcap must be a finite number above 0, or None; got '30'.",
    ),
    (
        {"window": 4},
        ch.errors.ArgumentTypeError,
        "window.type",
        "window must be (left, right), the tokens seen on each side: (W-1, 0) for a window of W tokens that "
        "looks back; got 4.",
    ),
    (
        {"window": (4, -1)},
        ch.errors.ArgumentError,
        "window.value",
        "window must hold whole numbers of 0 or more, or None for no limit; got (4, -1).",
    ),
    (
        {"alibi_slopes": [0.5]},
        ch.errors.ArgumentTypeError,
        "alibi_slopes.type",
        "alibi_slopes must be a tensor of shape (num_heads,); got list.",
    ),
    (
        {"sinks": torch.zeros(2, 3)},
        ch.errors.ShapeError,
        "sinks.shape",
        "sinks must have shape (num_heads,); got (2, 3).",
    ),
    (
        {"bias": torch.zeros(2, 3, 3)},
        ch.errors.ArgumentTypeError,
        "bias.type",
        "bias must be a function (query_len, kv_len) → (heads, query_len, kv_len); got Tensor.",
    ),
    (
        {"rope": {"theta": 1e4}},
        ch.errors.ArgumentError,
        "rope.value",
        'rope must be dict(base=10000.0, layout="half" or "interleaved"); got '
        "{'theta': 10000.0}.",
    ),
    (
        {"empty_row": "nan"},
        ch.errors.ArgumentError,
        "empty-row.value",
        'empty_row must be "zero", "uniform", or None; got \'nan\'.',
    ),
    (
        {"padded_queries": "any"},
        ch.errors.ArgumentError,
        "padded-queries.value",
        "padded_queries must be \"zero\", or None; got 'any'.",
    ),
    (
        {"dtypes": [torch.float16]},
        ch.errors.ArgumentError,
        "dtypes.value",
        "dtypes must be a tuple of float16, bfloat16, float32 and float64; got [torch.float16].",
    ),
    (
        {"dropout": 1.0},
        ch.errors.ArgumentError,
        "dropout.value",
        "dropout must be a probability in [0, 1), or None for no dropout; got 1.0.",
    ),
    (
        {"sizes": {"width": 3}},
        ch.errors.ArgumentError,
        "sizes.name",
        "sizes knows d_in, d_out, d_context, num_heads, num_kv_heads, head_dim, value_head_dim, "
        "context_length, tokens; got width.",
    ),
    (
        {"num_heads": 6, "num_kv_heads": 4},
        ch.errors.ShapeError,
        "shape.kv-heads",
        "num_heads must be a multiple of num_kv_heads; got 6 and 4.",
    ),
]


@pytest.mark.parametrize(("fields", "error", "code", "message"), CASES, ids=lambda each: str(each))
def test_what_makes_no_sense_is_refused(
    fields: dict[str, Any], error: type[ch.errors.ClearheadError], code: str, message: str
) -> None:
    with pytest.raises(error) as caught:
        ch.Contract(**fields)
    assert type(caught.value) is error
    assert (caught.value.code, caught.value.message) == (code, message)


def test_heads_are_found_in_what_has_one_number_for_each() -> None:
    assert ch.Contract(alibi_slopes=torch.ones(3)).heads() == (3, None)
    assert ch.Contract(bias=lambda q, k: torch.zeros(5, q, k)).heads() == (5, None)
    assert ch.Contract(sizes={"num_heads": 4, "num_kv_heads": 2}).heads() == (4, 2)


def of_four(tokens: int) -> torch.Tensor:
    return torch.arange(tokens) // 4


@pytest.mark.parametrize(
    ("hide_documents", "causal", "outcome"),
    [(True, True, "right"), (False, True, "mask.missing"), (True, False, "mask.missing")],
)
def test_documents(hide_documents: bool, causal: bool, outcome: str) -> None:
    def packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        first, document = key.shape[-2] - query.shape[-2], of_four(key.shape[-2])
        hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool)
        if hide_documents:
            hidden |= document[first:, None] != document
        if causal:
            hidden |= torch.ones(scores.shape[-2:]).triu(1 + first).bool()
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    report = ch.check(packed, takes="qkv", causal=True, documents=of_four)
    assert [report.outcome, *(each.code for each in report.findings)] in (
        [outcome],
        ["wrong", outcome],
    )


def test_documents_of_a_fixed_length_are_the_number_of_tokens() -> None:
    contract = ch.Contract(documents=torch.tensor([0, 0, 1]))
    assert contract.sizes == {"tokens": 3}
    documents = contract.documents_of(2)
    assert documents is not None
    assert documents.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("documents", "code"), [([0, 0, 1], "documents.type"), (torch.zeros(2, 3), "documents.shape")]
)
def test_documents_that_are_no_row_of_ids(documents: object, code: str) -> None:
    with pytest.raises(ch.errors.ClearheadError) as raised:
        ch.Contract(documents=documents)  # type: ignore[arg-type]
    assert raised.value.code == code
