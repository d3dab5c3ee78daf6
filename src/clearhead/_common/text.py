"""Text for people: tokens made fit to be printed, and sizes in words.

A token is data: it may hold control characters, line breaks, or marks that turn the direction of
the line around. They are shown, never obeyed.
"""

import unicodedata

NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣"}


def printable(word: str) -> str:
    """Return a token with every character that is not visible spelled out.

    Example:
        >>> printable("a\\nb"), printable(" the"), printable("\\x1b[31m"), printable("")
        ('a⏎b', '␣the', '\\\\x1b[31m', '∅')
    """
    return "".join(_visible(char) for char in word) or "∅"


def readable(text: str) -> str:
    """Return a message or a path with every invisible character but spaces and line ends spelled out.

    Example:
        >>> readable("My Files/a.html"), readable("a\\x1b[31m")
        ('My Files/a.html', 'a\\\\x1b[31m')
    """
    return "".join(char if char in " \n" else printable(char) for char in text)


def cell_len(text: str) -> int:
    """Return the columns of a terminal that a text takes: wide characters two, combining marks none.

    Example:
        >>> cell_len("cat"), cell_len("猫")
        (3, 2)
    """
    return sum(_columns(char) for char in text)


def count(number: int, unit: str) -> str:
    """A number with what it counts, in the plural unless it is 1.

    Example:
        >>> count(1, "token"), count(5_600, "token")
        ('1 token', '5,600 tokens')
    """
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Return a size in bytes as a person says it.

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
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
