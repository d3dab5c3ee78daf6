"""Every error of the package, in one tree.

    ClearheadError
    ├── ArgumentError         ValueError           a number or a choice outside what is allowed
    ├── ArgumentTypeError     TypeError            an argument of the wrong type
    ├── ShapeError            ValueError           sizes that do not fit together
    ├── DtypeError            TypeError            a dtype that attention is not defined for, or a mixture
    ├── DeviceError           ValueError           tensors on different devices
    ├── MaskError             ValueError           a mask that cannot mean what it seems to
    ├── SelectionError        IndexError, KeyError an index outside the matrix of weights, or a name that is not there
    ├── NoAttributeError      AttributeError       a word of another library, which has another name here
    ├── TooLargeError         MemoryError          something tokens × tokens that would not fit
    ├── UnsupportedError      NotImplementedError  a kernel, asked for by name, that cannot run the problem
    ├── WatchError            RuntimeError         a model whose attention could not be seen
    ├── EditError             RuntimeError         a model whose attention could not be edited as was asked
    ├── RankError             RuntimeError         ranks of a process group that disagree, or are gone
    ├── ModelError            ValueError           a model that could not be loaded or read
    ├── FileError             OSError, ValueError  a file that could not be read or written, or is not what it should be
    │   └── MissingFileError  FileNotFoundError    a file or a folder that is not there
    └── MissingExtraError     ImportError          an optional dependency that is not installed

Each error carries a stable `code` such as `shape.kv-len`, names the argument, and says what was
expected and what came. The code is part of the interface; the sentence may improve.
`clearhead explain CODE` prints what the docs say of it. A message may hold what somebody else wrote: it
is cut to MOST letters, and its invisible characters are spelled out.
"""

from errno import ENOENT

from clearhead._text import bounded

ADDRESS = ""
"""The address of the repository, such as "https://example.org/clearhead"; empty until there is one."""

INSTALL = (
    f"Run\n  pip install 'clearhead[{{extra}}] @ git+{ADDRESS}'"
    if ADDRESS
    else "In a checkout of clearhead:\n  pip install '.[{extra}]'"
)
"""The command that installs an extra: from the repository, or from a checkout while no address is known."""

MOST = 2000
"""Letters of an error as text."""


class ClearheadError(Exception):
    """Base of every error that clearhead raises on purpose.

    Args:
        code: a stable, dotted name of the mistake.
        message: what was expected and what came, in one or more lines; cut to MOST letters, and made readable.

    Example:
        >>> import torch, clearhead as ch
        >>> try:
        ...     ch.attend(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))
        ... except ch.errors.ClearheadError as error:
        ...     print(error.code)
        shape.kv-len
    """

    code: str

    def __init__(self, code: str, message: str) -> None:
        """Store the code, and the message made readable and cut, as `code` and `message`."""
        message = bounded(message, MOST - len(code) - 3)
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """Return "[code] message"."""
        return f"[{self.code}] {self.message}"


class ArgumentError(ClearheadError, ValueError):
    """A number or choice outside of the allowed values.

    Example:
        >>> import clearhead as ch
        >>> ch.sliding_window(left=-1)
        Traceback (most recent call last):
        ...
        clearhead.errors.ArgumentError: [window.negative] left must be 0 or more tokens, or None for no limit; got -1.
    """


class ArgumentTypeError(ClearheadError, TypeError):
    """An argument has the wrong type.

    Example:
        >>> import clearhead as ch
        >>> ch.causal() & True
        Traceback (most recent call last):
        ...
        clearhead.errors.ArgumentTypeError: [mask.type] a mask combines with a mask only; got bool.
    """


class ShapeError(ClearheadError, ValueError):
    """Sizes do not fit together."""


class DtypeError(ClearheadError, TypeError):
    """A dtype that attention is not defined for, or a mixture of dtypes."""


class DeviceError(ClearheadError, ValueError):
    """Tensors that belong together are on different devices."""


class MaskError(ClearheadError, ValueError):
    """A mask that does not fit the call, or is ambiguous.

    Example:
        >>> import torch, clearhead as ch
        >>> try:
        ...     ch.dense(torch.ones(3, 3))
        ... except ch.errors.MaskError as error:
        ...     print(error.code)
        mask.dtype
    """


class SelectionError(ClearheadError, IndexError, KeyError):
    """An index lies outside the matrix of weights, or there is nothing of that name."""


class NoAttributeError(ClearheadError, AttributeError):
    """An attribute of another library's object, which has another name here.

    Example:
        >>> import torch, clearhead as ch
        >>> A = ch.AttentionMatrix(torch.eye(2), torch.eye(2))
        >>> hasattr(A, "numpy")
        False
    """


class TooLargeError(ClearheadError, MemoryError):
    """A request for something of size tokens × tokens that does not fit into memory."""


class UnsupportedError(ClearheadError, NotImplementedError):
    """A kernel that was requested by name cannot run the problem; every reason is listed."""


class WatchError(ClearheadError, RuntimeError):
    """A model's attention could not be seen."""


class WatchWarning(UserWarning):
    """A part of a watched model attended and was not seen."""


class EditError(ClearheadError, RuntimeError):
    """A model's attention could not be edited as requested."""


class EditWarning(UserWarning):
    """An operation of an edit was not applied, or changed nothing."""


class RankError(ClearheadError, RuntimeError):
    """The ranks of a process group disagree about a call, or one of them is gone."""


class ModelError(ClearheadError, ValueError):
    """A model could not be loaded, or is not one that attends."""


class FileError(ClearheadError, OSError, ValueError):
    """A file could not be written, or its content could not be read."""

    errno = None


class MissingFileError(FileError, FileNotFoundError):
    """A file that was to be read, or the folder that was to be written to, is not there.

    Example:
        >>> import clearhead as ch
        >>> try:
        ...     ch.load("missing.clearhead")
        ... except FileNotFoundError as error:
        ...     print(error)
        [file.unreadable] missing.clearhead could not be read as a file of safetensors: No such file or directory
    """

    errno = ENOENT


def because_of(cause: Exception, error: FileError) -> FileError:
    """Return a MissingFileError with code and message of `error` if the cause is a missing file, else a FileError."""
    kind = MissingFileError if isinstance(cause, FileNotFoundError) else FileError
    return kind(error.code, error.message)


class MissingExtraError(ClearheadError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """Return the error for an optional `package` that `purpose` needs and the extra `extra` installs."""
    return MissingExtraError(
        "extra.missing",
        f"{purpose} needs {package}, which is not installed. {INSTALL.format(extra=extra)}",
    )
