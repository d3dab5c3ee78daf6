"""`clearhead explain`: the docs of every finding and of every error, wherever it is installed."""

import io
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

import clearhead as ch
from clearhead._common import lessons
from clearhead._common.lessons import docs
from clearhead.cli import explain
from clearhead.testing.trains import CODES
from tests.cli.commands import invoke, lines
from tests.surface import ROOT


def test_a_finding_has_its_section() -> None:
    report = ch.check(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, takes="qkv")
    command, *arguments = report.findings[0].see.split()
    assert (command, arguments) == ("clearhead", ["explain", "scale.missing"])
    found = "\n".join(lines(*arguments))
    page = (ROOT / "src/clearhead/checking/mistakes.md").read_text(encoding="utf-8")
    _, section = page.split("## scale.missing\n")
    assert found.startswith("## scale.missing\n" + section.partition("\n## ")[0].rstrip())


def test_a_code_of_an_earlier_version_is_explained_by_the_one_that_covers_it() -> None:
    found = lines("explain", "scale.inverse")
    assert found[:3] == ["## scale.wrong", "", "`scale.inverse` is a part of `scale.wrong`."]


def test_a_finding_of_training_has_its_section() -> None:
    for code in CODES:
        found = lines("explain", code)
        assert found[0] == f"## {code}"
        assert len(found) > 4, code


def test_an_error_has_its_kind_and_its_texts() -> None:
    assert lines("explain", "mask.truth") == [
        "## mask.truth",
        "",
        "`ArgumentTypeError`, a subclass of `TypeError`. An argument has the wrong type.",
        "",
        "- a mask is neither true nor false; combine masks with &, | and ~, not with `and`, `or` "
        "and `not`.",
        "",
        "`…` stands for what the message fills in: sizes, dtypes, names.",
    ]


def test_an_error_of_several_kinds() -> None:
    found = lines("explain", "argument.size")
    kinds = [line.partition(",")[0] for line in found if line.startswith("`A")]
    assert kinds == list(dict.fromkeys(kinds))
    assert "a subclass of `IndexError` and `KeyError`." in "\n".join(
        lines("explain", "watch.layer")
    )


def test_an_error_whose_code_begins_with_an_argument() -> None:
    with pytest.raises(ch.errors.ArgumentTypeError) as raised:
        ch.attend([1.0], [1.0], [1.0])  # type: ignore[arg-type]
    assert raised.value.code == "query.type"
    assert "- … must be …; got ….…" in lines("explain", raised.value.code)


@pytest.mark.parametrize(
    ("code", "nearest"),
    [
        ("mask.inverte", "The nearest are mask.inverted."),
        ("softcap", "The nearest are softcap.order, softcap.value."),
        ("what", "One is mask.inverted."),
    ],
)
def test_an_unknown_code(code: str, nearest: str) -> None:
    result = invoke("explain", code)
    assert (result.exit_code, result.stdout) == (1, "")
    start = f"clearhead: [explain.code] code must be that of a finding or of an error; got '{code}'"
    assert result.stderr.startswith(f"{start}. {nearest}")


def test_on_a_terminal_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True)
    monkeypatch.setattr(explain, "Console", lambda: console)
    explain.explain("mask.missing")
    assert isinstance(console.file, io.StringIO)
    assert "##" not in console.file.getvalue()
    assert "wrong" in console.file.getvalue()


def test_the_wheel_holds_the_pages() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = wheel["targets"]["wheel"]
    assert wheel["sources"] == {"src": "", "docs": "clearhead/docs"}
    assert {"src/clearhead", "docs/lessons"} <= {*wheel["only-include"]}


def test_the_lessons_are_read_where_the_wheel_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel holds them in `clearhead/docs`; a checkout, and an editable install, next to `src`."""
    assert docs("lessons") == ROOT / "docs" / "lessons"
    package = tmp_path / "site-packages" / "clearhead"
    (package / "docs" / "lessons").mkdir(parents=True)
    monkeypatch.setattr(lessons, "PACKAGE", package)
    assert docs("lessons") == package / "docs" / "lessons"
