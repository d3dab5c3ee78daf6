"""`clearhead figure`: the sentence of the tutorials, to be touched."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from clearhead import ladder
from tests.cli.commands import invoke, lines


def data_in(file: Path) -> dict[str, Any]:
    found = re.search(r'data-figure="([^"]*)"', file.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(html.unescape(found[1]))


def test_it_writes_the_numbers_of_the_tutorial(tmp_path: Path) -> None:
    file = tmp_path / "touched.html"
    assert lines("figure", str(file)) == [f"The page to touch is {file}"]
    data = data_in(file)
    assert data["title"] == "Your journey starts with one step"
    assert data["tokens"] == list(ladder.EXAMPLE_TOKENS)
    assert data["inputs"]["x"]["numbers"] == pytest.approx(
        ladder.EXAMPLE_EMBEDDINGS.flatten().tolist()
    )
    assert data["edit"] == ["W_query", "scores", "mask", "scale"]
    assert data["mask"] is None


def test_its_options_are_those_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "touched.html"
    lines(
        "figure",
        str(file),
        "--text",
        "to be",
        "--causal",
        "--value-head-dim",
        "3",
        "--init",
        "normal",
    )
    data = data_in(file)
    assert (data["tokens"], data["mask"]) == (["to", "be"], ["10", "11"])
    assert data["inputs"]["W_value"]["columns"] == 3


def test_a_place_that_cannot_be_written_to_is_refused_first(tmp_path: Path) -> None:
    result = invoke("figure", str(tmp_path / "nowhere" / "figure.html"), "--text", "!")
    assert result.exit_code == 1
    assert "[file.unwritable]" in result.stderr
    long = " ".join(f"word{n}" for n in range(65))
    file = tmp_path / "figure.html"
    assert "[figure.size]" in invoke("figure", str(file), "--text", long).stderr
    assert not file.exists()


def test_it_opens_with_what_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "figure.html"
    lines("figure", str(file), "--start", "scores.1.0=3.5&scale=1")
    assert 'state="scores.1.0=3.5&amp;scale=1"' in file.read_text(encoding="utf-8")
    refused = invoke("figure", str(tmp_path / "other.html"), "--start", "key.0.0=1")
    assert "[figure.start]" in refused.stderr
    assert not (tmp_path / "other.html").exists()
