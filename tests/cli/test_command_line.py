"""The commands as one program: errors, exit codes, and outputs that cannot be written."""

import ast
import errno
import importlib
import io
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from rich.console import Console

from clearhead import cli
from clearhead.__main__ import main
from clearhead.cli import command_line, run
from clearhead.drawing.terminal.heat_maps import HeatMap
from clearhead.errors import ClearheadError, MissingExtraError
from tests.cli.commands import invoke, lines
from tests.surface import MODULES, ROOT

SHOWN = "[show.model] --model must read"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("show ''", "[model.no-text] text must hold at least one character"),
        ("show a --layer 6", "[show.layer] layer must be 0 to 5; got 6."),
        ("show a --layer 0 --head 12", "[show.head] head must be 0 to 11; got 12."),
        ("show a --head 1", "[show.head] --head 1 needs --layer as well."),
        ("show a --model ./nowhere", "[model.not-found] ./nowhere could not be loaded: "),
        (
            "show a --model whisper",
            f"{SHOWN} text, and Whisper tiny.en reads speech; in Python, ch.watch(ch.samples.whisper().model) sees it.",
        ),
        (
            "show a --model dinov2",
            f"{SHOWN} text, and DINOv2 ViT-S/14 reads pictures; use --image.",
        ),
        (
            "show --image a.jpg --model smollm2",
            f"{SHOWN} pictures, and SmolLM2-135M-Instruct reads text; in Python, "
            "ch.watch(ch.samples.smollm2().model) sees it.",
        ),
        (
            "show --image a.jpg --find a,b",
            "[show.image] --image goes with a text alone, or with a text and --find; leave --writes out",
        ),
        (
            "show a --png /nowhere/a.png",
            "[file.unwritable] /nowhere/a.png could not be written",
        ),
        ("show --file /nowhere", "[show.file] /nowhere could not be read: No such file"),
        (f"show '{'word ' * 600}'", "it has 602"),
        ("trace --query 6", "[trace.part] there are 6 queries; got query=6."),
        ("trace --text !", "[text.words]"),
    ],
)
def test_errors_are_a_message_and_not_a_traceback(typed: str, message: str) -> None:
    result = invoke(*shlex.split(typed))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("clearhead: [")
    assert message in result.stderr


@pytest.mark.parametrize(
    "typed",
    [
        "show",
        "show a --file b",
        "show a --layer x",
        "trace 'to be' --text 'or not'",
        "--verbose",
        "nothing",
    ],
)
def test_misuse(typed: str) -> None:
    result = invoke(*shlex.split(typed))
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_version() -> None:
    assert lines("--version") == [f"clearhead {version('clearhead')}"]
    found = lines("--version", "--verbose")
    assert found[0].startswith(f"clearhead {version('clearhead')}, torch ")
    assert any(line.split() == ["softcap", "no", "no", "yes", "yes"] for line in found)


def test_a_shell_completes_commands_and_options() -> None:
    for words, found in (("clearhead sh", "show"), ("clearhead check --str", "--strict")):
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        process = start(env={**os.environ, **asked, "_CLEARHEAD_COMPLETE": "complete_bash"})
        assert process.communicate()[0].split() == [found]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MissingExtraError("x.missing", "no x."), 1, "clearhead: no x.\n"),
    ],
)
def test_what_ends_a_command_line_before_it_runs(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "run", mock.Mock(side_effect=raised))
    assert main() == code
    assert capsys.readouterr() == ("", said)


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


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
        (OSError(errno.ENOSPC, "No space"), 1, "the output could not be written: No space"),
    ],
)
def test_what_is_left_of_the_output_cannot_be_written(
    error: OSError, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A reader that has had enough is no error."""

    def flush() -> None:
        raise error

    def done(**options: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(command_line, "app", done)
    with open(tmp_path / "output", "wb") as file:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=flush, fileno=file.fileno))
        assert run() == code
    assert words in capsys.readouterr().err


def test_a_file_that_fails_is_not_taken_for_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "some/file")

    monkeypatch.setattr(command_line, "app", fails)
    assert run() == 1
    assert capsys.readouterr().err == "clearhead: [Errno 13] Permission denied: 'some/file'\n"


def test_another_module_that_is_missing_is_no_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "clearhead.cli.command_line", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.reload(cli)
    assert caught.value.name == "clearhead.cli.command_line"
    assert not isinstance(caught.value, ClearheadError)


# What a command prints that imports no PyTorch, which takes seconds.
LIGHT = ["explain", "scale.missing"]


def start(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "clearhead", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_reader_that_stops_reading() -> None:
    process = start(*LIGHT)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_an_output_that_cannot_be_written() -> None:
    for arguments in LIGHT, ["--version"]:
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
    assert "1/√head_dim" in "\n".join(lines(*LIGHT))
    process = start(*LIGHT, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert "1/sqrt head_dim" in output


def test_every_sign_has_a_spelling_in_ascii() -> None:
    sources = [path.read_text("utf-8") for path in MODULES.values()]
    signs = set("".join(sources))
    assert {"█", "→", "√"} < signs
    unknown = {each for each in signs - {"?"} if b"?" in each.encode("ascii", "clearhead.spell")}
    for source in filter(unknown.intersection, sources):
        tree = ast.parse(source)
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts = {each for each in constants if isinstance(each, str)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts.discard(ast.get_docstring(node, clean=False))
        assert not unknown & set("".join(texts))


def test_shades_differ_in_ascii() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "ascii", "clearhead.spell", write_through=True) as stream:
        weights = torch.tensor([[1.0, 0.0, 0.0], [0.28, 0.72, 0.0], [0.5, 0.5, 0.0]])
        Console(file=stream, width=80).print(HeatMap(weights, ["a", "b", "é"]))
        found = raw.getvalue().decode("ascii").splitlines()
    assert [line.rstrip() for line in found[1:4]] == [
        "0 a ##100",
        "1 b ...28***72",
        "2 e :::50:::50",
    ]
    assert "....::::****####" in found[4]


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
        f"clearhead: the command line needs {package}, which is not installed. In a checkout of clearhead:\n"
        "  pip install '.[cli]'\n"
    )
