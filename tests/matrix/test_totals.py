"""Totals of batches are those of all texts, each counted as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.totals import Totals, totals_of
from tests.refusals import assert_refused


class Reader(nn.Module):
    """Two causal layers over embedded ids, which may be padded on the right."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab")

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        mask = ch.causal() if lengths is None else ch.causal() & ch.padding(lengths)
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x, mask=mask)
        return x


def seen_of(model: nn.Module, batches: list[list[list[int]]], **options: Any) -> Any:
    with torch.no_grad(), ch.watch(model, **options) as seen:
        for texts in batches:
            longest = max(map(len, texts))
            ids = torch.tensor([each + [0] * (longest - len(each)) for each in texts])
            model(ids, [len(each) for each in texts] if len(texts) > 1 else None)
    return seen


TEXTS = [[1, 2, 3, 1, 2, 3, 1], [4, 4, 5], [6, 1, 2, 3, 5], [2], [3, 1, 3, 1, 6, 6, 2, 4, 3, 1, 5]]


def rows(seen: Any) -> list[list[float]]:
    return [[number for number in row[2:-1] if number is not None] for row in seen.table()]


def test_totals_are_those_of_all_texts(tmp_path: Path) -> None:
    """However the texts are batched, whatever is padded, and put together from two parts."""
    model = Reader().eval()
    one_by_one = seen_of(model, [[each] for each in TEXTS], keep="summary")
    batched = seen_of(model, [TEXTS[:3], TEXTS[3:]], keep="total")
    parts = [seen_of(model, [each], keep="total") for each in (TEXTS[:2], TEXTS[2:])]
    parts = [ch.load(each.save(tmp_path / "part")) for each in parts]
    expected = torch.tensor(rows(one_by_one), dtype=torch.float64)
    assert expected.shape == (4, 8)
    assert (expected[:, 1] == sum(map(len, TEXTS))).all()
    for seen in (batched, parts[0].merge(parts[1])):
        torch.testing.assert_close(
            torch.tensor(rows(seen), dtype=torch.float64), expected, atol=1e-6, rtol=1e-6
        )
        for name in seen:
            calls = one_by_one.calls(name)
            largest = torch.cat([each.max_score[0] for each in calls], dim=-1).amax(dim=-1)
            torch.testing.assert_close(seen[name].max_score.float(), largest)
            most = torch.cat([each.max[0] for each in calls], dim=-1).mean(dim=-1)
            torch.testing.assert_close(seen[name].max.float(), most)
            assert seen[name].entropy.shape == (2,)


def test_what_a_call_cannot_tell_is_told_of_none() -> None:
    model = Reader().eval()
    with torch.no_grad(), ch.watch(model, keep="total") as seen:
        model(torch.tensor([[1, 2, 1, 2]]))
        model.layers[0](torch.randn(1, 4, 8))
    table = seen.table()
    assert (table[0].queries, table[0].duplicate) == (8, None)
    assert table[2].queries == 4
    assert table[2].duplicate is not None


def test_a_call_without_queries() -> None:
    matrix = ch.AttentionMatrix(torch.zeros(1, 2, 0, 3), torch.zeros(1, 2, 5, 3))
    found = totals_of(summary_with_roles(matrix))
    assert found.queries == 0
    assert found.max_score.tolist() == [-torch.inf, -torch.inf]
    assert found.merge(found).queries == 0


def totals(heads: int = 2, *, cross: bool = False) -> Totals:
    query = torch.randn(1, heads, 5, 3)
    return totals_of(summary_with_roles(ch.AttentionMatrix(query, query, cross=cross)))


def test_what_does_not_merge() -> None:
    merge: Any = totals().merge
    assert_refused(lambda: merge(3), "merge.type", "int")
    assert_refused(lambda: merge(totals(3)), "merge.heads", "(0, 1) // (0, 1, 2)")
    assert_refused(lambda: merge(totals(cross=True)), "merge.fields", "distance // cross-attention")
    both = totals(cross=True).merge(totals(cross=True))
    assert (both.queries, both.distance) == (2 * totals(cross=True).queries, None)
    model = Reader()
    whole = seen_of(model, [TEXTS], keep="total")
    assert_refused(lambda: whole.merge(seen_of(model, [TEXTS], keep="summary")), "merge.type")
    with pytest.raises(ch.errors.ShapeError, match=r"same modules; got 'layers.0', 'layers.1' and"):
        whole.merge(seen_of(model, [TEXTS], keep="total", layers="layers.1"))
    assert_refused(whole.plot, "watch.results", "plot // 'total'")
    assert "Totals [num_heads=2] of 27 queries" in repr(whole)
    assert "27 queries" in whole._repr_html_()
