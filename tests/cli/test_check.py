"""`clearhead check`: what it prints, and how it ends."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import clearhead as ch
from clearhead.cli import check_process
from tests.cli import commands

SOURCE = """
import torch
from torch import nn

class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, diagonal=1, kind="plain"):
        super().__init__()
        assert kind in ("plain", "fast")
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out) for _ in range(3))
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=diagonal)
        self.register_buffer("mask", mask.bool(), persistent=False)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.mT / keys.shape[-1] ** 0.5
        tokens = x.shape[1]
        return scores.masked_fill(self.mask[:tokens, :tokens], -torch.inf).softmax(-1) @ values
"""
ARGS = "d_in=3,d_out=2,context_length=6"


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes seconds to begin; most of what is tested does not depend on it."""
    if "another_process" not in request.fixturenames:

        def checked(asked: dict[str, Any], **limits: Any) -> dict[str, Any]:
            answered = json.loads(json.dumps(check_process.answer(json.loads(json.dumps(asked)))))
            if "error" in answered:
                raise ch.errors.ClearheadError(*answered["error"])
            return answered["report"]

        monkeypatch.setattr(check_process, "checked", checked)


@pytest.fixture
def another_process() -> None:
    """Run the checked code in another process, as for a user."""


@pytest.fixture
def place(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE, encoding="utf-8")
    return f"{file}:CausalAttention"


def invoke(*arguments: str) -> Result:
    return commands.invoke("check", *arguments)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            f"--causal --args {ARGS},kind=fast",
            0,
            "✓ softmax over the keys   ✓ causal   ✓ scale 1/√2",
        ),
        (f"--causal --args {ARGS},diagonal=2", 1, "each token also sees the next one"),
        (f"--causal --args {ARGS} --window 2,0", 1, "mask.missing"),
        (f"--args {ARGS} --sizes d_in=4", 3, "CausalAttention was called with --takes x"),
        ("--args d_in", 2, "expected name=value; got 'd_in'."),
        ("--window 3", 2, "expected LEFT,RIGHT; got '3'."),
        ("--window a,b", 2, "expected LEFT,RIGHT; got 'a,b'."),
        ("--alibi", 2, "expected --heads"),
    ],
)
def test_how_it_ends(place: str, options: str, code: int, words: str) -> None:
    found = invoke(place, *options.split())
    assert (found.exit_code, words in found.output) == (code, True), found.output


def test_a_place_that_is_none_is_no_mistake_in_the_attention() -> None:
    found = invoke("no_such_place")
    assert found.exit_code == 3
    assert "[check.place]" in found.stderr


