"""Labels of tokens: every character is visible, and the width is limited."""

import unicodedata
from collections.abc import Iterable, Sequence

from clearhead._text import cell_len, printable, readable


def label(token: str) -> str:
    r"""Return a token as a label that can be printed anywhere.

    Example:
        >>> label(" the"), label("\x1b[31m"), label("[red]")
        ('␣the', '\\x1b[31m', '[red]')
        >>> label("\u0301") == "◌\u0301"
        True
    """
    text = printable(token)
    # A mark would combine with whatever stands before the label.
    return "◌" + text if unicodedata.category(text[0]).startswith("M") else text


def names(tokens: Sequence[str]) -> list[str]:
    """Return the labels of the tokens of one list, without the space before a word.

    The space is written as ␣ only where two tokens of the list differ by it alone. A run of more than three spaces is
    counted.

    Example:
        >>> names([" Mary", " gave"]), names([" Mary", "Mary"]), names([" " * 19])
        (['Mary', 'gave'], ['␣Mary', 'Mary'], ['␣×19'])
    """
    known = set(tokens)
    return [
        f"␣×{len(token)}"
        if len(token) > 3 and not token.strip(" ")
        else label(token[1:] if _is_spaced(token) and token[1:] not in known else token)
        for token in tokens
    ]


def words_of(labels: Sequence[str]) -> list[str]:
    """Return the names of the tokens of a trace, whose labels begin with their places; "" for a place alone.

    Example:
        >>> words_of(["0 to", "1 ␣be", "2"])
        ['to', 'be', '']
    """
    words = [label.partition(" ")[2].replace("␣", " ") for label in labels]
    return [name if word else "" for word, name in zip(words, names(words), strict=True)]


def _is_spaced(token: str) -> bool:
    """Return True if a token is a word with a space before it."""
    return token[:1] == " " and token[1:2] not in ("", " ")


def joined(tokens: Sequence[str]) -> str:
    """Return the text that the tokens spell, without spaces and line ends around it.

    Tokens that bring their own spaces are joined as they are. WordPiece and whole words have none: `##` continues a
    word, and punctuation is written as in English.

    Example:
        >>> joined([" num", "_", "heads"]), joined(["didn", "'", "t", "walk", "##ing", "."])
        ('num_heads', "didn't walking.")
    """
    return "".join(
        " " * gap + (token[2:] if token.startswith("##") and len(token) > 2 else token)
        for token, gap in zip(tokens, gaps(tokens), strict=True)
    ).strip()


def line_of(tokens: Sequence[str]) -> str:
    """Return the text that the tokens spell, as one line for a terminal.

    Example:
        >>> print(line_of(["didn", "'", "t", "walk", "##ing"]))
        didn't walking
    """
    return " ".join(readable(joined(tokens)).split())


def gaps(tokens: Sequence[str]) -> list[bool]:
    """Return, for each token, True if a space that is not in the token is written before it.

    All False if any token begins with a space; otherwise the first one counts as well.

    Example:
        >>> gaps(["didn", "'", "t", "walk", "##ing"]), gaps([" a", "b"])
        ([True, False, False, True, False], [False, False])
    """
    if any(token.startswith(" ") for token in tokens):
        return [False] * len(tokens)
    before = ["", *tokens]
    return [
        not (
            (token.startswith("##") and len(token) > 2)
            or token in CLOSING
            or before[at] in OPENING
            or (token in CONTRACTED and before[at] in APOSTROPHES)
            or (token in APOSTROPHES and tokens[at + 1 : at + 2] and tokens[at + 1] in CONTRACTED)
        )
        for at, token in enumerate(tokens)
    ]


CLOSING, OPENING, APOSTROPHES = frozenset(".,;:!?)]}%"), frozenset("([{"), frozenset("'’")
CONTRACTED = frozenset(("t", "s", "m", "d", "re", "ve", "ll"))


def fit(text: str, width: int) -> str:
    """Return a text of exactly `width` columns: cut with "…", or filled with spaces.

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
    r"""Return the characters of a text, each with the marks that combine with it.

    Example:
        >>> [len(each) for each in clusters("ne\u0301e")]
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
    """Return the number of columns of the widest text, at most `most`; 0 if there are no texts.

    Example:
        >>> widest(["it", "street"], 80), widest(["it", "street"], 4)
        (6, 4)
    """
    return min(max(map(cell_len, texts), default=0), most)
