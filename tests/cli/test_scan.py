"""`clearhead check` of files, folders and packages."""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from clearhead.checking.scanning.sources import Definition, Source
from clearhead.checking.scanning.trial import ScanRow
from clearhead.cli import check_process
from clearhead.errors import ModelError
from tests.cli.commands import invoke
from tests.surface import ROOT

RIGHT = """
def attends(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""
WRONG = """

def unscaled(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""
OTHERS = """
import torch

class Attention(torch.nn.Module):
    def __init__(self, layers: dict):
        super().__init__()
        self.first = layers["first"]

    def forward(self, x):
        return x

def linear_attention(query, key, value):
    return query.softmax(-1) @ (key.softmax(-2).mT @ value)

def correlated(query, key, value):
    return (query @ key.mT).exp()
"""
ENDS = """
import os, time
print("this is in no table")

def ends_attention(query, key, value):
    os._exit(0 if (query @ key.mT).softmax(-1).sum() else 1)

def late_attention(query, key, value):
    open("late", "w").close()
    time.sleep(1000 if (query @ key.mT).softmax(-1).shape else 0)

def attends(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""
FILES = {
    "right.py": RIGHT,
    "wrong.py": WRONG,
    "others.py": OTHERS,
    "failing.py": "1 / 0\n" + RIGHT,
    "test_none.py": "1 / 0\n" + RIGHT,
    "setup.py": "1 / 0\n" + RIGHT,
    "plain.py": "def double(x):\n    return 2 * x\n",
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes seconds to begin; what is tried is tried in this one."""

    def scanned(sources: Any, options: dict[str, Any], **limits: Any) -> Iterator[Any]:
        jobs = [
            {"index": i, "source": asdict(each), "names": [d.name for d in each.definitions]}
            for i, each in enumerate(sources)
        ]
        asked = json.loads(json.dumps({"options": options, "jobs": jobs}))
        for index, name, row in check_process.scan(**asked):
            if index >= 0:
                row = json.loads(json.dumps(row))
                yield sources[index], name, None if row is None else ScanRow(**row)

    monkeypatch.setattr(check_process, "scanned", scanned)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here", "folder")
class TestFolder:
    def test_a_folder_is_a_table_with_the_mistakes_first(self) -> None:
        found = invoke("check", ".")
        assert found.exit_code == 1, found.output
        rows = [
            line.split()[:3] for line in found.stdout.splitlines() if line[1:2] in tuple("✗?–✓")
        ]
        assert rows == [
            ["✗", "wrong", "unscaled"],
            ["?", "not", "judged"],
            ["–", "not", "made"],
            ["–", "not", "made"],
            ["✓", "right", "attends"],
        ]
        text = " ".join(found.stdout.split())
        assert "scale.missing: the scores are not scaled wrong.py:4" in text
        assert "ZeroDivisionError: division by zero failing.py:1" in text
        assert "missing 1 required positional argument: 'layers' others.py:4" in text
        assert found.stdout.endswith(
            "1 wrong, 1 not judged, 2 not made, 1 right; 1 more without attention, or that cannot be called\n"
        )
        assert found.stderr == ""

    def test_what_is_declared_is_for_all(self) -> None:
        found = invoke("check", "right.py", "--causal", "--window", "2,0", "--json")
        (row,) = json.loads(found.stdout)["rows"]
        assert row["why"].startswith("mask.inverted: ")

    def test_json(self) -> None:
        whole = json.loads(invoke("check", ".", "--json").stdout)
        assert whole["totals"] == {"wrong": 1, "not judged": 1, "not made": 2, "right": 1}
        assert (whole["tried"], whole["complete"]) == (5, True)
        wrong = next(row for row in whole["rows"] if row["outcome"] == "wrong")
        assert (wrong["name"], wrong["line"], wrong["takes"]) == ("unscaled", 4, "qkv")
        assert wrong["report"]["findings"][0]["code"] == "scale.missing"

    def test_sarif_has_the_files_as_seen_from_here(self, folder: Path) -> None:
        invoke("check", ".", "--sarif", "found.sarif")
        (run,) = json.loads((folder / "found.sarif").read_text(encoding="utf-8"))["runs"]
        placed = {
            (
                each["ruleId"],
                each["level"],
                each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            )
            for each in run["results"]
        }
        assert placed == {
            ("scale.missing", "error", "wrong.py"), ("not-judged", "note", "others.py"),
        }  # fmt: skip

    def test_the_reports_of_what_is_wrong_come_with_all(self) -> None:
        found = invoke("check", "wrong.py", "right.py", "--all")
        assert found.stdout.splitlines()[-1] == "unscaled: 1 mistake found"
        assert "clearhead explain scale.missing" in found.stdout

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["right.py"], 0),
            (["right.py", "plain.py"], 0),
            (["others.py"], 0),
            (["others.py", "--strict"], 1),
            (["right.py", "--strict"], 0),
            (["wrong.py", "right.py"], 1),
            (["failing.py"], 3),
            (["plain.py"], 0),
            (["right.py", "gone.py"], 3),
            (["gone.py"], 3),
        ],
    )
    def test_how_it_ends(self, arguments: list[str], code: int) -> None:
        found = invoke("check", *arguments)
        assert found.exit_code == code, found.output
        if "gone.py" in arguments:
            assert "[check.scan] a scan wants a folder, a file, or a package" in found.stderr

    @pytest.mark.parametrize("option", [["--args", "d_in=3"], ["--html", "a.html"]])
    def test_options_of_one_attention_are_refused(self, option: list[str]) -> None:
        found = invoke("check", ".", *option)
        assert found.exit_code == 2
        assert "is for one class or function: file.py:Name." in " ".join(found.output.split())

    def test_an_interrupt_leaves_what_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = check_process.scanned

        def interrupted(*args: Any, **limits: Any) -> Iterator[Any]:
            for each in tried(*args, **limits):
                yield each
                if each[2] is not None and each[2].name == "unscaled":
                    raise KeyboardInterrupt

        monkeypatch.setattr(check_process, "scanned", interrupted)
        found = invoke("check", "wrong.py", "right.py")
        assert found.exit_code == 130
        assert found.stdout.endswith("interrupted: 1 wrong\n")

    def test_files_of_one_name_are_not_taken_for_each_other(self, folder: Path) -> None:
        for name, text in (("one", RIGHT), ("two", WRONG.replace("unscaled", "attends"))):
            (folder / name).mkdir()
            (folder / name / "core.py").write_text(text, encoding="utf-8")
            around = (
                "import colorsys\nfrom core import attends\n\n"
                "def attention(q, k, v):\n    return attends(q, k, v) @ v.new_ones(v.shape[-1]).diag()\n"
            )
            (folder / name / "around.py").write_text(around, encoding="utf-8")
        whole = json.loads(invoke("check", "one", "two", "--json").stdout)
        assert {(Path(row["file"]).parent.name, row["name"], row["outcome"]) for row in whole["rows"]} == {
            ("one", "attention", "right"), ("one", "attends", "right"),
            ("two", "attention", "wrong"), ("two", "attends", "wrong"),
        }  # fmt: skip
        assert {"core", "around", "colorsys"} & set(sys.modules) == {"colorsys"}


