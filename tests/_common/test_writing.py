"""Files that are written whole or not at all."""

import errno
import os
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
        with pytest.raises(ch.errors.FileError) as caught:
            check_writable(place)
        assert str(caught.value) == f"[file.unwritable] {place} could not be written: {reason}"


def test_a_folder_that_may_not_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who runs this may be somebody to whom nothing is forbidden.
    monkeypatch.setattr(
        os, "access", lambda place, mode: (place, mode) != (tmp_path.resolve(), os.W_OK)
    )
    with pytest.raises(
        ch.errors.FileError, match=r"a\.html could not be written: Permission denied"
    ):
        check_writable(tmp_path / "a.html")


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


STRANGE = {
    "nul": "a\0b",
    "nobody": "~no-such-user-here/a.txt",
    "long": "a" * 5000,
    "long path": "/".join(["a" * 200] * 30),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_that_no_file_can_have(name: str) -> None:
    for write in (check_writable, lambda path: replacing(path).__enter__()):
        with pytest.raises(
            ch.errors.FileError, match=r"^\[file\.unwritable\] .* could not be written: "
        ):
            write(STRANGE[name])


@pytest.mark.parametrize("path", [None, 3, b"a.txt", ["a.txt"]])
def test_what_is_no_path(path: object) -> None:
    for use in (check_writable, ch.load):
        with pytest.raises(ch.errors.ArgumentTypeError) as caught:
            use(path)  # type: ignore[arg-type]
        expected = f"path must be a string or a path; got {type(path).__name__}."
        assert str(caught.value) == f"[path.type] {expected}"


def written(place: Path, text: str = "new") -> None:
    with replacing(place) as (name, _):
        Path(name).write_text(text)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.touch()
    place.chmod(mode)
    with replacing(place) as (name, _):
        assert Path(name).stat().st_mode & 0o777 & ~mode == 0
        Path(name).write_text("new")
    assert place.read_text() == "new"
    assert place.stat().st_mode & 0o777 == mode


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, place = tmp_path / "link", tmp_path / "there" / "a.txt"
    link.symlink_to(place)
    for text in ("one", "two"):
        written(link, text)
        assert link.is_symlink()
        assert place.read_text() == text
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ch.errors.FileError, match="could not be written: Too many levels"):
        written(loop)


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for write in (check_writable, written):
        with pytest.raises(ch.errors.FileError, match="could not be written: it is no file"):
            write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_an_error_of_the_disk(tmp_path: Path) -> None:
    def fill() -> None:
        with replacing(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ch.errors.FileError, match="could not be written: No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_is_writing_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    with replacing(place) as (name, _):
        Path(name).write_text("later")
        written(place, "earlier")
        assert place.read_text() == "earlier"
    assert place.read_text() == "later"
    assert list(tmp_path.iterdir()) == [place]
