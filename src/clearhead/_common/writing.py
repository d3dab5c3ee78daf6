"""Files that are written whole or not at all."""

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from clearhead.errors import ArgumentTypeError, FileError, because_of


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Return a context with a new file to write to; it replaces `path` if the block succeeds, and else is removed.

    A file that is there keeps its mode and, where that is allowed, its owner; a symbolic link is
    written through. A process that is killed leaves the new file, .clearhead-…, next to the place.

    Yields:
        The name of the empty file to write to, and `path` with its ~ expanded.

    Raises:
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: code `file.unwritable`, if the place cannot be written to, and instead of any OSError of the block.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/page.html") as (name, target):
        ...         written = Path(name).write_text("whole")
        ...     target.read_text()
        'whole'
    """
    target = place_of(path, "file.unwritable", "written")
    name = ""
    try:
        place, old = _regular(target)
        # Next to its place, so that it can be moved there in one step.
        # An interrupt may come before what made it has returned, so it has its name before.
        name = str(place.parent / f".clearhead-{secrets.token_hex(8)}")
        # The umask applies to a new file; what replaces one is never open to more people than it.
        mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
        with open(name, "xb", opener=partial(os.open, mode=mode)):
            pass
        yield name, target
        if old is not None:
            if hasattr(os, "chown"):
                with suppress(OSError):
                    os.chown(name, old.st_uid, old.st_gid)
            os.chmod(name, mode)
        os.replace(name, place)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        if name:
            with suppress(OSError):
                os.unlink(name)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text in UTF-8 to a file that is replaced whole, and return the path with its ~ expanded.

    Raises what `replacing` raises.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_text(f"{folder}/page.html", "whole").read_text()
        'whole'
    """
    with replacing(path) as (name, target):
        Path(name).write_text(text, encoding="utf-8", newline="\n")
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise FileError if no file can be put at a path, new or in the place of one; nothing is written.

    Raises:
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: code `file.unwritable`, if the folder is missing or not writable, or if a folder, a device or a pipe
            is at the path.

    Example:
        >>> check_writable("no/a.html")
        Traceback (most recent call last):
        ...
        clearhead.errors.MissingFileError: [file.unwritable] no/a.html could not be written: No such file or directory
    """
    target = place_of(path, "file.unwritable", "written")
    try:
        place, _ = _regular(target)
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable(target, error) from error


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Return a context with a new temporary folder, which is removed with its content at the end of the block.

    Raises:
        FileError: code `file.temporary`, where no such folder can be made.

    Example:
        >>> with temporary_folder() as folder:
        ...     folder.is_dir()
        True
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="clearhead-")
    except OSError as error:
        raise FileError(
            "file.temporary",
            f"no folder for temporary files could be made: {error.strerror or error}. Name one that can "
            "be written to by the environment variable TMPDIR.",
        ) from error
    with made as folder:
        yield Path(folder)


def place_of(path: str | os.PathLike[str], code: str, done: str) -> Path:
    """Return a path with its ~ expanded, or raise an error for a name that no file can have.

    Args:
        path: a path.
        code: of the error.
        done: what is to be done to it: "read", "written".

    Raises:
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: of that code.
    """
    try:
        place = Path(path).expanduser()
    except TypeError as error:
        raise ArgumentTypeError(
            "path.type", f"path must be a string or a path; got {type(path).__name__}."
        ) from error
    except RuntimeError as error:  # ~ of somebody that the machine does not know
        raise FileError(code, f"{path} could not be {done}: {error}") from error
    if "\0" in str(place):
        raise FileError(code, f"{place} could not be {done}: a name has no NUL in it.")
    return place


def unwritable(target: Path, error: Exception) -> FileError:
    """Return the FileError, code `file.unwritable`, for a path, with the reason of `error`.

    For a FileNotFoundError it is a MissingFileError.
    """
    reason = getattr(error, "strerror", None) or error
    message = f"{target} could not be written: {reason}"
    return because_of(error, FileError("file.unwritable", message))


def _regular(target: Path) -> tuple[Path, os.stat_result | None]:
    """Return the path behind symbolic links, and its stat, None if there is no file yet.

    Raises OSError for a folder, a device or a pipe, and if the folder around it is missing.
    """
    place = Path(os.path.realpath(target))
    try:
        found = os.stat(target)
    except FileNotFoundError:
        if not place.parent.is_dir():
            raise
        return place, None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):  # a device or a pipe is not replaced by a file
        raise OSError(errno.EINVAL, "it is no file")
    return place, found
