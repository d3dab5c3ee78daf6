"""The difference of two runs, held against the matrices as a whole."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.watching import whole_record
from tests.refusals import refusals

X = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def model(layers: int = 2, heads: int = 2) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        *(ch.MultiHeadAttention(8, num_heads=heads, mask=ch.causal()) for _ in range(layers))
    ).double()


def seen(made: nn.Module, x: Tensor = X, **options: Any) -> ch.types.Seen[Any]:
    with torch.no_grad(), ch.watch(made, **options) as found:
        made(x)
    return found


def dense(one: Any, other: Any, real: Tensor | None = None) -> Tensor:
    """(num_heads,), from the two matrices as a whole."""
    apart = (one.dense() - other.dense()).abs().sum(dim=-1) / 2
    return apart.mean(dim=(0, 2)) if real is None else apart.transpose(0, 1)[:, real].mean(dim=-1)


@pytest.mark.parametrize("portion", [1, 1 << 22])
def test_it_is_half_of_what_the_weights_differ_by(
    monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(whole_record, "PORTION", portion)
    made = model()
    one, other = seen(made), seen(made, X.flip(1))
    found = one.difference(other)
    expected = torch.cat([dense(one[name], other[name]) for name in one])
    torch.testing.assert_close(found["total_variation"], expected)
    assert found["layer"] == ["0", "0", "1", "1"]
    assert found["layer_number"].tolist() == [0, 0, 1, 1]
    assert found["head"].tolist() == [0, 1, 0, 1]
    assert set(found["queries"].tolist()) == {14}
    assert found.top(1)[0].head == int(expected.argmax())
    same = other.difference(one)["total_variation"]
    torch.testing.assert_close(same, found["total_variation"])


def test_padding_of_both_does_not_count() -> None:
    made = model(layers=1)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, 4:] = False

    def read(x: Tensor) -> ch.types.Seen[Any]:
        with torch.no_grad(), ch.watch(made) as found:
            made[0](x, valid=valid)
        return found

    one, other = read(X), read(X.flip(2))
    found = one.difference(other)
    assert set(found["queries"].tolist()) == {11}
    torch.testing.assert_close(found["total_variation"], dense(one[0], other[0], valid))


def test_weights_that_share_nothing_are_wholly_elsewhere() -> None:
    made = model(layers=1)
    with torch.no_grad(), ch.watch(made) as one:
        made[0](X, mask=ch.dense(torch.eye(7, dtype=torch.bool)))
    with torch.no_grad(), ch.watch(made) as other:
        made[0](X, mask=ch.dense(~torch.eye(7, dtype=torch.bool)))
    # The first query has nothing before it to see, beside itself.
    assert one.difference(other)["total_variation"].tolist() == [pytest.approx(6.5 / 7)] * 2


def test_heads_keep_their_numbers_and_calls_go_together() -> None:
    made = model(layers=1, heads=4)

    def read(x: Tensor) -> ch.types.Seen[Any]:
        with torch.no_grad(), ch.watch(made, heads=[1, 3]) as found:
            made(x)
            made(x[:, :3])
        return found

    one, other = read(X), read(X.flip(1))
    found = one.difference(other)
    assert found["head"].tolist() == [1, 3]
    assert set(found["queries"].tolist()) == {20}
    sums = [
        (a.dense() - b.dense()).abs().sum(dim=(0, 2, 3)) / 2
        for a, b in zip(one.calls(0), other.calls(0), strict=True)
    ]
    torch.testing.assert_close(found["total_variation"], torch.stack(sums).sum(dim=0) / 20)


test_runs_that_do_not_fit = refusals(
    lambda other: seen(model()).difference(other()),
    (lambda: seen(model(3)), "difference.layers", "('0', '1') // ('0', '1', '2')"),
    (lambda: seen(model(heads=4)), "difference.heads", "'0' // (0, 1) // (0, 1, 2, 3)"),
    (
        lambda: seen(model(), X[:, :5]),
        "difference.shape",
        "'0' // [(2, 2, 7, 7)] // [(2, 2, 5, 5)]",
    ),
    (lambda: seen(model(), keep="summary"), "difference.keep", "'matrix' and 'summary'"),
    (lambda: 3, "difference.type", "int"),
)
