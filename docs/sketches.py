"""The plain drawings of the lessons as data: boxes, words, grids of cells and arrows, drawn by one function."""

import math
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
LIFE = ("Life", "is", "short", "eat", "dessert", "first")
JOURNEY = ("Your", "journey", "starts", "with", "one", "step")


def box(x: int, y: int, text: str, colour: str = "grey", wide: int = 120) -> str:
    """Return a box around its middle x, with its top at y."""
    shape = f'<rect x="{x - wide // 2}" y="{y}" width="{wide}" height="{HIGH}" rx="5" fill="{COLOURS[colour]}"/>'
    return f'{shape}<text x="{x}" y="{y + 22}">{text}</text>'


def word(x: int, y: int, text: str, anchor: str = "middle") -> str:
    """Return a text at x, with its baseline at y."""
    return f'<text class="told" style="text-anchor:{anchor}" x="{x}" y="{y}">{text}</text>'


def arrow(path: str) -> str:
    """Return a path with a tip at its end."""
    return (
        f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'
    )


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
            drawn.append(
                f'<text x="{left + middle - 1}" y="{top + middle + 4}">{text}</text>'
                if text
                else ""
            )
    return "".join(drawn)


def plus(x: int, y: int) -> str:
    """Return a circle with a plus around its middle."""
    circle = f'<circle cx="{x}" cy="{y}" r="11" fill="{COLOURS["yellow"]}"/>'
    return f'{circle}<text x="{x}" y="{y + 5}">+</text>'


def bars(x: int, y: int, shares: Sequence[float], colour: str, high: int = 80) -> str:
    """Return bars that stand on the line at y, each with its share below."""
    drawn = []
    for at, each in enumerate(shares):
        left, size = x + 46 * at, round(high * each)
        drawn.append(
            f'<rect x="{left}" y="{y - size}" width="36" height="{size}" fill="{COLOURS[colour]}"/>'
        )
        drawn.append(word(left + 18, y + 16, f"{each:.2f}"))
    return "".join(drawn)


def hand(x: int, y: int, angle: float, text: str) -> str:
    """Return a circle with a hand at an angle, counted from the right against the clock."""
    end = f"{x + round(30 * math.cos(angle))} {y - round(30 * math.sin(angle))}"
    circle = f'<circle cx="{x}" cy="{y}" r="32" fill="none" stroke="{COLOURS["pale"]}"/>'
    return circle + arrow(f"M{x} {y}L{end}") + word(x, y + 52, text)


