"""`clearhead check`: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli import commands

SOURCE = """
import torch
from torch import nn

class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, diagonal=1):
        super().__init__()
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


@pytest.fixture
def place(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE, encoding="utf-8")
    return f"{file}:CausalAttention"


def invoke(*arguments: str) -> Result:
    return commands.invoke("check", *arguments)


def test_what_is_right(place: str) -> None:
    found = invoke(place, "--causal", "--args", ARGS)
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("✓ causal   ✓ softmax over the keys   ✓ scale 1/√2")


def test_what_is_wrong(place: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = invoke(place, "--causal", "--args", f"{ARGS},diagonal=2", "--html", str(page))
    assert found.exit_code == 1
    assert found.stdout.startswith("✗ mask.off-by-one   each token also sees the next one")
    assert "mask.off-by-one" in page.read_text(encoding="utf-8")


def test_a_script_that_ends_itself_is_not_right(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    found = invoke(f"{file}:attend")
    assert found.exit_code == 1
    assert found.stderr == (
        f"clearhead: [check.import] {file} could not be imported: SystemExit: 0\n"
    )


def test_what_the_file_prints_is_no_part_of_the_json(tmp_path: Path) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "print('imported')\n"
        "def attend(query, key, value):\n"
        "    print('called')\n"
        "    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value\n",
        encoding="utf-8",
    )
    found = invoke(f"{file}:attend", "--takes", "qkv", "--json")
    assert json.loads(found.stdout)["ok"]
    assert found.stderr.startswith("imported\ncalled\n")


def test_json(place: str) -> None:
    found = invoke(place, "--causal", "--args", f"{ARGS},diagonal=0", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["findings"][0]["code"] == "mask.off-by-one"


def test_a_window(place: str) -> None:
    found = invoke(place, "--causal", "--args", ARGS, "--window", "2,0")
    assert found.exit_code == 1
    assert "mask.missing" in found.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--args", "d_in"], "expected name=value; got 'd_in'."),
        (["--window", "3"], "expected LEFT,RIGHT; got '3'."),
        (["--window", "a,b"], "expected LEFT,RIGHT; got 'a,b'."),
    ],
)
def test_what_cannot_be_read_is_refused(place: str, options: list[str], words: str) -> None:
    found = invoke(place, *options)
    assert found.exit_code == 2
    assert words in found.output


def test_a_profile(place: str, tmp_path: Path) -> None:
    args = "d_in=64,d_out=64,context_length=256"
    options = ("--causal", "--args", args, "--profile", "--lengths", "64,128,256")
    page = tmp_path / "page.html"
    found = invoke(place, *options, "--html", str(page))
    assert found.exit_code == 0, found.output
    report, _, profile = found.stdout.partition("\n\n")
    assert report.startswith("✓ causal")
    assert profile.startswith(
        "CausalAttention: batch 1, width 64, 1 head of width 64, float32, cpu"
    )
    assert "\n  memory grows like tokens² (exponent 1." in profile
    assert "\nkernel   bmm + softmax: none of PyTorch's fused kernels\n" in profile
    text = page.read_text(encoding="utf-8")
    assert text.count("</html>") == 1
    assert "grows like tokens²" in text
    whole = json.loads(invoke(place, *options, "--json").stdout)
    assert whole["ok"] is True
    assert [each["length"] for each in whole["profile"]["costs"]] == [64, 64, 128, 128, 256, 256]


def test_lengths_that_cannot_be_read_are_refused(place: str) -> None:
    found = invoke(place, "--args", ARGS, "--profile", "--lengths", "64;128")
    assert found.exit_code == 2
    assert "expected numbers of tokens, N,N,…; got '64;128'." in found.output


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "page.html"
    found = invoke("no/such/file.py:Nobody", "--html", str(page))
    assert found.exit_code == 1
    assert "[file.unwritable]" in found.stderr
