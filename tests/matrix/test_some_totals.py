"""Some of the totals, held against all of them."""

from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.matrix import base
from clearhead.matrix.some_totals import NAMES
from tests.refusals import refusals


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 8)
        self.attention = ch.MultiHeadAttention(8, num_heads=4, mask=ch.causal())

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        return self.attention(self.embedding(ids), valid=valid)


def read(**options: Any) -> ch.types.Seen[Any]:
    model, generator = Reads(), torch.Generator().manual_seed(1)
    with torch.no_grad(), ch.watch(model, keep="total", **options) as seen:
        for length in (7, 4, 9):
            ids = torch.randint(0, 9, (3, length), generator=generator)
            lengths = torch.tensor([length, 2, 3])
            model(ids, torch.arange(length) < lengths[:, None])
    return seen


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("names", [("entropy", "first"), ("induction",), NAMES, ("previous",)])
def test_they_are_those_of_all(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], few: bool
) -> None:
    whole = read().table()
    if not few:
        monkeypatch.setattr(base, "PORTION", 1)
    some = read(statistics=names)
    table = some.table()
    assert table["queries"].equal(whole["queries"])
    for name in NAMES:
        if name in names:
            torch.testing.assert_close(table[name], whole[name], rtol=1e-5, atol=1e-6)
        else:
            assert table[name].isnan().all()
            assert name not in repr(table)
    assert "role" not in repr(table).split()
    both = some.merge(some)
    assert both[0].queries == 2 * some[0].queries
    torch.testing.assert_close(both.table()[names[0]], table[names[0]])


def test_of_some_heads_and_of_two_texts() -> None:
    some = read(statistics=["entropy"], heads=[1, -1])
    assert some.table()["head"].tolist() == [1, 3]
    cross, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
    with torch.no_grad(), ch.watch(cross, keep="total", statistics=NAMES) as seen:
        cross(x, context=torch.randn(1, 5, 8))
    assert list(seen[0].means) == ["entropy", "first"]


def test_what_cannot_be_merged() -> None:
    some, other = read(statistics=["entropy"]), read(statistics=["first"])
    for one, two, code in [
        (some[0], other[0], "merge.fields"),
        (some[0], 3, "merge.type"),
        (some[0], read(statistics=["entropy"], heads=[0])[0], "merge.shape"),
        (read(statistics=["entropy"], heads=[1])[0], read(statistics=["entropy"], heads=[0])[0], "merge.heads"),
    ]:  # fmt: skip
        with pytest.raises(ch.errors.ClearheadError) as raised:
            one.merge(two)
        assert raised.value.code == code


test_what_cannot_be_asked_for = refusals(
    lambda options: ch.watch(Reads(), **options),
    ({"statistics": "entropy", "keep": "total"}, "statistics.type", "'entropy'"),
    ({"statistics": 3, "keep": "total"}, "statistics.type", "3"),
    (
        {"statistics": [], "keep": "total"},
        "statistics.value",
        "entropy, distance, first, previous, duplicate, induction // []",
    ),
    (
        {"statistics": ["entopy"], "keep": "total"},
        "statistics.value",
        "entropy, distance, first, previous, duplicate, induction // ['entopy']",
    ),
    ({"statistics": ["entropy"]}, "statistics.keep"),
    ({"statistics": ["entropy"], "keep": "summary"}, "statistics.keep"),
)
