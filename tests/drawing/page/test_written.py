"""The tokens that heads raise and lower: packed into a page."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.drawing.page import written
from clearhead.drawing.page.head_page import heads_payload
from clearhead.drawing.page.payload import Payload
from clearhead.drawing.page.runs import read_run
from clearhead.drawing.page.written import SIDES, STEPS, Written
from clearhead.errors import ArgumentError
from clearhead.reading.written_tokens import Writes, WrittenToken
from tests.refusals import assert_refused, refusals

VOCABULARY = 23
WORDS = [f"w{number}" for number in range(VOCABULARY)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


def model() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Embedding(VOCABULARY, 8), Block(), Block(), nn.LayerNorm(8), nn.Linear(8, VOCABULARY)
    return nn.Sequential(*parts).requires_grad_(False)


IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def seen_by(of: nn.Module) -> ch.types.Seen[Any]:
    with ch.watch(of) as seen:
        of(IDS)
    return seen


def page_of(seen: ch.types.Seen[Any], writes: Any, words: Any = None, sample: int = 0) -> Payload:
    run = read_run(seen.parts(), None, None, sample)
    return heads_payload([run], "a page", writes=Written(writes, words))


def read(payload: Payload, layer: int, head: int, query: int) -> dict[str, list[Any]]:
    """What a page says of a head at a query, as its script reads it."""
    about, arrays = payload.data["writes"], payload.arrays
    top = about["top"]
    most: Any = arrays[f"{layer}/written-most"]
    found = {}
    for side, name in enumerate(SIDES):
        part = slice(side * top, (side + 1) * top)
        tokens: Any = arrays[f"{layer}/{head}/written"]
        codes: Any = arrays[f"{layer}/{head}/above"]
        pairs = zip(tokens[query, part].tolist(), codes[query, part].tolist(), strict=True)
        step = float(most[head, query]) / STEPS
        found[name] = [
            (about["words"][token - 1], (code - STEPS - 1) * step) for token, code in pairs if token
        ]
    return found


@pytest.mark.parametrize("sample", [0, 1])
def test_a_page_has_what_every_head_raises_and_lowers(sample: int) -> None:
    of = model()
    found = ch.reading.writes(of, IDS, query=None)
    payload = page_of(seen_by(of), found, WORDS, sample)
    rows = [each for each in found.lists() if each["sample"] == sample]
    assert len(rows) == 2 * 2 * 5
    for each in rows:
        layer = {"1.attention": 0, "2.attention": 1}[each["layer"]]
        told = read(payload, layer, each["head"], each["query"])
        most = max(abs(above) for side in SIDES for _, above in each[side])
        for side in SIDES:
            assert [word for word, _ in told[side]] == [WORDS[token] for token, _ in each[side]]
            for (_, rounded), (_, above) in zip(told[side], each[side], strict=True):
                assert rounded == pytest.approx(above, abs=1.001 * most / STEPS / 2)


def test_one_query_is_known_of_its_own_only() -> None:
    of = model()
    payload = page_of(seen_by(of), ch.reading.writes(of, IDS, query=2, top=3))
    assert [len(read(payload, 1, 1, query)["raised"]) for query in range(5)] == [0, 0, 3, 0, 0]
    assert all(word.startswith("#") for word in payload.data["writes"]["words"])


def test_heads_that_a_run_does_not_show_write_nothing_in_it() -> None:
    of = model()
    payload = page_of(seen_by(of), ch.reading.writes(of, IDS, query=None).of("2.attention", head=1))
    told = [layer.get("writes") is not None for layer in payload.data["layers"]]
    assert told == [False, True]
    assert read(payload, 1, 0, 4) == {"raised": [], "lowered": []}
    assert read(payload, 1, 1, 4)["raised"]


def test_a_page_takes_as_many_tokens_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    of = model()
    seen, found = seen_by(of), ch.reading.writes(of, IDS, query=None)
    whole = page_of(seen, found, WORDS)
    assert whole.data["writes"]["top"] == written.TOP
    monkeypatch.setattr(written, "WRITES_BYTES", 700)
    part = page_of(seen, found, WORDS)
    top = part.data["writes"]["top"]
    assert 1 <= top < written.TOP
    for layer, head, query in itertools.product(range(2), range(2), range(5)):
        for side in SIDES:
            words = [
                [word for word, _ in read(each, layer, head, query)[side]] for each in (whole, part)
            ]
            assert words[1] == words[0][:top]
    monkeypatch.setattr(written, "WRITES_BYTES", 100)
    with pytest.raises(ArgumentError, match=r"page.writes.*a page has room for 100 bytes"):
        page_of(seen, found, WORDS)


def test_a_vocabulary_of_more_words_than_two_bytes_count() -> None:
    count = 1 << 16
    matrix = ch.AttentionMatrix(torch.zeros(1, count // 20 + 1, 1), torch.zeros(1, 1, 1))
    rows = [
        WrittenToken("a", 0, 0, query, 20 * query + at, at if at < 10 else count, 0.0, 10.0 - at)
        for query in range(matrix.query_len)
        for at in range(20)
    ]
    run = read_run([("a", matrix)])
    payload = heads_payload([run], "", writes=Written(Writes(rows, count + 1), None))
    last = matrix.query_len - 1
    assert read(payload, 0, 0, last)["raised"][0][0] == f"#{20 * last}"
    assert len(payload.data["writes"]["words"]) == 20 * matrix.query_len > count


def test_some_heads_of_a_layer_go_by_their_numbers() -> None:
    of = model()
    with ch.watch(of, heads=[1]) as seen:
        of(IDS)
    found = ch.reading.writes(of, IDS, query=None)
    payload = page_of(seen, found.of("2.attention", head=1), WORDS)
    expected = found.of("2.attention", head=1).lists()[4]
    assert expected["query"] == 4
    assert [word for word, _ in read(payload, 1, 0, 4)["raised"]] == [
        WORDS[token] for token, _ in expected["raised"]
    ]
    assert_refused(
        lambda: page_of(seen, found), "page.writes", "5 // [1] // '1.attention' // 0 // 0"
    )


ONE = WrittenToken("1.attention", 0, 0, 4, 1, 0, 2.5, 2.0)
test_what_does_not_fit_is_refused = refusals(
    lambda given: seen_by(model()).to_html("a.html", writes=given[0], words=given[1]),
    (("all", None), "page.writes-type", "str"),
    ((None, WORDS), "page.words", "…"),
    ((Writes([ONE], 3), "abc"), "page.words", "str"),
    ((Writes([ONE], 3), ["a"]), "page.words", "1"),
    ((Writes([ONE], 3), lambda token: token), "page.words", "int // 1"),
    ((Writes([ONE._replace(layer="9")], 3), None), "page.writes", "['1.attention', '2.attention']"),
    (
        (Writes([ONE._replace(query=5)], 3), None),
        "page.writes",
        "5 // [0, 1] // '1.attention' // 0 // 5",
    ),
)


def test_of_two_runs_the_first_has_it() -> None:
    of = model()
    runs = [read_run(seen_by(of).parts(), name=name) for name in "AB"]
    payload = heads_payload(runs, "", writes=Written(ch.reading.writes(of, IDS, query=None), WORDS))
    told = [layer.get("writes") is not None for layer in payload.data["layers"]]
    assert told == [True, True, False, False]
