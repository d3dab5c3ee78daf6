"""`clearhead trace`: the numbers of the tutorials, and a page."""

from pathlib import Path

from tests.cli.commands import invoke, lines


def test_trace_prints_the_numbers_of_the_tutorial() -> None:
    found = lines("trace")
    assert "  1 journey  0.2854  0.4081" in found
    assert "query 1 journey: [−1.1729, −0.0048]" in found


def test_trace_of_a_text_prints_the_numbers_of_its_tutorial() -> None:
    options = ["--seed", "123", "--d-qk", "2", "--d-v", "4"]
    found = lines("trace", "--text", "Life is short, eat dessert first", *options)
    assert "  1 is        0.5313   1.3607   0.7891   1.3110" in found


def test_trace_writes_a_page(tmp_path: Path) -> None:
    file = tmp_path / "steps.html"
    found = lines("trace", "--html", str(file))
    assert found[-1] == f"The page to step through is {file}"
    assert found[:-2] == lines("trace")
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>Your journey starts with one step" in page
    nowhere = str(tmp_path / "nowhere" / "steps.html")
    assert "[file.unwritable]" in invoke("trace", "--html", nowhere).stderr


def test_trace_options() -> None:
    causal = lines("trace", "--causal", "--query", "0")
    assert "  0 Your     1.0000  0.0000  0.0000  0.0000  0.0000  0.0000" in causal
    assert any(line.startswith("query 0 Your") for line in causal)
    assert "  1 journey  0.2854  0.4081" not in lines("trace", "--init", "uniform")
    assert "  1 journey  0.2854  0.4081" not in lines("trace", "--seed", "4")


def test_causal_keeps_the_matrices() -> None:
    def query(found: list[str]) -> list[str]:
        start = found.index("query  [query_len=6, head_dim=2]")
        return found[start : start + 8]

    assert query(lines("trace", "--causal")) == query(lines("trace"))


def test_trace_of_one_word_writes_out_that_one() -> None:
    assert any(line.startswith("query 0 one") for line in lines("trace", "--text", "one"))


def test_trace_refuses_a_page_that_cannot_be_written_at_once(tmp_path: Path) -> None:
    result = invoke("trace", "--html", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "[file.unwritable]" in result.stderr
