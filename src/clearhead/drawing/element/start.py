"""The initial state of a figure, and the checks of its fields."""

import re

from clearhead._text import shown
from clearhead.drawing.element.data import FigureData
from clearhead.errors import ArgumentError, ArgumentTypeError

FIELDS = {
    "softmax": ["shares", "axis"],
    "scale": ["scale", "temperature"],
    "dropout": ["dropout", "draws"],
    "heads": ["heads", "transpose", "back"],
}
"""Fields of a state for edits that are not one field of their own name."""

ALONE = ("mask", "hiding", "width", "order", "rotary")
NUMBER = re.compile(r"-?(\d+\.?\d{0,99}|\.\d{1,99})(e[+-]?\d{1,2})?|[\d.]+", re.ASCII)


def check_start(start: object, data: FigureData) -> str:
    """Return the initial state of a figure as its element has it; "" for None.

    The script of the figure reads the values, and leaves out what does not fit.

    Args:
        start: fields as "scores.1.0=3.5&mask=10.11", or None.
        data: the figure.

    Raises:
        ArgumentTypeError: code `figure.start`, if it is not a string.
        ArgumentError: code `figure.start`, for a field that this figure does not have.
    """
    if start is None:
        return ""
    if not isinstance(start, str):
        raise ArgumentTypeError("figure.start", f"start must be a string; got {shown(start)}.")
    names = ["guess"] if data.json["predict"] else []
    cells = []
    for name in data.json["edit"]:
        fields = FIELDS.get(name, [name] if name in ALONE else [])
        names += fields
        cells += [] if fields else [name]
    for field in start.split("&") if start else []:
        name, _, value = field.partition("=")
        stage, *place = name.split(".")
        is_cell = stage in cells and len(place) == 2 and all(part.isdecimal() for part in place)
        if not (name in names or is_cell) or not NUMBER.fullmatch(value):
            known = ", ".join([f"{cell}.row.column" for cell in cells] + names)
            raise ArgumentError(
                "figure.start",
                "start must hold what this figure can be set to, as scores.1.0=3.5&scale=1; it has "
                f"{known or 'nothing'}; got {shown(field)}.",
            )
    return start
