"""The table of heads: how it is averaged is tested where it is made, in test_seen."""

import math
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.watching.table import HeadRow, Table, rows_of
from tests.refusals import assert_refused

ROW = HeadRow("encoder.0", 0, 3, 12, 1.234, 17.5, 0.25, 0.5, None, None, "previous")


def summary(heads: int, dims: int = 4, **options: torch.Tensor) -> ch.types.Summary:
    query = torch.randn(2, heads, 5, 3, generator=torch.Generator().manual_seed(1))
    matrix = ch.AttentionMatrix(query[0, 0], query[0, 0]) if dims == 2 else None
    matrix = matrix or ch.AttentionMatrix(query, query, mask=ch.causal())
    return replace(matrix.summary(), roles=ch.roles(matrix), **options)


def test_it_prints_columns_that_stand_below_their_names() -> None:
    table = Table([ROW, ROW._replace(layer="encoder.10", layer_number=10, head=11, role="")])
    assert repr(table) == (
        "layer       layer_number  head  entropy  distance  first  previous  role\n"
        "                                   nats    tokens\n"
        "encoder.0              0     3     1.23     17.50   0.25      0.50  previous\n"
        "encoder.10            10    11     1.23     17.50   0.25      0.50"
    )


def test_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("pandas")
    made.__dict__["DataFrame"] = lambda rows, columns: (rows, columns)
    monkeypatch.setitem(sys.modules, "pandas", made)
    rows, columns = Table([ROW]).to_pandas()
    assert rows == [ROW]
    assert columns == list(HeadRow._fields)


def test_queries_that_are_not_real_do_not_count() -> None:
    given = summary(2)
    given.entropy[1, :, 2:] = math.nan
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    rows = rows_of("a", [replace(given, real=real)])
    assert [row.queries for row in rows] == [7, 7]
    for row in rows:
        kept = torch.cat([given.entropy[0, row.head], given.entropy[1, row.head, :2]])
        assert row.entropy == pytest.approx(float(kept.mean()), abs=1e-6)


def test_a_matrix_without_batch_and_heads() -> None:
    (row,) = rows_of("a", [summary(1, dims=2)])
    assert (row.head, row.queries) == (0, 5)


def test_calls_with_different_heads_are_refused() -> None:
    assert_refused(lambda: rows_of("a", [summary(2), summary(3)]), "table.heads", "'a' // [2, 3]")


