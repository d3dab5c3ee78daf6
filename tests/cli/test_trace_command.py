"""`clearhead trace`: the numbers of the tutorials, and a page."""

from pathlib import Path

from tests.cli.commands import invoke, lines
from tests.tracing import user_code


def test_trace_prints_the_numbers_of_the_tutorial() -> None:
    found = lines("trace")
    assert "  1 journey  0.2854  0.4081" in found
    assert "query 1 journey: [−1.1729, −0.0048]" in found


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
    assert "  1 journey  0.2854  0.4081" not in lines("trace", "--seed", "4")


def test_causal_keeps_the_matrices() -> None:
    def query(found: list[str]) -> list[str]:
        start = found.index("query  [query_len=6, head_dim=2]")
        return found[start + 2 : start + 8]

    assert query(lines("trace", "--causal")) == query(lines("trace"))


def test_an_argument_that_is_no_place_is_a_sentence() -> None:
    for sentence in "to be: or not", "step 1.5", "one":
        assert lines("trace", sentence) == lines("trace", "--text", sentence)
    for place in "mine.py", "some folder/mine.py:Mine", "mine:Mine.forward":
        assert "[check." in invoke("trace", place).stderr


def test_trace_of_one_word_writes_out_that_one() -> None:
    assert any(line.startswith("query 0 one") for line in lines("trace", "--text", "one"))


def test_trace_of_heads() -> None:
    heads = lines("trace", "--heads", "2", "--head", "1")
    assert "scores  [num_heads=2, query_len=6, kv_len=6]" in heads
    assert "  head 1" in heads
    assert "[trace.part]" in invoke("trace", "--heads", "2", "--head", "2").stderr


def test_trace_of_a_file(tmp_path: Path) -> None:
    file, page = tmp_path / "traced_code.py", tmp_path / "steps.html"
    file.write_text(Path(user_code.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    found = lines("trace", f"{file}:SmallNegative", "--causal", "--html", str(page))
    assert "expected_masked_scores  [query_len=6, kv_len=6]" in found
    assert "not the definition: masked_scores is the first stage that differs from it" in found
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    batched = lines("trace", f"{file}:Heads", "--heads", "2", "--causal")
    assert "scores  [batch=1, num_heads=2, query_len=6, kv_len=6]  line " in "\n".join(batched)
    assert "[check.name] say what to check" in invoke("trace", str(file)).stderr