def test_a_script_that_ends_itself_is_not_right(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    found = invoke(f"{file}:attend")
    assert found.exit_code == 3
    assert found.stderr == (
        f"clearhead: [check.import] {file} could not be imported: SystemExit: 0\n"
        "  script.py, line 2: sys.exit(0)\n"
    )


def test_reports_in_files(place: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("page.html", "found.sarif")]
    written = ("--json", "--html", str(files[0]), "--sarif", str(files[1]))
    found = invoke(place, "--causal", "--args", f"{ARGS},diagonal=2", *written)
    assert json.loads(found.stdout)["findings"][0]["code"] == "mask.off-by-one"
    page, sarif = (file.read_text(encoding="utf-8") for file in files)
    assert "mask.off-by-one" in page
    (run,) = json.loads(sarif)["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("mask.off-by-one", "error")
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"].endswith("mine.py")
    # That of the operation, masked_fill.
    assert physical["region"]["startLine"] == 17
    assert run["tool"]["driver"]["rules"][0]["help"]["text"] == "clearhead explain mask.off-by-one"


LINEAR = """
import torch

def linear(query, key, value):
    return query.softmax(-1) @ (key.softmax(-2).mT @ value)

class Around(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(config.width, 5) for _ in range(3))

    def forward(self, x):
        query, key, value = (layer(x) for layer in self.layers)
        return query.softmax(-1) @ (key.softmax(-2).mT @ value)
"""


def test_what_is_not_judged_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "linear.py"
    made = "\nfrom types import SimpleNamespace\naround = Around(SimpleNamespace(width=3))\n"
    file.write_text(LINEAR + made, encoding="utf-8")
    asked = (f"{file}:around",)
    found = invoke(*asked)
    assert found.exit_code == 2, found.output
    assert found.stdout.startswith("✓ inputs untouched")
    assert "\n? not judged  heads, softmax, scale, weights and value: " in found.stdout
    assert found.stdout.splitlines()[-1].startswith("Around: not judged: heads")
    assert "dropout not declared" not in found.stdout
    assert "– dropout not declared" in invoke(*asked, "--all").stdout
    assert invoke(*asked, "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("name", "heads", "code"),
    [("naive", 4, 0), ("naive", 6, 1), ("published", 4, 0), ("published", 6, 0)],
)
def test_alibi_as_published(tmp_path: Path, name: str, heads: int, code: int) -> None:
    file = tmp_path / "biased.py"
    file.write_text(BIASED, encoding="utf-8")
    options = ("--takes", "qkv", "--alibi", "--heads", str(heads))
    assert invoke(f"{file}:{name}", *options).exit_code == code


def test_rotary_positions(tmp_path: Path) -> None:
    file = tmp_path / "biased.py"
    file.write_text(BIASED, encoding="utf-8")
    plain = invoke(f"{file}:plain", "--takes", "qkv", "--rope", "half,500")
    assert plain.exit_code == 1


BIASED = """
import torch

def plain(query, key, value, bias=0.0):
    return (query @ key.mT / query.shape[-1] ** 0.5 + bias).softmax(-1) @ value

def alibi(query, key, value, slopes):
    query_len, kv_len = query.shape[-2], key.shape[-2]
    places = torch.arange(kv_len - query_len, kv_len)[:, None]
    return plain(query, key, value, -slopes[:, None, None] * (places - torch.arange(kv_len)).abs())

def powers(heads):
    return [2.0 ** (-8 * each / heads) for each in range(1, heads + 1)]

def naive(query, key, value):
    return alibi(query, key, value, torch.tensor(powers(query.shape[1])))

def published(query, key, value):
    heads = query.shape[1]
    lower = 2 ** (heads.bit_length() - 1)
    slopes = powers(lower) + powers(2 * lower)[::2][: heads - lower]
    return alibi(query, key, value, torch.tensor(slopes))
"""


def test_ranks(tmp_path: Path) -> None:
    place = tmp_path / "sharded.py"
    place.write_text(
        "def stays_at_home(query, key, value):\n"
        "    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value\n"
    )
    options = ["--no-causal", "--world", "2", "--layout", "zigzag"]
    found = invoke(f"{place}:stays_at_home", *options)
    assert found.exit_code == 1, found.output
    assert found.stdout.startswith("✗ differs")


def test_no_place_for_temporary_files(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**options: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", nowhere)
    found = invoke(str(Path(place.partition(":")[0]).parent))
    assert found.exit_code == 3
    assert "[file.temporary] no folder for temporary files could be made" in found.stderr


def test_a_name_that_is_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"mine\xff.py")).write_text(
        "def mine(query, key, value):\n    return (query @ key.mT).softmax(-1) @ value\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in (folder.name, str(folder)):
        sarif = tmp_path / "found.sarif"
        found = invoke(name, "--sarif", str(sarif))
        assert found.exit_code == 1, found.output
        (result,) = json.loads(sarif.read_text(encoding="utf-8"))["runs"][0]["results"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.endswith("caf%E9/mine%FF.py")


RUINOUS = """
import atexit, os, sys, time
print("printed by what is checked")

def unscaled(query, key, value):
    print("printed by a call")
    atexit.register(os._exit, 0)
    return (query @ key.mT).softmax(-1) @ value

def ends(query, key, value):
    os._exit(0)

def hangs(query, key, value):
    time.sleep(1000)
"""


@pytest.fixture
def ruinous(tmp_path: Path, another_process: None) -> Path:
    file = tmp_path / "ruinous.py"
    file.write_text(RUINOUS, encoding="utf-8")
    return file


def test_what_is_printed_is_no_part_of_the_report(ruinous: Path) -> None:
    """Nor is an exit code that it sets."""
    found = invoke(f"{ruinous}:unscaled", "--takes", "qkv", "--json")
    assert found.exit_code == 1, found.output
    assert [each["code"] for each in json.loads(found.stdout)["findings"]] == ["scale.missing"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ends", (), "ended its process, with exit code 0, before there was a report."),
        ("hangs", ("--timeout", "0.5"), "took more than 0.5 seconds, and was ended; --timeout"),
    ],
)
def test_only_a_report_says_what_it_came_to(
    name: str, options: tuple[str, ...], words: str, ruinous: Path
) -> None:
    found = invoke(f"{ruinous}:{name}", "--takes", "qkv", *options)
    assert found.exit_code == 3, found.output
    assert words in found.stderr
    assert "scale.missing" not in found.stdout


@pytest.mark.usefixtures("another_process")
def test_what_kills_its_process_is_named(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_process, "MAIN", "import os; os.kill(os.getpid(), 9)")
    found = invoke(place, "--args", ARGS)
    assert found.exit_code == 3, found.output
    assert "ended its process, with signal SIGKILL, before there was a report." in found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the kept process forks")
@pytest.mark.usefixtures("another_process")
def test_a_kept_process_reads_a_file_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    asked = {"place": f"{file}:attend", "options": {"takes": "qkv"}}
    text = "def attend(q, k, v):\n    return (q @ k.mT{}).softmax(-1) @ v\n"
    kept, ended = check_process.Kept(), "import os\nos._exit(3)\n"
    try:
        for scale, outcome in (("", "wrong"), (" / q.shape[-1] ** 0.5", "right")):
            file.write_text(text.format(scale))
            found = check_process.checked(asked, timeout=300, kept=kept)
            assert found["outcome"] == outcome
        file.write_text(ended)
        with pytest.raises(ch.errors.ModelError) as caught:
            check_process.checked(asked, timeout=300, kept=kept)
        assert caught.value.code == "check.ended"
        file.write_text("while True: pass\n")
        with pytest.raises(ch.errors.ModelError) as caught:
            check_process.checked(asked, timeout=3, kept=kept)
        assert caught.value.code == "check.timeout"
        file.write_text(text.format(""))
        assert check_process.checked(asked, timeout=300, kept=kept)["findings"]
    finally:
        kept.close()


@pytest.mark.parametrize("place", ["torch.nn:MultiheadAttention", "."])
def test_only_a_file_is_watched(place: str) -> None:
    assert invoke(place, "--watch").exit_code == 2
