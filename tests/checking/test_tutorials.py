"""Every class of the tutorials, graded: right, or its known slip named."""

from typing import Any

import pytest
import torch

import clearhead as ch
from tests.ladder import tutorials


@pytest.mark.parametrize(
    ("made", "takes", "declared"),
    [
        (lambda: tutorials.SelfAttention(3, 2, 4), "x2d", {}),
        (lambda: tutorials.SelfAttentionV2(3, 2), "x2d", {}),
        (lambda: tutorials.CausalAttention(3, 2, 7, 0.5), "x", {"causal": True, "dropout": 0.5}),
        (
            lambda: tutorials.MultiHeadAttention(3, 4, 0.0, 7, 2),
            "x",
            {"causal": True, "num_heads": 2},
        ),
    ],
)
def test_classes_that_are_right(made: Any, takes: str, declared: dict[str, Any]) -> None:
    torch.manual_seed(0)
    report = ch.check(made(), takes=takes, **declared)
    assert report.ok, str(report)
    assert report.findings == ()


def test_classes_with_a_slip() -> None:
    torch.manual_seed(0)
    wrong = tutorials.CausalAttention(3, 2, 7, 0.0, triangle=torch.tril, diagonal=0)
    report = ch.check(wrong, takes="x", causal=True)
    assert report.findings[0].code == "mask.inverted", str(report)
    names: dict[str, Any] = {"d_k": 2}
    exec(tutorials.SELF_ATTENTION_V1, names)
    outside = ch.check(names["SelfAttention_v1"], takes="x2d", args={"d_in": 3, "d_out": 5})
    assert outside.findings[0].code == "scale.wrong", str(outside)
    assert "whatever the sizes are" in outside.findings[0].sentence
