"""`clearhead serve`, and the file that `clearhead show --save` keeps for it."""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.cli import serve
from clearhead.drawing.live import server as served
from clearhead.drawing.page import located
from clearhead.drawing.page.head_page import Run
from clearhead.drawing.page.payload import Payload
from tests import tiny_models
from tests.cli.commands import invoke


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    with ch.watch(layer) as seen:
        layer(torch.randn(1, 5, 8))
    return seen.save(tmp_path_factory.mktemp("run") / "run.clearhead")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server stops as soon as it stands; the addresses that a browser was sent to."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)

    monkeypatch.setattr(serve, "_until_stopped", lambda: nullcontext(lambda: None))
    return opened


def test_it_serves_until_it_is_stopped(run: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "serve", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "run.clearhead is at\n"
        address = process.stdout.readline().strip()
        assert process.stdout.readline() == (
            "Anybody with this address can see it, from this machine. Ctrl-C stops.\n"
        )
        with urllib.request.urlopen(
            address + "tile?layer=0&head=1&rows=0,5&columns=0,5&cells=5,5"
        ) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.rsplit("/", 2)[0] + "/")
        process.send_signal(signal.SIGTERM)
        rest, complaints = process.communicate()
    finally:
        process.kill()
    assert complaints == ""
    assert rest == "Stopped.\n"
    assert process.returncode == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


@pytest.mark.parametrize(("options", "opens"), [([], 0), (["--browser"], 1), (["--no-browser"], 0)])
def test_a_browser_is_opened_where_one_is_asked_for(
    options: list[str], opens: int, run: Path, at_once: list[str]
) -> None:
    """Without either, on a terminal only, which this is not."""
    result = invoke("serve", str(run), *options)
    assert result.exit_code == 0, result.output
    assert len(at_once) == opens
    assert set(at_once) <= set(result.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["0", "1", "2"]),
        (["--layer", "1"], ["1"]),
        (["--layer", "-1", "--layer", "0", "--layer", "2"], ["0", "2"]),
    ],
)
def test_some_layers(
    options: list[str],
    names: list[str],
    at_once: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in range(3)))
    with ch.watch(layers) as seen:
        layers(torch.randn(1, 5, 8))
    file = seen.save(tmp_path / "run.clearhead")
    shown: list[list[str]] = []
    heads_payload = served.heads_payload

    def spied(runs: list[Run], *given: Any, **named: Any) -> Payload:
        shown.append([layer.name for layer in runs[0].layers])
        return heads_payload(runs, *given, **named)

    monkeypatch.setattr(served, "heads_payload", spied)
    result = invoke("serve", str(file), *options)
    assert result.exit_code == 0, result.output
    assert shown == [names]


def test_a_long_run_is_announced(
    at_once: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(located, "LONG", 4)
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer) as seen:
        layer(torch.randn(1, 5, 8))
    result = invoke("serve", str(seen.save(tmp_path / "run.clearhead")))
    assert result.stderr == "Going over run.clearhead; its address comes when that is done.\n"


def test_layers_that_are_not_there(run: Path) -> None:
    result = invoke("serve", str(run), "--layer", "1")
    assert result.exit_code == 1
    assert result.stderr == "clearhead: [watch.layer] 1 modules attended; there is no 1.\n"
    result = invoke("serve", str(run), "--layer", "decoder")
    assert result.exit_code == 1
    assert result.stderr.startswith("clearhead: [watch.layer] no module 'decoder' attended; these")


@pytest.mark.parametrize("name", ["--5", "²", "1.5", "9" * 30, "\x1b[31m"])
def test_layers_that_are_no_numbers(name: str, run: Path) -> None:
    result = invoke("serve", str(run), f"--layer={name}")
    assert result.exit_code == 1
    assert result.stderr.startswith("clearhead: [watch.layer] no module '")
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_wait_or_while_it_begins(number: signal.Signals) -> None:
    """It comes in the middle of the waiting itself now and then, and is not lost there."""
    with serve._until_stopped() as wait:
        signal.raise_signal(number)
        wait()
    for _ in range(150):
        with serve._until_stopped() as wait:
            threading.Timer(0.0005, signal.raise_signal, (number,)).start()
            wait()


def test_tokens_of_a_file(run: Path, at_once: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(["a", "<b>", "c", "\n", "e"]))
    assert invoke("serve", str(run), "--tokens", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "could not be read: No such file or directory."),
        ("[", "could not be read: it is no JSON: Expecting value: line 1 column 2 (char 1)."),
        ("[" * 100_000, "could not be read: it is no JSON: "),
        ("\udc80", "could not be read: it is no JSON: 'utf-8' codec can't decode"),
        ('{"a": 1}', "must hold a list of strings, one for each token, as JSON."),
        ("[1, 2]", "must hold a list of strings, one for each token, as JSON."),
    ],
)
def test_tokens_that_are_none(content: str | None, words: str, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    if content is not None:
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
    result = invoke("serve", str(run), "--tokens", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"clearhead: [serve.tokens] {file} {words}")
    assert "Traceback" not in result.output


def test_as_many_tokens_as_there_are(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text('["only", "two"]')
    result = invoke("serve", str(run), "--tokens", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith("clearhead: [page.lengths] tokens must be as many as the keys")


def test_no_run(run: Path, tmp_path: Path) -> None:
    result = invoke("serve", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "[file.unreadable]" in result.stderr
    cut = tmp_path / "cut.clearhead"
    cut.write_bytes(run.read_bytes()[:200])
    result = invoke("serve", str(cut))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"clearhead: [file.unreadable] {cut} could not be read")


def test_a_port_that_is_taken(run: Path) -> None:
    with served.serve_seen(ch.load(run), "run") as server:
        result = invoke("serve", str(run), "--port", str(server.port))
        assert result.exit_code == 1
        assert "[serve.port]" in result.stderr
    assert invoke("serve", str(run), "--port", "70000").exit_code == 2


def test_show_keeps_what_was_seen(tmp_path: Path) -> None:
    file = tmp_path / "run.clearhead"
    result = invoke("show", "The cat sat", "--save", str(file))
    assert result.exit_code == 0, result.output
    assert f"What was seen is in {file}: clearhead serve {file}\n" in result.stdout
    seen = ch.load(file)
    assert seen.tokens == ("[CLS]", "the", "cat", "sat", "[SEP]")
    assert len(seen) == 6
    assert seen[0].shape == (1, 12, 5, 5)


@pytest.mark.parametrize(
    ("options", "kind"), [([], ch.types.Summary), (["--layer", "1"], ch.AttentionMatrix)]
)
def test_show_keeps_a_long_text(options: list[str], kind: type, tmp_path: Path) -> None:
    """Summaries of all layers, which zoom no further, or query and key of the one asked for."""
    model = tiny_models.save_llama(tmp_path / "model")
    text, file = tmp_path / "book.txt", tmp_path / "run.clearhead"
    text.write_text(" ".join([tiny_models.TEXT] * 92), encoding="utf-8")
    result = invoke(
        "show", "--file", str(text), "--model", str(model), "--save", str(file), *options
    )
    assert result.exit_code == 0, result.output
    seen = ch.load(file)
    assert seen.tokens is not None
    assert len(seen.tokens) == 1104
    assert all(isinstance(seen[name], kind) for name in seen)
    assert len(seen) == (1 if options else 2)


def test_show_saves_where_it_can(tmp_path: Path) -> None:
    result = invoke("show", "The cat sat", "--save", str(tmp_path / "none" / "x"))
    assert result.exit_code == 1
    assert "[file.unwritable]" in result.stderr
