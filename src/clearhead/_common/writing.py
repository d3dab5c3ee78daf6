"""Files that are written whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clearhead.errors import FileError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """A file to write to, which takes its place if all goes well, and else is gone.

    Yields:
        The name to write to, and the place that it will have.

    Raises:
        FileError: code `file.unwritable`, if the place cannot be written to.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/page.html") as (name, target):
        ...         written = Path(name).write_text("whole")
        ...     target.read_text()
        'whole'
    """
    target = Path(path).expanduser()
    name = ""
    try:
        # Beside its place, so that it can be moved there in one step.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        yield name, target
        # mkstemp lets no other user read it, which is more than was asked for.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        if os.path.exists(name):
            os.unlink(name)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place that cannot be written to, before something is computed for it.

    Raises:
        FileError: code `file.unwritable`.

    Example:
        >>> check_writable("nowhere/page.html")
        Traceback (most recent call last):
        ...
        clearhead.errors.FileError: [file.unwritable] nowhere/page.html could not be written: No such file or directory
    """
    target = Path(path).expanduser()
    reason = 0
    if not target.parent.is_dir():
        reason = errno.ENOENT
    elif target.is_dir():
        reason = errno.EISDIR
    elif not os.access(target.parent, os.W_OK):
        reason = errno.EACCES
    if reason:
        raise _unwritable(target, OSError(reason, os.strerror(reason)))


def _unwritable(target: Path, error: OSError) -> FileError:
    return FileError("file.unwritable", f"{target} could not be written: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
