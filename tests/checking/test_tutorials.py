"""Every class of the tutorials, graded: right, or its known slip named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from tests.ladder import tutorials

# As the notebook of tutorial 000 has it.
SELF_ATTENTION_V1 = """
import torch
import torch.nn as nn

class SelfAttention_v1(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)
        self.W_key = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)
        self.W_value = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)
    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / d_k**0.5, dim=-1)
        context_vecs = attn_weights @ values
        return context_vecs
"""


class Matrices(tutorials.SelfAttention):
    """Of tutorial 002: the class of 003 with one width for all three matrices."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, d_out)


class SideBySide(nn.Module):
    """The `MultiHeadAttentionWrapper` of any class of one head, and 004's first `MultiHeadAttention`."""

    def __init__(self, num_heads: int, head: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(head() for _ in range(num_heads))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class CrossAttention(nn.Module):
    """Of tutorial 003: queries of one sequence, keys and values of the other."""

    def __init__(self, d_in: int, d_out_kq: int, d_out_v: int) -> None:
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out_v))

    def forward(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        queries, keys, values = x_1 @ self.W_query, x_2 @ self.W_key, x_2 @ self.W_value
        return torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1) @ values


CAUSAL: dict[str, Any] = {"causal": True}
TRIL: dict[str, Any] = {"triangle": torch.tril, "diagonal": 0}


@pytest.mark.parametrize(
    ("made", "takes", "declared"),
    [
        pytest.param(lambda: tutorials.SelfAttention(3, 2, 4), "x2d", {}, id="003"),
        pytest.param(lambda: Matrices(3, 2), "x2d", {}, id="002"),
        pytest.param(lambda: tutorials.SelfAttentionV2(3, 2), "x2d", {}, id="004 v2"),
        pytest.param(lambda: CrossAttention(3, 2, 4), "x,context", {}, id="003 cross"),
        pytest.param(
            lambda: tutorials.CausalAttention(3, 2, 7, 0.5),
            "x",
            CAUSAL | {"dropout": 0.5},
            id="000 causal",
        ),
        pytest.param(
            lambda: tutorials.MultiHeadAttentionWrapper(3, 2, 7, 0.0, 2),
            "x",
            CAUSAL | {"num_heads": 2},
            id="000 wrapper",
        ),
        pytest.param(
            lambda: SideBySide(2, lambda: tutorials.SelfAttention(3, 2, 1)),
            "x2d",
            {"num_heads": 2},
            id="003 wrapper",
        ),
        pytest.param(
            lambda: tutorials.MultiHeadAttention(3, 4, 0.0, 7, 2),
            "x",
            CAUSAL | {"num_heads": 2},
            id="002 heads",
        ),
    ],
)
def test_classes_that_are_right(made: Any, takes: str, declared: dict[str, Any]) -> None:
    torch.manual_seed(0)
    report = ch.check(made(), takes=takes, **declared)
    assert report.ok, str(report)
    assert report.findings == ()


@pytest.mark.parametrize(
    ("made", "declared"),
    [
        pytest.param(
            lambda: tutorials.CausalAttention(3, 2, 7, 0.0, **TRIL), CAUSAL, id="004 causal"
        ),
        pytest.param(
            lambda: SideBySide(2, lambda: tutorials.CausalAttention(3, 2, 7, 0.0, **TRIL)),
            CAUSAL | {"num_heads": 2},
            id="004 wrapper",
        ),
    ],
)
def test_a_mask_that_shows_the_future_alone(made: Any, declared: dict[str, Any]) -> None:
    torch.manual_seed(0)
    report = ch.check(made(), takes="x", **declared)
    assert report.findings[0].code == "mask.inverted", str(report)


@pytest.mark.parametrize("projections", ["matrices", "linear layers"])
def test_a_width_from_the_notebook(projections: str) -> None:
    source = SELF_ATTENTION_V1
    if projections == "linear layers":  # the second class of tutorial 000
        for name in ("query", "key", "value"):
            source = source.replace(f"x @ self.W_{name}", f"self.W_{name}(x)")
        source = source.replace(
            "nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)", "nn.Linear(d_in, d_out)"
        )
    torch.manual_seed(0)
    names: dict[str, Any] = {"d_k": 2}
    exec(source, names)
    outside = ch.check(names["SelfAttention_v1"], takes="x2d", args={"d_in": 3, "d_out": 5})
    assert outside.findings[0].code == "scale.wrong", str(outside)
    assert "1/√" in outside.findings[0].sentence


def test_a_mask_of_length_one_hides_nothing() -> None:
    torch.manual_seed(0)
    report = ch.check(tutorials.CausalAttention(3, 2, 1, 0.0), takes="x", causal=True)
    assert [each.code for each in report.findings] == ["mask.missing"]


@pytest.mark.parametrize("cls", [CrossAttention])
def test_a_class_whose_widths_are_not_given(cls: type[nn.Module]) -> None:
    assert ch.check(cls, takes="x,context").ok
    assert ch.check(cls, lesson=11).ok
