"""What `make release` writes, apart from the wheel: notes of the version, and a zip that only its files decide."""

import runpy
import tomllib
from pathlib import Path

import pytest

from tests.surface import ROOT

release = runpy.run_path(str(ROOT / ".ci" / "release.py"))


def test_notes_are_those_of_the_version_in_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    notes = release["release_notes"]((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    assert notes.startswith(f"# clearhead {version}, 20")


@pytest.mark.parametrize(
    "changelog", ["", "## [1.0.0] - Unreleased\n", "## [1x0.0] - 2026-01-01\n"]
)
def test_a_version_without_a_dated_section_is_refused(changelog: str) -> None:
    with pytest.raises(SystemExit, match="needs a section"):
        release["release_notes"](changelog, "1.0.0")


def test_notes_end_at_the_next_version() -> None:
    changelog = "## [2.0.0] - 2026-02-01\n\n- new\n\n## [1.0.0] - 2026-01-01\n\n- old\n"
    assert (
        release["release_notes"](changelog, "2.0.0") == "# clearhead 2.0.0, 2026-02-01\n\n- new\n\n"
    )
    assert (
        release["release_notes"](changelog, "1.0.0") == "# clearhead 1.0.0, 2026-01-01\n\n- old\n"
    )


def test_the_same_files_make_the_same_zip(tmp_path: Path) -> None:
    contents = {"index.html": "a", "pages/b.html": "b" * 999}
    zips = []
    for run, names in enumerate((list(contents), list(reversed(contents)))):
        for name in names:
            file = tmp_path / f"site{run}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(contents[name])
        release["zip_site"](tmp_path / f"site{run}", tmp_path / f"{run}.zip", 1_000_000_000)
        zips.append((tmp_path / f"{run}.zip").read_bytes())
    assert zips[0] == zips[1]
