"""The beginning of a figure as a picture: SVG without a script, a style or a font of its own.

Its text takes the colour that is around it, and its colours show on dark and on light.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead.drawing.colours import LESS, MORE
from clearhead.drawing.element.data import StageStart
from clearhead.drawing.labels import clusters
from clearhead.tracing.text import number

ABOVE, BELOW = MORE[6], LESS[6]
HIDDEN = "#808080"
STRONGEST = 0.5
LEVELS = 20
"""Cells of one colour are one shape, so that a picture stays small."""
WIDTH = 760
ROW, SMALL = 20, 8
WORD = 8
"""Characters of a word for which there is room."""


def still_svg(parts: Sequence[StageStart], title: str, asked: tuple[str, int, int] | None) -> Html:
    """The stages from left to right, with their numbers where these are few.

    Args:
        parts: the stages.
        title: what it is a picture of, for those who do not see it.
        asked: the place of a number that is not told.

    Example:
        >>> part = StageStart("weights", torch.eye(2), ["it", "is"], ["it", "is"])
        >>> drawn = still_svg([part], "two words", None)
        >>> drawn[:4], drawn.count("<path"), "1.0000" in drawn
        ('<svg', 1, True)
    """
    x, y, deep, drawn = 0, 0, 0, list[Html]()
    hidden = next((part.numbers == 0 for part in parts if part.name == "mask"), None)
    for part in parts:
        wide, high = _size(part)
        if x and x + wide > WIDTH:
            x, y, deep = 0, y + deep, 0
        place = asked[1:] if asked and asked[0] == part.name else None
        drawn.append(element("g", *_panel(part, hidden, place), transform=f"translate({x} {y})"))
        x, deep = x + wide, max(deep, high)
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {y + deep}",
        width="100%",
        role="img",
        aria_label=title,
        font_family="system-ui,sans-serif",
        font_size=11,
        fill="currentColor",
    )


def _cell(part: StageStart) -> tuple[int, int]:
    """Width and height of a cell; where there are many, they are colours alone."""
    if part.name == "mask":
        return ROW, ROW
    return (SMALL, SMALL) if len(part.columns) > 12 else (58, ROW)


def _size(part: StageStart) -> tuple[int, int]:
    wide, high = _cell(part)
    return 64 + wide * len(part.columns) + 24, 36 + high * len(part.rows) + 16


def _panel(part: StageStart, hidden: Tensor | None, asked: tuple[int, ...] | None) -> list[Html]:
    wide, high = _cell(part)
    drawn = [element("text", element("tspan", part.name, font_weight=600), y=12)]
    if wide > ROW:
        heads = [
            element("tspan", _cut(word, wide // 7), x=64 + wide * at + wide // 2)
            for at, word in enumerate(part.columns)
        ]
        drawn.append(element("text", *heads, y=28, text_anchor="middle", opacity="0.75"))
    finite = part.numbers[part.numbers.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    top = 1.0 if part.name.endswith("weights") else largest
    over = part.name in ("weights", "scaled_scores", "masked_scores", "scores")
    grounds: dict[tuple[str, int], str] = {}
    for row, (word, numbers) in enumerate(zip(part.rows, part.numbers.tolist(), strict=True)):
        y = 36 + high * row
        texts = []
        for column, value in enumerate(numbers):
            x = 64 + wide * column
            waits = asked == (row, column)
            gone = over and hidden is not None and bool(hidden[row, column])
            ground = (HIDDEN, LEVELS // 2) if gone else _ground(value, top)
            if not waits and ground[1]:
                path = f"M{x} {y}h{wide - 2}v{high - 2}h-{wide - 2}z"
                grounds[ground] = grounds.get(ground, "") + path
            text = "?" if waits else number(value)
            if part.name == "mask":
                text = "●" if value else "·"
            texts.append(element("tspan", text, x=x + wide // 2 if wide == ROW else x + wide - 6))
        anchor = "middle" if wide == ROW else "end"
        if wide > SMALL:
            drawn.append(element("text", *texts, y=y + 14, text_anchor=anchor))
            label = _cut(word, WORD)
            drawn.append(element("text", label, x=58, y=y + 14, text_anchor="end", opacity="0.75"))
    shapes = [
        element("path", d=path, fill=colour, fill_opacity=f"{STRONGEST * level / LEVELS:.2g}")
        for (colour, level), path in grounds.items()
    ]
    return shapes + drawn


def _ground(value: float, top: float) -> tuple[str, int]:
    """The colour of a number, and how strong it is, in levels."""
    if not math.isfinite(value):
        return HIDDEN, LEVELS // 2
    share = min(1.0, abs(value) / top) if top else 0.0
    return BELOW if value < 0 else ABOVE, round(LEVELS * share)


def _cut(word: str, most: int) -> str:
    letters = clusters(word)
    return word if len(letters) <= most else "".join(letters[: most - 1]) + "…"
