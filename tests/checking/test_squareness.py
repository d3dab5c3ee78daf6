"""A module that fails only because two of its widths differ."""

import pytest
from torch import Tensor, nn

import clearhead as ch


class Narrow(nn.Module):
    """It works where d_out = d_in."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_in, d_out) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return (weights @ value).view(x.shape)


class OneWidth(nn.Module):
    """It works where the heads together are as wide as the input."""

    def __init__(self, dim: int, heads: int, dim_head: int) -> None:
        super().__init__()
        self.heads, self.dim_head = heads, dim_head
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * heads * dim_head), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2)
            for each in self.to_qkv(x).chunk(3, -1)
        )
        weights = (query @ key.mT / self.dim_head**0.5).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class OneContext(nn.Module):
    """It works where the context is as wide as x."""

    def __init__(self, d_in: int, d_context: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_in, d_in) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        query, key, value = self.to_q(x), self.to_k(context), self.to_v(context)
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


class Hidden(nn.Module):
    """Its arguments cannot be found, and its sizes are declared."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Refusing(Narrow):
    def forward(self, x: Tensor) -> Tensor:
        if self.q_proj.in_features != self.q_proj.out_features:
            raise ValueError("d_out must be d_in")
        return super().forward(x)


def test_an_instance_is_made_again() -> None:
    report = ch.check(Narrow(6, 4), takes="x")
    assert [each.code for each in report.findings] == ["shape.fixed"]
    assert report.findings[0].measured.startswith("d_out=4, d_in=6: RuntimeError: ")
    assert ch.check(Narrow(6, 6), takes="x").ok


def test_a_class_is_made_from_sizes() -> None:
    report = ch.check(Narrow, takes="x", sizes={"d_in": 6, "d_out": 4})
    assert [each.code for each in report.findings] == ["shape.fixed"]


def test_heads_together() -> None:
    with pytest.raises(ch.errors.ModelError, match="14x15 and 12x12"):
        ch.check(OneWidth(12, 3, 5), takes="x")
    assert ch.check(OneWidth(12, 3, 4), takes="x").ok


def test_a_context() -> None:
    report = ch.check(OneContext, takes="x,context", args={"d_in": 6, "d_context": 5})
    assert report.findings[0].code == "shape.fixed"
    assert report.findings[0].measured.startswith("d_context=5, d_in=6: RuntimeError: ")


def test_declared_sizes() -> None:
    sizes = {"d_in": 6, "d_out": 4}
    report = ch.check(Hidden(Narrow(6, 4)), takes="x", sizes=sizes)
    assert report.findings[0].code == "shape.fixed"


@pytest.mark.parametrize("subject", [Refusing(6, 4), Hidden(Narrow(6, 4))])
def test_what_is_refused_or_unknown_cannot_be_called(subject: nn.Module) -> None:
    with pytest.raises(ch.errors.ModelError, match="was called with takes='x'"):
        ch.check(subject, takes="x")
