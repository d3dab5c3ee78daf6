"""Words of somebody else's text, made fit to be printed.

A token is data: it may hold control characters, line breaks, or marks that turn the direction of
the line around. They are shown, never obeyed.
"""

import unicodedata

NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣"}


def printable(word: str) -> str:
    """A token with every character that is not visible spelled out.

    Example:
        >>> printable("a\\nb"), printable(" the"), printable("\\x1b[31m"), printable("")
        ('a⏎b', '␣the', '\\\\x1b[31m', '∅')
    """
    return "".join(_visible(char) for char in word) or "∅"


def cell_len(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters two, combining marks none.

    Example:
        >>> cell_len("cat"), cell_len("猫")
        (3, 2)
    """
    return sum(_columns(char) for char in text)


def _visible(char: str) -> str:
    if char in NAMES:
        return NAMES[char]
    # Cc control, Cf format (direction marks, joiners), Cs surrogates, Zl and Zp separators.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(char)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return char


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
