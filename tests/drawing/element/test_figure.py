"""The figure as an element, a page and a text."""

import gzip
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.page.page import asset
from tests.drawing.element.drawn import data_of
from tests.refusals import refusals, run, wrong

X = torch.tensor([[0.43, 0.15], [0.55, 0.87], [0.57, 0.85]])
HOSTILE = ["<script>alert(1)</script>", "</script>\"'", "\x1b[31m\u202e"]


def test_it_says_what_it_shows() -> None:
    drawn = ch.figure(X, X, X, title="Three words", edit=[], show=["weights"])
    assert str(drawn) == "figure of Three words: 3 queries × 3 keys; weights; edited: nothing"
    assert repr(drawn) == str(drawn)


def test_a_page_holds_one_script_and_runs_nothing_else(tmp_path: Path) -> None:
    path = ch.figure(X, X, X).to_html(tmp_path / "figure.html")
    page = path.read_text(encoding="utf-8")
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert scripts == [asset("figure.js")]
    hashed = b64encode(sha256(scripts[0].encode()).digest()).decode()
    assert (
        f"default-src 'none'; script-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
        in page.replace("&#x27;", "'")
    )
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)
    assert "<table" in page
    with pytest.raises(ch.errors.FileError) as refused:
        ch.figure(X, X, X).to_html(tmp_path / "nowhere" / "figure.html")
    assert refused.value.code == "file.unwritable"


def test_tokens_and_titles_are_data() -> None:
    drawn = ch.figure(X, X, X, tokens=HOSTILE, title=HOSTILE[0] + HOSTILE[2])
    element = drawn.to_element(script=False)
    assert "<script" not in element
    assert not re.search("[\x1b\u202e]", element)
    assert data_of(drawn)["tokens"][0] == HOSTILE[0]
    assert "<script>alert" not in drawn._repr_html_()


def test_the_script_is_small() -> None:
    script = asset("figure.js")
    assert len(gzip.compress(script.encode(), 9)) <= 26_500
    assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    assert not re.search(
        r"\b(fetch|importScripts|eval|Function)\(|XMLHttpRequest|WebSocket", script
    )
    assert not re.search(
        r"localStorage|sessionStorage|pushState|replaceState|document\.title", script
    )


def test_the_data_of_six_words_are_small() -> None:
    rung = ladder.SelfAttention(3, head_dim=2, value_head_dim=2)
    drawn = ch.figure(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    element = drawn.to_element(script=False)
    assert len(element) <= 20_000


test_what_is_refused = refusals(
    run,
    (lambda: ch.figure(X, X), "figure.thing", "Tensor // 1"),
    (lambda: ch.figure(wrong(ch.causal())), "figure.thing", "Causal // 0"),
    (lambda: ch.figure(ch.trace(ch.attend, X, X, X), mask=ch.causal()), "figure.options", "mask="),
    (lambda: ch.figure(ch.trace(ch.attend, X, X, X), X), "figure.options", "further tensors"),
    (lambda: ch.figure(X, X, X, title=wrong(3)), "figure.title", "3"),
)
