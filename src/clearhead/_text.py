"""Text for people: tokens made fit to be printed, and sizes in words.

A token is data: it may hold control characters, line breaks, or marks that turn the direction of
the line around. They are shown, never obeyed.
"""

import json
import re
import reprlib
import signal
import unicodedata
from typing import Any

NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣"}

PERHAPS_ACTING = re.compile(r"[^\x20-\x7e\n]")


class _Short(reprlib.Repr):
    """Reprs of a bounded length."""

    def __init__(self) -> None:
        """Limit strings and other objects to 240 characters, and collections to 12 items."""
        super().__init__()
        self.maxstring = self.maxother = 240
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 12

    def repr1(self, x: Any, level: int) -> str:
        """Return the repr of an object, cut to 1000 characters."""
        return bounded(super().repr1(x, level), 1000)

    def repr_int(self, x: int, level: int) -> str:
        """Return an integer in digits, or its size in bits from 128 bits on."""
        return f"{x}" if x.bit_length() < 128 else f"a number of {x.bit_length()} bits"

    def repr_instance(self, x: Any, level: int) -> str:
        """Return the repr of an object of any other class, cut to 240 characters; raises what its repr raises."""
        return bounded(repr(x), self.maxother)


_SHORT = _Short()


def printable(word: str) -> str:
    r"""Return a token with every character that is not visible spelled out.

    Example:
        >>> printable("a\nb"), printable(" the"), printable("\x1b[31m"), printable("")
        ('a⏎b', '␣the', '\\x1b[31m', '∅')
    """
    return "".join(_visible(char) for char in word) or "∅"


def readable(text: str) -> str:
    r"""Return a message or a path with every invisible character but spaces and line ends spelled out.

    Example:
        >>> readable("My Files/a.html"), readable("a\x1b[31m")
        ('My Files/a.html', 'a\\x1b[31m')
    """
    return PERHAPS_ACTING.sub(lambda found: printable(found[0]), text)


def as_json(content: object) -> str:
    r"""Return a value as JSON text, indented by 2, in which letters outside ASCII are not escaped.

    Half of a surrogate pair, as in a file name that is not UTF-8, is escaped; `json.loads` restores it.

    Example:
        >>> as_json({"é": "\udcff"})
        '{\n  "é": "\\udcff"\n}'
    """
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def patch_names(grid: tuple[int, int], skip: int) -> list[str]:
    """Return a name for each token of a picture: `skip` tokens before the patches, then "row,column" for each patch.

    `grid` is the number of rows and of columns of patches.

    Example:
        >>> patch_names((1, 2), 2)
        ['[CLS]', '[1]', '0,0', '0,1']
    """
    before = ["[CLS]", *(f"[{n}]" for n in range(1, skip))][:skip]
    return before + [f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])]


def bounded(text: str, most: int) -> str:
    """Return a text that is readable, in at most `most` characters, 7 or more: of a long one the beginning and the end.

    Example:
        >>> bounded("a message", 20), bounded("a" * 99 + "b" * 99, 20)
        ('a message', 'aaaaaaaaaa … bbbbbbb')
    """
    text = readable(_ends(text, most))
    return _ends(text, most)


def shown(value: object) -> str:
    """Return the repr of an argument for a message, shortened; its type if the repr raises.

    Example:
        >>> shown("qkv"), shown([1.5, None])
        ("'qkv'", '[1.5, None]')
        >>> len(shown("a" * 10**6)) < 300
        True
    """
    try:
        return _SHORT.repr(value)
    except Exception:  # any object may raise anything
        return f"a {type(value).__name__} whose repr fails"


def kind_of(value: object) -> str:
    """Return the type of an argument for a message, or that it is a class where an object was meant.

    Example:
        >>> kind_of(3), kind_of(int)
        ('int', 'the class int; write int()')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}; write {value.__name__}()"
    return type(value).__name__


def exit_words(code: int) -> str:
    """Return how a process ended, by its exit code; below 0 is the signal that ended it, ValueError for an unknown one.

    Example:
        >>> exit_words(3), exit_words(-9)
        ('exit code 3', 'signal SIGKILL')
    """
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def raised_words(error: BaseException) -> str:
    """Return "type: message" of any exception, readable and cut to 1000 characters; never raises.

    Example:
        >>> raised_words(KeyError("a"))
        "KeyError: 'a'"
    """
    try:
        words = str(error)
    except Exception:  # any object may raise anything
        words = "its message cannot be read"
    return bounded(f"{type(error).__name__}: {words}", 1000)


def cell_len(text: str) -> int:
    """Return the columns of a terminal that a text takes: wide characters two, combining marks none.

    Example:
        >>> cell_len("cat"), cell_len("猫")
        (3, 2)
    """
    return sum(_columns(char) for char in text)


def count(number: int, unit: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Example:
        >>> count(1, "token"), count(5_600, "token")
        ('1 token', '5,600 tokens')
    """
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Return a size in bytes as text with a decimal unit, such as "12 MB".

    Example:
        >>> format_bytes(12), format_bytes(45_000), format_bytes(1.44e12)
        ('12 bytes', '45.0 kB', '1,440.0 GB')
    """
    if size < 999.5:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:  # what is rounded up to 1000.0 has a unit of its own
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def _visible(char: str) -> str:
    """Return a visible character, a sign for a space, tab or line end, or the escape sequence of another one."""
    if char in NAMES:
        return NAMES[char]
    # C* is control, format (direction marks, joiners), surrogates, private and unassigned; Z* is
    # blanks of other kinds, and separators.
    if unicodedata.category(char)[0] in "CZ":
        code = ord(char)
        if code < 256:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
    return char


def _columns(char: str) -> int:
    """Return the number of terminal columns of a character: 0, 1 or 2."""
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _ends(text: str, most: int) -> str:
    """Return a text of at most `most` characters, with " … " for a middle that is cut; `most` must be 7 or more."""
    if len(text) <= most:
        return text
    head, tail = most // 2, most - most // 2 - 3
    return f"{text[:head]} … {text[-tail:]}"
