"""The plain drawings of the lessons as data: boxes, words, grids of cells and arrows, drawn by one function."""

from collections.abc import Sequence
from pathlib import Path

INK = "#777c84"
"""A grey that is read on white as well as on black."""
FOLDER = Path(__file__).resolve().parent / "pictures" / "lessons"
COLOURS = {
    "grey": "#9aa5b1", "orange": "#e08a3c", "green": "#57a773", "blue": "#6f9ae0", "violet": "#b184d6",
    "yellow": "#d9a514", "none": "none", "pale": "#c9d2dc",
}  # fmt: skip
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
    f'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
)
CELL, HIGH = 34, 34


def box(x: int, y: int, text: str, colour: str = "grey", wide: int = 120) -> str:
    """Return a box around its middle x, with its top at y."""
    shape = f'<rect x="{x - wide // 2}" y="{y}" width="{wide}" height="{HIGH}" rx="5" fill="{COLOURS[colour]}"/>'
    return f'{shape}<text x="{x}" y="{y + 22}">{text}</text>'


def word(x: int, y: int, text: str, anchor: str = "middle") -> str:
    """Return a text at x, with its baseline at y."""
    return f'<text class="told" style="text-anchor:{anchor}" x="{x}" y="{y}">{text}</text>'


def arrow(path: str) -> str:
    """Return a path with a tip at its end."""
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'


def cells(x: int, y: int, rows: Sequence[str], key: str, side: int = CELL) -> str:
    """Return a grid of cells: rows of words, each "colour:text" or one letter of `key`, such as "o=orange .=pale"."""
    colours = dict(each.split("=") for each in key.split())
    drawn = []
    for i, row in enumerate(rows):
        for j, each in enumerate(row.split()):
            letter, _, text = each.partition(":")
            left, top, middle = x + j * side, y + i * side, side // 2
            drawn.append(
                f'<rect x="{left}" y="{top}" width="{side - 3}" height="{side - 3}" rx="3" '
                f'fill="{COLOURS[colours[letter]]}"/>'
            )
            drawn.append(f'<text x="{left + middle - 1}" y="{top + middle + 4}">{text}</text>' if text else "")
    return "".join(drawn)


def plus(x: int, y: int) -> str:
    """Return a circle with a plus around its middle."""
    circle = f'<circle cx="{x}" cy="{y}" r="11" fill="{COLOURS["yellow"]}"/>'
    return f'{circle}<text x="{x}" y="{y + 5}">+</text>'


SKETCHES: dict[str, tuple[str, int, int, list[str]]] = {
    "block": ("A block of a transformer", 300, 430, [
        word(90, 422, "x"), arrow("M90 404V254"), arrow("M90 372H185V353"), box(185, 316, "norm 1"),
        arrow("M185 316V294"), box(185, 258, "attention", "orange"), arrow("M185 258V240H104"), plus(90, 240),
        arrow("M90 228V76"), arrow("M90 204H185V175"), box(185, 138, "norm 2"),
        arrow("M185 138V116"), box(185, 80, "MLP", "green"), arrow("M185 80V62H104"), plus(90, 62),
        arrow("M90 50V26"), word(90, 18, "to the next block"),
    ]),
    "gpt": ("A model that writes", 380, 450, [
        *(part for at, letter in enumerate("The") for part in (
            word(90 + 100 * at, 442, letter), arrow(f"M{90 + 100 * at} 426V404"),
            box(90 + 100 * at, 366, "embedding", wide=92), word(90 + 100 * at, 352, f"+ position {at}"),
            arrow(f"M{90 + 100 * at} 336V314"), arrow(f"M{90 + 100 * at} 148V112"),
        )),
        *(box(190, 280 - 44 * at, f"block {at + 1}", "orange", 300) for at in range(4)),
        box(190, 76, "norm, and a linear layer", "green", 300), arrow("M290 76V52"),
        word(290, 40, "the next letter: “r”?"), word(90, 40, "“h”?"), word(190, 40, "“e”?"),
        arrow("M90 76V52"), arrow("M190 76V52"),
    ]),
    "grouped": ("Nine heads of queries share three heads of keys and values", 400, 150, [
        *(box(24 + 42 * at, 26, f"q{at}", ("orange", "green", "blue")[at // 3], 36) for at in range(9)),
        *(arrow(f"M{24 + 42 * at} 60L{66 + 126 * (at // 3)} 96") for at in range(9)),
        *(box(66 + 126 * at, 100, f"key {at}, value {at}", ("orange", "green", "blue")[at], 116) for at in range(3)),
        word(192, 16, "nine heads of queries"),
    ]),
}  # fmt: skip


def draw(name: str) -> None:
    """Write one drawing into docs/pictures/lessons."""
    title, wide, high, parts = SKETCHES[name]
    style = f"text{{font:13px sans-serif;text-anchor:middle;fill:#111}}.told{{fill:{INK}}}"
    (FOLDER / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" role="img">'
        f"<title>{title}</title><style>{style}</style>{TIP}{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    for each in SKETCHES:
        draw(each)
