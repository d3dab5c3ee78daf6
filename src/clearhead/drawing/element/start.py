"""The state that a figure begins with, and what it refuses to begin with."""

import math
import re

from clearhead._text import shown
from clearhead.drawing.element.data import FigureData
from clearhead.errors import ArgumentError, ArgumentTypeError

CELL = re.compile(r"(\w+)\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)
FIELDS = {
    "mask": ["mask"],
    "hiding": ["hiding"],
    "softmax": ["shares", "axis"],
    "scale": ["scale", "temperature"],
    "width": ["width"],
    "dropout": ["dropout", "draws"],
    "order": ["order"],
    "heads": ["heads", "transpose", "back"],
    "rotary": ["rotary"],
}
"""Fields of a state for edits other than those of cells."""
MOST_DRAWS = 10_000
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)


def check_start(start: object, data: FigureData) -> str:
    """Return the state that a figure begins with, as its element has it.

    Args:
        start: fields as "scores.1.0=3.5&mask=10.11", or None.
        data: the figure.

    Raises:
        ArgumentTypeError: code `figure.start`, for what is no text.
        ArgumentError: code `figure.start`, for a field that this figure does not have.

    Example:
        >>> from clearhead.drawing.element.data import figure_data
        >>> x = torch.eye(2)
        >>> data = figure_data(
        ...     ch.trace(ch.attend, x, x, x), sample=0, head=0, show=[], edit=["scores"], predict=None, title=""
        ... )
        >>> check_start("scores.1.0=3.5", data)
        'scores.1.0=3.5'
    """
    if start is None:
        return ""
    if not isinstance(start, str):
        raise ArgumentTypeError("figure.start", f"start must be a string; got {shown(start)}.")
    fields = start.split("&") if start else []
    for field in fields:
        name, _, value = field.partition("=")
        if not _is_of(name, value, data):
            own = ", ".join(_names(data))
            raise ArgumentError(
                "figure.start",
                "start must hold what this figure can be set to, as scores.1.0=3.5&scale=1; it has "
                f"{own or 'nothing'}; got {shown(field)}.",
            )
    return start


def _names(data: FigureData) -> list[str]:
    """The names that a state of this figure has."""
    made = data.json
    found = []
    for name in made["edit"]:
        cell = f"{name}.row.column"
        found += FIELDS.get(name, [cell])
    return [*found, *(["guess"] if made["predict"] else [])]


def _width(data: FigureData) -> int:
    """The numbers of a query."""
    inputs = data.json["inputs"]
    return inputs["query" if "query" in inputs else "W_query"]["columns"]


def _is_of(name: str, value: str, data: FigureData) -> bool:
    edit = data.json["edit"]
    if name == "mask":
        rows = value.split(".")
        keys = len(data.json["source_tokens"])
        fits = len(rows) == len(data.json["tokens"]) and {len(row) for row in rows} == {keys}
        return "mask" in edit and fits and set(value) <= set("01.")
    if name == "order":
        places = [str(each) for each in range(len(data.json["tokens"]))]
        return "order" in edit and sorted(value.split(".")) == sorted(places)
    if not NUMBER.fullmatch(value) or not math.isfinite(float(value)):
        return False
    to = float(value)
    if "." not in name:
        widths = [each["width"] for each in data.json.get("widths", [])]
        fits = {
            "temperature": to > 0,
            "width": to in widths,
            "dropout": 0 <= to < 1,
            "draws": to.is_integer() and 0 <= to <= MOST_DRAWS,
            "heads": "heads" in edit and to.is_integer() and to > 1 and not _width(data) % int(to),
            "transpose": to in (0, 1),
            "back": to in (0, 1),
            "rotary": to in (0, 1),
            "hiding": to in (0, 1, 2),
            "shares": to in (0, 1, 2),
            "axis": to in (0, 1),
        }
        return name in _names(data) and fits.get(name, True)
    cell = CELL.fullmatch(name)
    if cell is None or cell[1] not in edit:
        return False
    shape = {part.name: part.numbers.shape for part in data.parts}.get(cell[1])
    return shape is not None and int(cell[2]) < shape[0] and int(cell[3]) < shape[1]