SKETCHES: dict[str, tuple[str, int, int, list[str]]] = {
    "one_number": ("How much does animal matter to it?", 660, 110, [
        *(word(x, 96, each) for x, each in zip(
            (24, 76, 134, 186, 224, 266, 332, 388, 424, 460, 500),
            ["The", "animal", "didn’t", "cross", "the", "street", "because", "it", "was", "too", "tired"], strict=True,
        )),
        arrow("M388 78Q232 -4 78 76"), box(232, 12, "one number", "orange"),
    ]),
    "shares": ("From scores to shares of one", 420, 190, [
        word(12, 34, "scores", "start"), cells(100, 12, ["o:0.95 o:1.50 o:1.48 o:0.84 o:0.71 o:1.09"], "o=orange", 46),
        arrow("M236 62V92"), word(246, 82, "exp, then divide by the sum", "start"),
        bars(100, 164, (0.14, 0.24, 0.23, 0.12, 0.11, 0.16), "blue", 240), word(12, 150, "shares", "start"),
    ]),
    "taking_home": ("A context is a weighted sum of values", 420, 170, [
        *(word(44, 30 + 36 * at, f"{share} ×") for at, share in enumerate(("0.14", "0.24", "0.62"))),
        cells(80, 10, ["v v v", "w w w", "y y y"], "v=violet w=green y=yellow", 36),
        arrow("M196 62H250"), word(222, 52, "add up"), cells(260, 46, ["b b b"], "b=blue", 36),
        word(132, 142, "values"), word(313, 106, "context"),
    ]),
    "three_jobs": ("Three matrices for three jobs", 480, 230, [
        box(60, 98, "x", wide=70), arrow("M96 108L146 40"), arrow("M96 115H146"), arrow("M96 122L146 190"),
        *(box(200, y, name, colour, 100) for y, name, colour in (
            (20, "W_query", "orange"), (98, "W_key", "green"), (176, "W_value", "violet"))),
        *(arrow(f"M252 {y}H286") for y in (37, 115, 193)),
        word(294, 42, "ask", "start"), word(294, 120, "be found", "start"), word(294, 198, "give", "start"),
        arrow("M322 38L376 66"), arrow("M352 112L376 88"), box(426, 60, "weights", "blue", 96),
        arrow("M426 96V172"), box(426, 176, "context", "yellow", 96), arrow("M326 193H374"),
    ]),
    "saturated": ("The same random rows, narrow and wide", 480, 150, [
        bars(20, 112, (0.13, 0.30, 0.19, 0.38), "blue"), word(110, 146, "width 2"),
        bars(270, 112, (0.0, 1.0, 0.0, 0.0), "orange"), word(360, 146, "width 1024"),
    ]),
    "modules": ("A module holds its layers under their names", 420, 170, [
        '<rect x="10" y="28" width="250" height="132" rx="8" fill="none" stroke="#9aa5b1"/>',
        word(135, 18, "SelfAttention"), box(135, 38, "W_query", "orange", 200), box(135, 78, "W_key", "green", 200),
        box(135, 118, "W_value", "violet", 200), arrow("M268 94H308"), word(318, 90, "state_dict:", "start"),
        word(318, 108, "saved, loaded", "start"),
    ]),
    "staircase": ("Who may look at whom", 330, 270, [
        *(word(90, 62 + 34 * at, each, "end") for at, each in enumerate(LIFE)),
        word(200, 18, "keys"), word(30, 34, "queries"),
        cells(104, 40, [" ".join("b" if j <= i else "p" for j in range(6)) for i in range(6)], "b=blue p=pale"),
        word(200, 262, "blue: visible; grey: the future, hidden"),
    ]),
    "padding": ("Two texts of one batch", 480, 110, [
        *(box(44 + 76 * at, 12, each, "blue", 72) for at, each in enumerate(JOURNEY)),
        *(box(44 + 76 * at, 54, each, "orange", 72) for at, each in enumerate(["one", "step"])),
        *(box(196 + 76 * at, 54, "padding", "pale", 72) for at in range(4)),
    ]),
    "two_modes": ("Weights in training and in use", 420, 190, [
        cells(40, 30, ["b p p p", "b b p p", "p b b p", "b p b b"], "b=blue p=pale"),
        word(108, 18, "training, one draw"),
        cells(240, 30, ["b p p p", "b b p p", "b b b p", "b b b b"], "b=blue p=pale"), word(308, 18, "in use"),
        word(108, 184, "a few are hidden"), word(308, 184, "all are there"),
    ]),
    "heads": ("Three heads, three maps", 470, 210, [
        cells(10, 88, ["o o g g b b"], "o=orange g=green b=blue", 24), word(80, 76, "one row, six columns"),
        *(arrow(f"M156 99L206 {y}") for y in (38, 99, 160)),
        cells(214, 10, ["o p p", "p o p", "p p o"], "o=orange p=pale", 20),
        cells(214, 74, ["g p p", "g p p", "g p p"], "g=green p=pale", 20),
        cells(214, 138, ["p p b", "p b p", "b p p"], "b=blue p=pale", 20),
        *(arrow(f"M278 {y}L322 99") for y in (38, 99, 160)), box(392, 82, "out_proj mixes them", "grey", 136),
    ]),
    "clock": ("The same word at four positions", 400, 100, [
        hand(50, 40, 0.0, "position 0"), hand(150, 40, 1.0, "position 1"), hand(250, 40, 2.0, "position 2"),
        hand(350, 40, 3.0, "position 3"),
    ]),
    "cache": ("A new word asks the cached keys", 480, 130, [
        *(box(50 + 76 * at, 70, f"key {at}", "grey", 70) for at in range(4)), box(354, 70, "key 4", "orange", 70),
        box(354, 8, "query 4", "orange", 80), *(arrow(f"M340 42L{52 + 76 * at} 68") for at in range(4)),
        arrow("M356 42V68"),
        word(164, 124, "computed once, and cached"), word(354, 124, "new"),
    ]),
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
    "grouped": ("Nine query heads share three key-value heads", 400, 150, [
        *(box(24 + 42 * at, 26, f"q{at}", ("orange", "green", "blue")[at // 3], 36) for at in range(9)),
        *(arrow(f"M{24 + 42 * at} 60L{66 + 126 * (at // 3)} 96") for at in range(9)),
        *(box(66 + 126 * at, 100, f"key {at}, value {at}", ("orange", "green", "blue")[at], 116) for at in range(3)),
        word(192, 16, "nine query heads"),
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