def test_a_text_without_the_choice_does_not_dilute_a_role() -> None:
    """Only the queries that have the choice are in the mean of a role."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 8)
            self.attention = ch.MultiHeadAttention(8, num_heads=1, mask=ch.causal())

        def forward(self, ids: Tensor) -> Tensor:
            return self.attention(self.embedding(ids))

    def duplicate(ids: Tensor) -> float | None:
        with ch.watch(model) as seen:
            model(ids)
        [row] = seen.table(tokens=ids)
        with ch.watch(model, keep="summary", tokens=ids) as kept:
            model(ids)
        assert kept.table()[0].duplicate == pytest.approx(row.duplicate)
        return row.duplicate

    model = Model().eval()
    repeats, unique = torch.arange(6).repeat(2)[None], torch.arange(10, 22)[None]
    alone = duplicate(repeats)
    assert alone is not None
    assert alone > 0.05
    assert duplicate(torch.cat([repeats, unique])) == pytest.approx(alone)


@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_padding_in_a_float_mask_is_not_counted(slope: float) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, valid: Tensor) -> Tensor:
            place = torch.arange(x.shape[2])
            seen = (place[:, None] >= place) & valid[:, None, None]
            bias = -slope * (place[:, None] - place).float()
            for lowest in (-torch.inf, torch.finfo(torch.float32).min):
                mask = bias.masked_fill(~seen, lowest)
                F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
            return x

    model, x = Model(), torch.randn(2, 1, 6, 4)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[1, 3:] = False
    with ch.watch(model) as seen:
        model(x, valid)
    for row, call in zip(seen.table(), seen.calls(""), strict=True):
        assert row.queries == 9
        expected = call.entropy()[:, 0][valid].mean()
        assert row.entropy == pytest.approx(float(expected), rel=1e-5)


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that attends to itself and to what was encoded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = ch.MultiHeadAttention(8, num_heads=2)
        self.decoder = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        self.cross = ch.MultiHeadAttention(8, num_heads=2)

    def forward(self, text: Tensor, source: Tensor) -> Tensor:
        return self.cross(self.decoder(text), self.encoder(source))


@pytest.mark.parametrize("source_len", [5, 6])
@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_padding_of_a_source_is_none_of_the_queries(source_len: int, keep: Any) -> None:
    torch.manual_seed(0)
    cross = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    text, source = torch.randn(2, 5, 8), torch.randn(2, source_len, 8)
    padded = torch.zeros(2, source_len, dtype=torch.bool)
    padded[1, 2:] = True
    with ch.watch(cross, keep=keep) as seen:
        _, weights = cross(
            text, source, source, key_padding_mask=padded, average_attn_weights=False
        )
    entropy = torch.special.entr(weights).sum(-1).mean((0, 2)).detach()
    for row in seen.table():
        assert row.queries == 10
        assert row.entropy == pytest.approx(float(entropy[row.head]), abs=1e-5)


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_two_texts_of_one_length_share_no_places(keep: Any, tmp_path: Path) -> None:
    """Neither by arguments in order nor by name; and a part of a text is the text itself."""
    model, ids = Seq2Seq().eval(), torch.tensor([5, 5, 5, 5, 5])
    given: Any = {"tokens": ids, "source_tokens": torch.tensor([5, 6, 7, 8, 9])}
    kept, asked = (given, {}) if keep == "summary" else ({}, given)
    with ch.watch(model, keep=keep, **kept) as seen:
        model(torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    for each in (seen, ch.load(seen.save(tmp_path / "run"))):
        rows = {row.layer: row for row in each.table(**asked) if row.head == 0}
        assert rows["decoder"].duplicate is not None
        assert rows["decoder"].duplicate > 0
        assert rows["encoder"].duplicate == 0
        assert rows["cross"][5:] == (
            None,
            rows["cross"].first,
            None,
            None,
            None,
            rows["cross"].role,
        )
        assert [each[name].cross for name in ("encoder", "decoder", "cross")] == [
            False,
            False,
            True,
        ]
    with ch.watch(model.cross, keep=keep) as one:
        x = torch.randn(1, 5, 8)
        model.cross(x, context=x.clone())
        model.cross(x, context=x.flip(1))
        model.cross(x[:, 2:], context=x)
    assert [call.cross for call in one.calls("")] == [False, True, False]
    with pytest.raises(ch.errors.ShapeError, match="of two texts, cross=True"):
        ch.roles(ch.AttentionMatrix(x, x, cross=True), ids)
    assert model.cross._forward_pre_hooks_with_kwargs == {}


@pytest.mark.parametrize("keep", ["matrix", "summary"])
def test_layers_that_share_a_module_have_rows_of_their_own(keep: Any, tmp_path: Path) -> None:
    config = transformers.AlbertConfig(
        vocab_size=19,
        embedding_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        initializer_range=0.6,
    )
    model = transformers.AlbertModel(config).eval()
    texts = torch.randint(0, 19, (2, 1, 7))
    with torch.no_grad(), ch.watch(model, keep=keep) as seen:
        for ids in texts:
            model(ids)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = [model(ids, output_attentions=True).attentions for ids in texts]
    dense = torch.cat([torch.stack(each) for each in weights], dim=1)  # layers, texts, heads …
    entropy = torch.special.entr(dense).sum(-1).mean(dim=(1, 3)).flatten()
    loaded = ch.load(seen.save(tmp_path / "a.clearhead"))
    name = seen.layers[0]
    for record in (seen, loaded):
        table = record.table()
        assert [row.layer for row in table] == [f"{name}, call {at // 2}" for at in range(6)]
        assert {row.queries for row in table} == {14}
        torch.testing.assert_close(torch.tensor([row.entropy for row in table]), entropy)
        assert record.plot("entropy").images[0].get_array().shape == (3, 2)
    if keep == "matrix":
        with torch.no_grad(), ch.watch(model) as seen:
            model(texts[0])
        assert seen.plot().shape == (3, 2)


def test_heads_have_the_numbers_of_their_layer(tmp_path: Path) -> None:
    model = nn.Sequential(ch.MultiHeadAttention(8, num_heads=4))
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), ch.watch(model) as whole:
        model(x)
    every: tuple[Any, ...] = ("matrix", "summary", "total")
    records: list[Any] = []
    for keep in every:
        seen: Any
        with torch.no_grad(), ch.watch(model, heads=[3, 1], keep=keep) as seen:
            model(x)
        records.append(seen)
        merged = seen.merge(seen) if keep == "total" else seen
        for record in (seen, ch.load(seen.save(tmp_path / "a.clearhead")), merged):
            rows = record.table()
            assert [row.head for row in rows] == [3, 1]
            assert rows[0].entropy == pytest.approx(whole.table()[3].entropy, abs=1e-5)
            assert record.head_numbers(0) == (3, 1)
            if keep == "matrix":
                assert {link.head for link in record.find(2, 1)} == {1, 3}
                assert record.find(2, 1)[0].head in (1, 3)
                page = record.to_html(tmp_path / "a.html", tokens=list("abcde"), start=(0, 3))
                assert page.exists()
    assert whole.head_numbers(0) == (0, 1, 2, 3)
    with torch.no_grad(), ch.watch(model, heads=[0, 2], keep="total") as others:
        model(x)
    assert_refused(lambda: records[-1].merge(others), "merge.heads", "(3, 1) // (0, 2)")


class Universal(nn.Module):
    """One layer that is applied again and again, as in ALBERT."""

    def __init__(self, times: int = 3) -> None:
        super().__init__()
        self.layer, self.times = ch.MultiHeadAttention(8, num_heads=2), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.layer(x)
        return x


def test_totals_of_a_module_that_is_several_layers(tmp_path: Path) -> None:
    model = Universal()
    texts = [torch.randn(2, length, 8) for length in (5, 7)]
    every: Any = ("matrix", "total")
    tables: list[Any] = []
    records: list[Any] = []
    for keep in every:
        seen: Any
        with torch.no_grad(), ch.watch(model, keep=keep) as seen:
            for text in texts:
                model(text)
        records.append(seen)
        tables.append(seen.table())
    for one, other in zip(*tables, strict=True):
        assert one[:3] == other[:3]
        assert one[3:6] == pytest.approx(other[3:6])
    assert [row.layer for row in tables[1]][::2] == [f"layer, call {at}" for at in range(3)]
    kept = records[1]
    assert kept[0].queries == 3 * 24
    again = ch.load(kept.save(tmp_path / "a.clearhead"))
    assert list(again.table()) == list(kept.table())
    both = kept.merge(again).table()
    assert [row.queries for row in both] == [48] * 6
    assert both[2].entropy == pytest.approx(tables[1][2].entropy)
    # Calls of the same place are merged also where runs have other numbers of calls.
    for change in (lambda: setattr(model, "times", 2), lambda: setattr(model, "times", 4)):
        model.times = 3
        with torch.no_grad(), ch.watch(model, keep="total") as seen:
            model(texts[0])
            change()
            model(texts[0])
        counts = [row.queries for row in seen.table()][::2]
        assert counts == [10 * ((at < 3) + (at < model.times)) for at in range(max(3, model.times))]
    with torch.no_grad(), ch.watch(model, keep="total") as seen:
        model.layer(texts[0])
        model.layer(texts[0])
    assert [row.queries for row in seen.table()] == [20, 20]


@pytest.mark.parametrize("keep", ["summary", "total"])
def test_the_first_token_behind_a_window(keep: Any) -> None:
    config = transformers.MistralConfig(
        vocab_size=19, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, sliding_window=4, initializer_range=0.6,
    )  # fmt: skip
    model: Any = transformers.MistralForCausalLM(config).eval()
    ids, valid = torch.randint(1, 19, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    valid[1, :3] = 0  # its first token stays in the window for longer
    tables = []
    every: Any = ("matrix", keep)
    for each in every:
        with torch.no_grad(), ch.watch(model, keep=each) as seen:
            given = {"attention_mask": valid, "pad_token_id": 0, "eos_token_id": None}
            model.generate(ids, max_new_tokens=7, do_sample=False, **given)
        tables.append(seen.table())
    for one, other in zip(*tables, strict=True):
        assert other.queries == one.queries
        assert other.first == pytest.approx(one.first, abs=1e-5)


def test_the_first_token_of_a_cache_that_is_cut_or_older() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    x = torch.randn(1, 9, 8)
    cache = ch.layers.GrowingCache()
    with torch.no_grad(), ch.watch(layer) as whole:
        layer(x)
    first = whole[0].dense()[0, 0, :, 0]
    with torch.no_grad():
        layer(x[:, :2], cache=cache)
        with ch.watch(layer, keep="summary") as seen:
            layer(x[:, 2:6], cache=cache)
            cache.truncate(4)
            layer(x[:, 4:9], cache=cache)
    found = [call.roles.first[0, 0] for call in seen.calls(0) if call.roles is not None]
    assert found == [
        pytest.approx(float(first[2:6].mean())),
        pytest.approx(float(first[4:].mean())),
    ]