def test_what_ends_its_process_or_hangs_is_a_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, time goes by when what hangs was called, and no sooner. It may have been called
    # before that was read, or after, so that time goes by twice.
    now, later = 0.0, iter([13.0, 26.0])

    def monotonic() -> float:
        nonlocal now
        if Path("late").exists():
            now = next(later, now)
        return now

    monkeypatch.setattr(
        check_process, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    )
    (folder / "ends.py").write_text(ENDS, encoding="utf-8")
    found = invoke("check", "ends.py", "right.py", "--json", "--timeout", "12")
    whole = json.loads(found.stdout)
    assert [(row["name"], row["outcome"], row["line"]) for row in whole["rows"]] == [
        ("ends_attention", "not made", 5), ("late_attention", "not made", 8),
        ("attends", "right", 12), ("attends", "right", 2),
    ]  # fmt: skip
    assert "ended its process, with exit code 0" in whole["rows"][0]["why"]
    assert "took more than 12 seconds" in whole["rows"][1]["why"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_process_that_ends_at_the_last_or_at_nothing(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last has its row; where nothing was tried, another process would do no better."""
    source = Source("mine.py", "mine.py", (Definition("attends", 2),))
    written = [[0, "attends", None]] if begun else []
    process = SimpleNamespace(wait=lambda: 9)
    monkeypatch.setattr(
        check_process, "_process", lambda *asked: nullcontext((process, Path("found")))
    )
    monkeypatch.setattr(check_process, "_lines", lambda *limits: iter(written))
    rows = check_process.scanned([source], {}, timeout=1.0)
    if begun:
        (_, name, none), (_, _, row) = rows
        assert (name, none) == ("attends", None)
        assert row is not None
        assert (row.outcome, row.line) == ("not made", 2)
    else:
        with pytest.raises(ModelError, match=r"check\.ended.* checking a module ended its process"):
            next(rows)


@pytest.mark.usefixtures("here", "folder")
def test_the_hook_of_pre_commit_runs_with_the_files_of_a_commit() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert hook["types"] == ["python"]
    program, *arguments = hook["entry"].split()
    assert program == "clearhead"
    assert invoke(*arguments, "right.py", "plain.py").exit_code == 0
    found = invoke(*arguments, "right.py", "wrong.py", "plain.py")
    assert found.exit_code == 1
    assert "scale.missing" in found.stdout


@pytest.mark.usefixtures("here")
def test_the_table_on_the_page_is_that_of_the_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/check_projects.md").read_text(encoding="utf-8")
    shown = page.partition("$ clearhead check clearhead.ladder\n")[2].partition("```")[0]
    found = invoke("check", "clearhead.ladder").stdout

    def words(text: str) -> list[str]:
        return re.sub(r":\d+ *\n", "\n", text).split()  # lines of the ladder may move

    assert words(found) == words(shown)


@pytest.mark.usefixtures("here", "folder")
def test_the_workflow_on_the_page_uploads_what_the_command_writes(folder: Path) -> None:
    page = (ROOT / "docs/check_projects.md").read_text(encoding="utf-8")
    (config, steps) = (
        yaml.safe_load(each.partition("```")[0]) for each in page.split("```yaml")[1:]
    )
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert [each["id"] for each in config["repos"][0]["hooks"]] == [hook["id"]]
    _, run, upload = steps
    assert invoke(*run["run"].replace("my_package", "wrong.py").split()[1:]).exit_code == 1
    written = json.loads((folder / upload["with"]["sarif_file"]).read_text(encoding="utf-8"))
    assert written["version"] == "2.1.0"
    assert upload["if"] == "always()"  # a mistake ends the step before
