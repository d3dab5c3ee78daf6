"""Drawings in a terminal, read again: as lines of text, and by the colour behind each part."""

import io

from rich.console import Console
from rich.segment import Segment

from clearhead.drawing.colours import colour

HOSTILE = [
    "[red]x[/]",
    "\x1b[31m",
    "\u202eabc",
    "😀",
    "猫猫",
    "\n",
    "",
    "e\u0301",
    "\u0301",
    "\r\t",
]


def console(width: int = 80, *, colours: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
    )


def drawn(what: object, width: int = 80) -> list[str]:
    """The lines of a drawing without colours."""
    plain = console(width)
    plain.print(what)
    assert isinstance(plain.file, io.StringIO)
    return plain.file.getvalue().splitlines()


def papers(what: object, width: int = 80) -> list[list[tuple[str, str]]]:
    """For each line of a coloured drawing its texts with their background."""
    coloured = console(width, colours=True)
    lines = coloured.render_lines(what, pad=False)  # type: ignore[arg-type]
    return [[(segment.text, paper(segment)) for segment in line] for line in lines]


def paper(segment: Segment) -> str:
    background = segment.style.bgcolor if segment.style else None
    return background.name if background else ""


def hexadecimal(share: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour(share))
