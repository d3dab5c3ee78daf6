"""Files that are written whole or not at all."""

from pathlib import Path

import pytest

import clearhead as ch
from clearhead._common.writing import check_writable, replacing


def test_a_place_is_looked_at_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.html")
    assert list(tmp_path.iterdir()) == []
    for place, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "nowhere" / "a.html", "No such file or directory"),
    ):
        with pytest.raises(ch.FileError) as caught:
            check_writable(place)
        assert str(caught.value) == f"[file.unwritable] {place} could not be written: {reason}"


def test_what_fails_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")

    def fail() -> None:
        with replacing(place) as (name, _):
            Path(name).write_text("new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]
