"""Text for a terminal: shares as colours, or as shades without colours, and as bars.

Everything that is drawn here is something that rich prints: it asks the console, when it is
printed, how wide it is and whether it has colours; without (a pipe, NO_COLOR) it draws in shades.
"""

import math
from collections.abc import Iterator

from torch import Tensor

from clearhead._common.lazy import importing
from clearhead._text import cell_len
from clearhead.drawing.colours import colour, ink

with importing("rich", extra="cli", purpose="drawing in a terminal"):
    from rich.console import Console
    from rich.console import ConsoleOptions as ConsoleOptions
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text

SHADES = " ░▒▓█"
SCALE_COLUMNS = 20
BAR_COLUMNS = 10
DIM = Style(dim=True)


def text_line(text: str, *, style: Style | None = None) -> Text:
    """Return a text on one line, which is cropped where the terminal ends; `style` of None is plain."""
    return Text(text, style=style or "", no_wrap=True, overflow="crop")


def remark(text: str, left: int = 0) -> Padding:
    """Return a dim text that wraps to the right of `left` empty columns."""
    return Padding(Text(text, DIM), (0, 0, 0, left), expand=False)


def has_colours(console: Console) -> bool:
    """Return True if the console shows at least 256 colours."""
    # Sixteen colours are too few for a scale.
    return not console.no_color and console.color_system in ("256", "truecolor")


def cell_text(
    value: float, top: float, width: int, console: Console, *, least: float = 0.0
) -> Text:
    """Return a share of one as a cell, coloured by its ratio to `top`, or shaded on a console without colours.

    The percentage is written where it fits and the share is not below `least`.
    """
    number = "" if width < 3 or value < least else whole_percent(value)
    if has_colours(console):
        paper = colour(value / top)
        style = Style(color=_hex(ink(paper)), bgcolor=_hex(paper))
        return Text(centred(number.rjust(3), width) if number else " " * width, style)
    if width < 3:
        return Text(_shade(value / top) * width)
    return Text(_shade(value / top) * (width - len(number)) + number)


def _shade(share: float) -> str:
    """Return the character that shades a share of one; "?" for NaN."""
    if math.isnan(share):
        return "?"
    return SHADES[min(int(share * len(SHADES)), len(SHADES) - 1)]


def legend(
    words: str, console: Console, options: ConsoleOptions, left: int = 0
) -> Iterator[Text | Padding]:
    """Yield the scale from 0 to the largest share, with words after it, or below it if they do not fit.

    `left` is the number of empty columns before it.
    """
    line = text_line(f"{'':{left}}0 ", style=DIM)
    for step in range(SCALE_COLUMNS):
        line.append_text(cell_text(step / (SCALE_COLUMNS - 1), 1.0, 1, console))
    fits = line.cell_len + 1 + cell_len(words) <= options.max_width
    yield line.append(f" {words}") if fits else line
    if not fits:
        yield remark(words, left)


def bar(share: float, console: Console) -> Text:
    """Return a share of one as a bar of up to 10 columns, filled with spaces; empty for NaN.

    Example:
        >>> bar(0.5, Console(no_color=True)).plain
        '━━━━━     '
    """
    length = 0 if math.isnan(share) else round(share * BAR_COLUMNS)
    style = Style(color=_hex(colour(share))) if has_colours(console) else ""
    return Text("━" * length, style).append(" " * (BAR_COLUMNS - length))


def _hex(channels: tuple[int, int, int]) -> str:
    """Return a colour in hexadecimal, such as "#0a1b2c"."""
    return "#{:02x}{:02x}{:02x}".format(*channels)


def largest(weights: Tensor) -> float:
    """Return the largest weight that is not NaN; 1.0 if there is none, or if it is 0."""
    numbers = [v for row in weights.tolist() for v in row if not math.isnan(v)]
    return max(numbers, default=1.0) or 1.0


def centred(text: str, width: int) -> str:
    """Return the text padded with spaces on both sides to a width in terminal columns; a longer one unchanged."""
    space = max(0, width - cell_len(text))
    return " " * ((space + 1) // 2) + text + " " * (space // 2)


def percent(share: float) -> str:
    """Return a share of one as a whole percentage with its sign, such as "12 %"; "? %" for NaN."""
    return f"{whole_percent(share)} %"


def whole_percent(share: float) -> str:
    """Return a share of one as a whole percentage without a sign; "?" for NaN."""
    return "?" if math.isnan(share) else f"{share * 100:.0f}"
