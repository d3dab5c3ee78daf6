"""A token as a label: every character visible, and no wider than there is room."""

import unicodedata
from collections.abc import Iterable

from clearhead._common.text import cell_len, printable


def label(token: str) -> str:
    """A token as it can be printed anywhere.

    Example:
        >>> label(" the"), label("\\x1b[31m"), label("[red]")
        ('␣the', '\\\\x1b[31m', '[red]')
        >>> label("\\u0301") == "◌\\u0301"
        True
    """
    text = printable(token)
    # A mark would combine with whatever stands before the label.
    return "◌" + text if unicodedata.category(text[0]).startswith("M") else text


def fit(text: str, width: int) -> str:
    """A text of exactly so many columns: cut with "…", or filled with spaces.

    Example:
        >>> fit("because", 5), fit("it", 5), fit("日本語", 5)
        ('beca…', 'it   ', '日本…')
    """
    if cell_len(text) > width:
        kept = ""
        for cluster in clusters(text):
            if cell_len(kept + cluster) > width - 1:
                break
            kept += cluster
        text = kept + "…" if width else ""
    return text + " " * (width - cell_len(text))


def clusters(text: str) -> list[str]:
    """The characters of a text, each with the marks that combine with it.

    Example:
        >>> [len(each) for each in clusters("ne\\u0301e")]
        [1, 2, 1]
    """
    found: list[str] = []
    for char in text:
        if found and unicodedata.category(char).startswith("M"):
            found[-1] += char
        else:
            found.append(char)
    return found


def widest(texts: Iterable[str], most: int) -> int:
    """The columns that the widest of the texts takes, and no more than `most`.

    Example:
        >>> widest(["it", "street"], 80), widest(["it", "street"], 4)
        (6, 4)
    """
    return min(max(map(cell_len, texts), default=0), most)
