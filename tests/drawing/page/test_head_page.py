"""The heads of a model as a payload."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.drawing.page import head_arrays, head_page
from clearhead.drawing.page import runs as page_runs
from clearhead.drawing.page.head_page import Layer, Run, heads_payload, write_heads
from clearhead.drawing.page.payload import WORD, Deflated, Payload
from clearhead.drawing.page.runs import Start, layers_of, read_run
from clearhead.drawing.page.texts import read_text
from clearhead.errors import ArgumentError, FileError
from clearhead.matrix.head_numbers import ROLES
from tests.drawing.page.restoring import restored
from tests.refusals import refusals, wrong


def tensors(payload: Payload) -> dict[str, Tensor]:
    """The arrays, those included that were deflated before."""
    dtypes = {"uint8": torch.uint8, "uint16": torch.uint16, "int32": torch.int32}
    return {
        name: torch.frombuffer(
            bytearray(zlib.decompress(each.content)), dtype=dtypes[each.dtype]
        ).reshape(each.shape)
        if isinstance(each, Deflated)
        else each
        for name, each in payload.arrays.items()
    }


def matrix(*sizes: int, seed: int = 0, **options: Any) -> ch.AttentionMatrix:
    """(…, num_heads, query_len, kv_len)"""
    generator = torch.Generator().manual_seed(seed)
    *leading, query_len, kv_len = sizes
    query = torch.randn(*leading, query_len, 5, generator=generator)
    key = torch.randn(*leading, kv_len, 5, generator=generator)
    return ch.AttentionMatrix(query, key, **options)


def of(seen: ch.AttentionMatrix | ch.types.Summary, **options: Any) -> Payload:
    return heads_payload([Run("", [Layer("a", seen)], **options)], "a title")


def test_weights_follow_from_the_query_and_key_of_a_page() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 7, 3), torch.randn(2, 2, 11, 3)
    options = {"softcap": 2.0, "sinks": torch.randn(4), "bias": torch.randn(1, 4, 7, 11)}
    seen = ch.AttentionMatrix(query, key, **options)
    run = Run("", [Layer("a", seen)], sample=1)
    assert "why" not in heads_payload([run], "").data["layers"][0]
    payload = heads_payload([run], "", why=True)
    about, arrays = payload.data["layers"][0]["why"], tensors(payload)
    for head in range(4):
        scores = arrays[f"0/{head}/query"] @ arrays[f"0/{head // 2}/key"].T * about["scale"]
        scores = about["softcap"] * torch.tanh(scores / about["softcap"])
        sink = torch.full((7, 1), about["sinks"][head])
        every = torch.cat([scores + arrays[f"0/{head}/bias"], sink], dim=1)
        torch.testing.assert_close(every.softmax(dim=1)[:, :-1], seen[1, head])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sizes", [[2, 3, 7, 7], [3, 7, 11], [7, 11]])
def test_every_weight_of_a_short_text_is_there(
    sizes: list[int], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_page, "EXACT_BYTES", 10_000 if exact else 0)
    seen = matrix(*sizes, mask=ch.causal())
    payload = of(seen, sample=len(sizes) // 4)
    layer, arrays = payload.data["layers"][0], tensors(payload)
    weights = seen.dense().reshape(-1, *([1, *sizes])[-3:])[-1]
    about = layer["weights"]
    assert (layer["heads"], layer["queries"], layer["keys"]) == tuple(weights.shape)
    assert about["shape"] == sizes[-2:]
    assert about.get("exact", False) == exact
    hidden = torch.ones(sizes[-2:]).tril(sizes[-1] - sizes[-2]) == 0
    for head, true in enumerate(weights):
        codes = arrays[f"0/{head}/weights"]
        if exact:
            assert torch.equal(codes, true.masked_fill(hidden, -1.0))
            continue
        assert torch.equal(codes == 0, hidden)
        top = about["top"][head]
        there = restored(codes[None], about | {"top": [top]})[0]
        assert top == float(true.max())
        bound = (true * top).sqrt() / about["levels"] + top / (4 * about["levels"] ** 2) + 1e-7
        assert bool(((there - true).abs() <= bound).all())


def test_numbers_of_tokens_are_those_of_the_matrix() -> None:
    seen = matrix(1, 3, 7, 7, mask=ch.causal())
    payload = of(seen)
    layer, arrays = payload.data["layers"][0], tensors(payload)
    for name, true in (
        ("entropy", seen.entropy()),
        ("distance", seen.distance()),
        ("max", seen.max()),
        ("received", seen.received()),
    ):
        there = restored(arrays[f"0/{name}"].int(), layer[name])
        torch.testing.assert_close(there, true[0], rtol=1e-3, atol=1e-4)


def test_rows_are_those_of_the_table() -> None:
    torch.manual_seed(0)
    model = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    with ch.watch(model) as seen, torch.no_grad():
        model(torch.randn(1, 13, 8))
    tokens = torch.tensor([1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1])
    payload = heads_payload([Run("", [Layer("", seen[0])], read_text("tokens", tokens))], "")
    rows = payload.data["layers"][0]["rows"]
    for row, true in zip(rows, seen.table(tokens), strict=True):
        scores = row.pop("scores")
        expected = {name: getattr(true, name) for name in row}
        assert row == expected
        assert scores == {name: getattr(true, name) for name in ROLES}
        assert scores["induction"] is not None


def test_a_long_text_is_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_runs, "LONG", 20)
    seen = matrix(1, 2, 23, 29, mask=ch.causal())
    payload = of(seen)
    layer, arrays = payload.data["layers"][0], tensors(payload)
    assert "weights" not in layer
    assert layer["pooled"]["shape"] == [23, 29]
    weights = seen.dense()[0]
    for head in range(2):
        about = layer["pooled"] | {"top": [layer["pooled"]["top"][head]]}
        there = restored(arrays[f"0/{head}/pooled"][None], about)[0]
        assert float((there - weights[head]).abs().max()) <= about["top"][0] / about["levels"]
    true = seen.top_k(8)
    for rank in range(layer["links"]["count"]):
        for head in range(2):
            planes = arrays[f"0/{head}/back{rank}"].int()
            zigzag = sum(plane << 8 * n for n, plane in enumerate(planes))
            assert isinstance(zigzag, Tensor)
            back = torch.where(zigzag % 2 == 1, -(zigzag + 1) // 2, zigzag // 2)
            keys = true.keys[0, head, :, rank]
            where = torch.arange(23) + 6
            assert torch.equal((where - back)[keys >= 0], keys[keys >= 0])


def spans_of(payload: Payload) -> Tensor:
    """(edges, queries)"""
    return tensors(payload)["0/spans"].cumsum(dim=1)


def test_a_long_text_knows_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_runs, "LONG", 20)
    monkeypatch.setattr(head_arrays, "MAPS", (7,))
    monkeypatch.setattr(head_page, "MAPS", (7,))
    position = torch.arange(23)
    for mask, runs in [
        (ch.causal(), [0 * position, position + 7]),
        (ch.sliding_window(left=3, right=0), [(position + 3).clamp(min=0), position + 7]),
    ]:
        seen = matrix(1, 2, 23, 29, mask=mask)
        payload = of(seen)
        layer, arrays = payload.data["layers"][0], tensors(payload)
        assert layer["spans"] == {"pieces": 1}
        assert torch.equal(spans_of(payload), torch.stack(runs))
        # Grey in either map: cells in which no pair is visible.
        blocks = seen.dense()[0, 0].new_zeros(7, 7)
        rows, columns = position * 7 // 23, torch.arange(29) * 7 // 29
        blocks.index_put_(
            (rows[:, None], columns[None]), (seen.dense()[0, 0] > 0).float(), accumulate=True
        )
        for name in ("0/0/pooled", "0/small"):
            codes = arrays[name] if arrays[name].ndim == 2 else arrays[name][0]
            assert torch.equal(codes == 0, blocks == 0)
    assert of(matrix(1, 2, 23, 29)).data["layers"][0]["spans"] is None


def test_a_summary_of_a_causal_model_hides_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_runs, "LONG", 20)
    for mask, known in ((ch.causal(), True), (None, False)):
        summary = matrix(1, 2, 23, 23, mask=mask).summary(top_k=2, pool=(7, 7))
        layer = of(summary).data["layers"][0]
        assert (layer.get("spans") is not None) == known
        if known:
            assert torch.equal(spans_of(of(summary))[1], torch.arange(23) + 1)
    # What tells too little, or of one key, is not taken for causal.
    for keys, top_k in ((23, None), (1, 1)):
        weights = matrix(1, 2, 23, keys, mask=ch.causal())
        told = of(weights.summary(top_k=top_k, pool=(7, min(7, keys)))).data["layers"][0]
        assert "spans" not in told
        assert told["pooled"] is not None


def test_heads_between_two_texts_have_neither_roles_nor_distance() -> None:
    texts = [read_text("tokens", ["a"] * 7), read_text("source_tokens", ["b"] * 7)]
    layer = Layer("decoder", matrix(1, 2, 7, 7, cross=True))
    data = heads_payload([Run("", [layer], texts[0], texts[1])], "").data["layers"][0]
    assert data["cross"]
    for row in data["rows"]:
        assert (row["distance"], row["role"]) == (None, "")
        assert set(row["scores"].values()) == {None}
        assert row["entropy"] is not None
    # As the matrix knows where there is no text.
    assert heads_payload([Run("", [layer])], "").data["layers"][0]["cross"]


def head_of(content: bytes) -> dict[str, Any]:
    """The data of a payload, as the page reads it."""
    size = int.from_bytes(content[14:18], "little")
    return json.loads(zlib.decompress(content[18 : 18 + size]))["data"]


@pytest.mark.parametrize("layers", [None, [2, 3], [-1], ["1"]])
def test_a_page_numbers_layers_and_heads_as_the_table_does(layers: Any, tmp_path: Path) -> None:
    model = nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=4) for _ in range(4)))
    with torch.no_grad(), ch.watch(model, layers=layers, heads=[1, 3]) as seen:
        model(torch.randn(1, 5, 8))
    rows = {(row.layer_number, row.head): row.entropy for row in seen.table()}
    last = max(rows)
    page = seen.to_html(tmp_path / "page.html", start=last).read_text()
    found = re.search(r'id="clearhead-payload"[^>]*>([^<]*)<', page)
    assert found is not None
    data = [head_of(base64.b64decode(found[1]))]
    saved = ch.load(seen.save(tmp_path / "run.clearhead"))
    data.append(head_of(heads_payload([read_run(layers_of(saved))], "a run").to_bytes()))
    for each in data:
        heads = {
            (layer["number"], head): row["entropy"]
            for layer in each["layers"]
            for head, row in zip(layer["head_numbers"], layer["rows"], strict=True)
        }
        assert heads == pytest.approx(rows)
    opened = data[0]["layers"][data[0]["start"]["layer"]]
    assert (opened["number"], opened["head_numbers"][data[0]["start"]["head"]]) == last
    with pytest.raises(ArgumentError, match=re.escape(f"such as {min(rows)}; got (7, 0).")):
        seen.to_html(tmp_path / "page.html", start=(7, 0))


def test_calls_of_a_layer_have_its_number_and_their_own(tmp_path: Path) -> None:
    model = nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with torch.no_grad(), ch.watch(model, layers=[1, 2]) as seen:
        for length in (3, 5):
            model(torch.randn(1, length, 8))
    layers = layers_of(seen, [2])
    assert [(each.name, each.number, each.call) for each in layers] == [
        ("2, call 0", 2, 0),
        ("2, call 1", 2, 1),
    ]
    data = heads_payload([Run("", layers_of(seen))], "", start=Start((2, 1))).data
    assert [(each["number"], each["call"]) for each in data["layers"]] == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert data["start"] == {"layer": 2, "head": 1}


def test_links_go_in_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_runs, "LONG", 20)
    seen = matrix(1, 2, 211, 223)
    monkeypatch.setattr(head_page, "LONG_BYTES", 10**9)
    roomy = of(seen).data["layers"][0]
    monkeypatch.setattr(head_page, "LONG_BYTES", 100)
    narrow = of(seen).data["layers"][0]
    assert (roomy["links"]["count"], narrow["links"]["count"]) == (8, 1)
    assert (roomy["pooled"]["shape"], narrow["pooled"]["shape"]) == ([211, 223], [128, 128])


def test_weights_are_rounded_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_page, "EXACT_BYTES", 0)
    seen = matrix(1, 2, 41, 43)
    found = []
    for room in (10**6, 5000, 2800, 100):
        monkeypatch.setattr(head_arrays, "SHORT_BYTES", room)
        found.append(of(seen).data["layers"][0]["weights"]["levels"])
    assert found[:2] == [WORD, 253]
    assert found[1] > found[2] > found[3] == 17
    monkeypatch.undo()
    assert head_arrays.EXACT_BYTES == 1_000_000
    assert of(matrix(1, 8, 179, 181)).data["layers"][0]["weights"]["levels"] == WORD
    assert "exact" in of(matrix(1, 1, 179, 181)).data["layers"][0]["weights"]


def test_a_summary_is_drawn_as_far_as_it_goes() -> None:
    seen = matrix(1, 2, 7, 11)
    bare = of(seen.summary())
    layer = bare.data["layers"][0]
    assert layer.keys().isdisjoint({"weights", "pooled", "links", "small"})
    assert layer["rows"][0]["role"] == ""
    more = of(seen.summary(top_k=2, pool=(3, 5))).data["layers"][0]
    assert (more["pooled"]["shape"], more["links"]["count"]) == ([3, 5], 2)


def test_two_runs_share_their_text() -> None:
    text = read_text("tokens", ["to", "be", "or"])
    runs = [
        Run(name, [Layer("a", matrix(2, 3, 3, seed=seed))], text) for seed, name in enumerate("AB")
    ]
    data = heads_payload(runs, "").data
    assert data["runs"] == ["A", "B"]
    assert data["texts"] == [("to", "be", "or")]
    assert [layer["run"] for layer in data["layers"]] == [0, 1]


def test_grouped_heads_share_what_they_receive() -> None:
    payload = of(ch.AttentionMatrix(torch.randn(1, 4, 7, 5), torch.randn(1, 2, 7, 5)))
    assert payload.data["layers"][0]["kv_heads"] == 2
    assert tuple(tensors(payload)["0/received"].shape) == (2, 7)
    empty = of(matrix(1, 2, 0, 5)).data["layers"][0]
    assert (empty["queries"], empty["keys"]) == (0, 5)


LARGE = matrix(2, 700, 1000, bias=torch.zeros(700, 1000))
test_what_cannot_be_drawn_is_refused = refusals(
    lambda given: heads_payload(given[0], "", why=given[1]),
    (([Run("", [])], False), "page.empty"),
    (([Run("", [Layer("a", wrong(torch.zeros(3, 3)))])], False), "page.type", "Tensor"),
    (([Run("", [Layer("a", matrix(2, 1, 3, 3))], sample=2)], False), "page.sample", "2 // 2"),
    (
        ([Run("", [Layer("a", matrix(3, 3))], read_text("tokens", ["a", "b"]))], False),
        "page.lengths",
        "a // 3 // 2 tokens",
    ),
    # Query and key that there are not, and those that are too large.
    (([Run("", [Layer("a", matrix(2, 7, 7).summary())])], True), "page.why"),
    (([Run("", [Layer("a", LARGE), Layer("b", LARGE)])], True), "page.why", "11.3 MB // 8.0 MB"),
)
test_what_cannot_be_written_is_refused = refusals(
    lambda options: write_heads(**{"path": "a.html", "runs": [[("", matrix(2, 7, 7))]]} | options),
    ({"names": ("a", "b")}, "page.one-run", "('a', 'b')"),
    ({"other_tokens": ["a"] * 7}, "page.one-run"),
    ({"sample": "1"}, "page.sample-type", "str"),
)


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work() -> None:
    with pytest.raises(FileError, match=r"\[file.unwritable\]"):
        write_heads("/nowhere/a.html", wrong(3))


@pytest.mark.parametrize(
    ("tokens", "title"),
    [
        (["to", " be", " or"], "to be or"),
        (["to", "be", "or"], "to be or"),
        (["it"] * 17, " ".join(["it"] * 16) + " …"),
        (None, "Attention"),
    ],
)
def test_the_title_is_the_beginning_of_the_text(
    tokens: list[str] | None, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Payload] = []
    monkeypatch.setattr(
        head_page, "write_page", lambda path, payload: written.append(payload) or path
    )
    size = 3 if tokens is None else len(tokens)
    write_heads(tmp_path / "a.html", [[("a", matrix(2, size, size))]], tokens=tokens)
    assert written[0].title == title
    kind = "keys" if tokens is None else "tokens"
    assert written[0].data["note"] == f"1 layer · {size} {kind}"


def test_a_long_text_opens_at_a_far_link_and_not_at_the_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads: everything to the first token, the token before, nothing in particular, the same token 12 before."""
    monkeypatch.setattr(page_runs, "LONG", 20)
    size = 30
    scores = torch.zeros(1, 4, size, size)
    scores[:, 0, :, 0] = 9.0
    scores[:, 1] += 9 * torch.ones(size, size).tril(-1).triu(-1)
    scores[:, 3] += 9 * torch.ones(size, size).tril(-12).triu(-12)
    eye = torch.eye(size)[None, None]
    layers = [
        Layer(name, ch.AttentionMatrix(scores[:, heads], eye, scale=1.0, mask=ch.causal()))
        for name, heads in (("a", [0, 1]), ("b", [2, 3]))
    ]
    text = read_text("tokens", [f"w{each}" for each in range(size)])
    for read in (text, None):
        start = heads_payload([Run("", layers, read)], "").data["start"]
        assert (start["layer"], start["head"]) == (1, 1)
        assert start["query"] - start["key"] == 12


def test_every_weight_of_few_words_over_many_moments_is_there() -> None:
    """1500 moments are those of 30 seconds of Whisper."""
    layer = of(ch.AttentionMatrix(torch.randn(2, 7, 3), torch.randn(2, 1500, 3), cross=True))
    assert layer.data["layers"][0]["weights"]["shape"] == [7, 1500]
    layer = of(ch.AttentionMatrix(torch.randn(2, 7, 3), torch.randn(2, 4097, 3), cross=True))
    assert "weights" not in layer.data["layers"][0]
