"""Interactive figures of attention and of masks: `figure`, and the object that it returns."""

import json
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead._common.checks import as_place, check_length
from clearhead._common.elements import Drawn, Html, document, element, joined
from clearhead._common.hints import with_hints
from clearhead._common.writing import write_text
from clearhead._text import shown
from clearhead.attention.biases import Bias
from clearhead.attention.functional import attend
from clearhead.drawing.element.data import FigureData, StageStart, check_sizes, figure_data
from clearhead.drawing.labels import label
from clearhead.drawing.notebook.inline.markup import frame
from clearhead.drawing.page.page import asset
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError
from clearhead.ladder.rung import Rung
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.masks.base import Mask
from clearhead.tracing.text import MOST_COLUMNS, MOST_ROWS, number
from clearhead.tracing.trace import trace
from clearhead.tracing.traced_call import Trace

FIELDS = {
    "scale": ["scale", "temperature"],
    "dropout": ["dropout", "draws"],
    "heads": ["heads", "transpose", "back"],
}
"""Fields of a state for edits that are not one field of their own name."""

ALONE = ("mask", "width", "order", "rotary")
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


class Figure(Drawn):
    """An interactive figure of attention, whose numbers can be changed, as `figure` makes it.

    Example:
        >>> x = torch.eye(2)
        >>> ch.figure(x, x, x, show=["weights"], edit=["scores", "scale"])
        figure of attention: 2 queries × 2 keys; scores, weights; edited: scores, scale
    """

    def __init__(self, data: FigureData, start: str | None = None) -> None:
        """Store the data and the initial state; raises as `check_start`."""
        self._data = data
        self._start = check_start(start, data)

    def __str__(self) -> str:
        """Return title, sizes, stages and edits in one line."""
        made = self._data.json
        edits = ", ".join(made["edit"]) or "nothing"
        size = f"{len(made['tokens'])} queries × {len(made['source_tokens'])} keys"
        shows = ", ".join(made["show"])
        return f"figure of {self._name}: {size}; {shows}; edited: {edits}"

    def _repr_html_(self) -> str:
        """Return the figure as HTML for a notebook."""
        return frame(self._element(*self._tables()), _script())

    @property
    def _name(self) -> str:
        """Return the title of the figure; "attention" if it has none."""
        return self._data.json["title"] or "attention"

    def to_element(self, *, script: bool = True) -> str:
        """Return the figure as an element for any page, `<ch-figure>` with its data, and its script.

        Where no script runs, and in print, it shows its initial numbers. A page with several figures needs the
        script once. The element has a property `state`, one short text of all that a reader has changed, whose
        initial value is the attribute `state`; the event `statechange` reports each change. In a frame it posts
        `{clearhead: "height", height}` to the page around it.

        Args:
            script: False leaves the script out, for a page that has it already.

        Example:
            >>> x = torch.eye(2)
            >>> drawn = ch.figure(x, x, x)
            >>> "<script>" in drawn.to_element(), "<script>" in drawn.to_element(script=False)
            (True, False)
        """
        made = self._element(*self._tables())
        return str(joined([made, _script()]) if script else made)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure as a self-contained page, which opens offline.

        Args:
            path: the file; one that is there is replaced.

        Returns:
            The path.

        Raises:
            ArgumentTypeError: code `path.type`, for what is no path.
            FileError: code `file.unwritable`, if the place cannot be written to.

        Example:
            >>> import tempfile
            >>> x = torch.eye(2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ch.figure(x, x, x).to_html(f"{folder}/figure.html").name
            'figure.html'
        """
        script = asset("figure.js")
        hashed = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
        policy = (
            f"default-src 'none'; script-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
        )
        head = [
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", f"figure of {self._name}"),
        ]
        made = self._data.json | {"title": self._name}
        body = [element("main", self._element(*self._tables(), data=made, level=1)), _script()]
        return write_text(path, str(document(head, body)))

    def _element(
        self, *inside: str, data: dict[str, Any] | None = None, level: int | None = None
    ) -> Html:
        """Return the element `ch-figure` with `data` as JSON (None: the figure's), `inside` it, and a heading level."""
        made = json.dumps(data or self._data.json, ensure_ascii=False, separators=(",", ":"))
        return element(
            "ch-figure", *inside, data_figure=made, state=self._start or None, level=level
        )

    def _tables(self) -> list[Html]:
        """Return the stages as tables of numbers, for print and where no script runs.

        Large ones as their size in words. The number to predict is "?".
        """
        asked = self._data.json["predict"]
        found = []
        for part in self._data.parts:
            rows, columns = part.numbers.shape
            if rows > MOST_ROWS or columns > MOST_COLUMNS:
                found.append(element("p", f"{part.name}: {rows} × {columns} numbers"))
                continue
            cells = [list(map(number, row)) for row in part.numbers.tolist()]
            if asked and asked[0] == part.name:
                cells[asked[1]][asked[2]] = "?"
            lines = [[part.name, *part.columns]]
            lines += [[word, *row] for word, row in zip(part.rows, cells, strict=True)]
            drawn = (element("tr", *(element("td", cell) for cell in cells)) for cells in lines)
            found.append(element("table", *drawn))
        return found


@with_hints
def figure(
    query: Tensor | Trace | MultiHeadAttention | Rung,
    key: Tensor | None = None,
    value: Tensor | None = None,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    bias: Bias | Tensor | None = None,
    softcap: float | None = None,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    sample: int = 0,
    head: int = 0,
    show: Sequence[str] | None = None,
    edit: Sequence[str] | None = None,
    predict: tuple[str, int, int] | None = None,
    title: str | None = None,
    start: str | None = None,
) -> Figure:
    """Return an interactive figure of attention: its numbers can be changed, and later stages are recomputed.

    It is drawn in a notebook, in a page of its own (`to_html`) and in any page (`to_element`), and
    needs neither a network nor Python then. A number that may be edited is changed with the arrows
    of the keyboard, by a drag sideways or by typing; every later stage follows, and shows its previous
    number next to the new one. A score that is set by hand no longer depends on query and key.

    Args:
        query: (…, query_len, head_dim); or a trace; or a layer or a rung of the ladder, followed by its inputs.
        key: (…, kv_len, head_dim); after a layer or a rung, x.
        value: (…, kv_len, value_head_dim); after a layer or a rung, the sequence that is attended to.
        mask: which keys each query may attend to; None hides nothing.
        scale: the factor of the scores; None is 1/√head_dim.
        bias: added to the scores, or None.
        softcap: the bound of the scaled scores, or None.
        tokens: a word for each query.
        source_tokens: a word for each key, where they are not those of the queries.
        sample: which row of the batch.
        head: which query head.
        show: the stages that are drawn: of x, source, W_query, query, W_key, key, scores,
            scaled_scores, capped_scores, mask, masked_scores, weights, W_value, value and context
            those that there are, and plane for vectors of width 2: query and keys as arrows, the
            context in the hull of the values. What may be edited is drawn as well.
        edit: what may be edited: x, source, W_query, W_key, W_value, query, key, value, scores, weights, mask, scale;
            width: how many dimensions of query and key are used, shown instead of both; dropout,
            redrawn by hand; order: tokens are moved; heads: a query is split into heads and joined again, with a
            transpose or without; rotary: queries and keys are rotated by their position.
        predict: a stage, a row and a column: a number to guess before it is shown.
        title: the title above it.
        start: what is changed when it opens, as the property `state` of the element has it:
            "scores.1.0=3.5&mask=100.110.111". *reset* restores the numbers that it was made of.

    Raises:
        SelectionError: codes `figure.stage` and `figure.predict`, for a stage or a number that is not there; code
            `trace.part`, for no such sample or head.
        ArgumentError: code `figure.edit`, for what cannot be edited; `figure.empty`, for a stage without
            numbers; `figure.options`, for options of a trace; `figure.start`, for what it cannot open with;
            `trace.tokens`, for words that do not fit.
        ArgumentTypeError: codes `figure.thing`, `figure.names`, `figure.predict`, `figure.start` and `figure.title`.
        TooLargeError: code `figure.size`, for a stage of more than 64 × 64 numbers.
        UnsupportedError: code `figure.stages`, for dropout, sinks and stages of other kinds.
        ClearheadError: what `trace` raises.

    Example:
        >>> x = torch.tensor([[0.43, 0.15], [0.55, 0.87], [0.57, 0.85]])
        >>> drawn = ch.figure(x, x, x, mask=ch.causal(), tokens=["Your", "journey", "starts"])
        >>> drawn.to_element()[:24]
        '<ch-figure data-figure="'
    """
    if title is not None and not isinstance(title, str):
        raise ArgumentTypeError("figure.title", f"title must be a string; got {shown(title)}.")
    given = {"mask": mask, "scale": scale, "bias": bias, "softcap": softcap}
    options: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
    words: dict[str, Any] = {"tokens": tokens, "source_tokens": source_tokens}
    inputs = [each for each in (key, value) if each is not None]
    if isinstance(query, Trace):
        named = [name for name, each in (options | words).items() if each is not None]
        if inputs or named:
            what = "further tensors" if inputs else f"{named[0]}="
            raise ArgumentError(
                "figure.options",
                f"a trace has its numbers, options and tokens already; got {what} as well.",
            )
        steps = query
    elif isinstance(query, MultiHeadAttention | Rung):
        steps = trace(query, *inputs, **words, **options)
    elif isinstance(query, Tensor) and len(inputs) == 2:
        steps = trace(attend, query, *inputs, **words, **options)
    else:
        raise ArgumentTypeError(
            "figure.thing",
            "figure takes query, key and value, a Trace, or a layer or a rung with its inputs; got "
            f"{type(query).__name__} and {len(inputs)} more tensors.",
        )
    name = "" if title is None else label(title).replace("␣", " ")
    made = figure_data(
        steps, sample=sample, head=head, show=show, edit=edit, predict=predict, title=name
    )
    return Figure(made, start)


def _script() -> Html:
    """Return the script that all figures of a page share."""
    return element("script", Html(asset("figure.js")))


def of_mask(
    mask: Mask,
    query_len: int,
    kv_len: int | None,
    *,
    sample: int = 0,
    head: int = 0,
    start: str | None = None,
) -> Figure:
    """Return the figure of one sample and head of a mask; `kv_len` of None is query_len.

    Raises SelectionError (`figure.part`) for no such sample or head, TooLargeError (`figure.size`) or ArgumentError
    (`figure.empty`) for its size, and what `check_start`, `check_length` and `Mask.to_dense` raise.

    Example:
        >>> of_mask(ch.causal(), 2, 3)
        figure of causal(): 2 queries × 3 keys; mask; edited: mask
    """
    queries = check_length("query_len", query_len)
    keys = queries if kv_len is None else check_length("kv_len", kv_len)
    check_sizes({"mask": (queries, keys)}, "blocks() and plot() show a longer mask.")
    dense = mask.to_dense(queries, keys)
    for name, index, count in zip(
        ("sample", "head"), (sample, head), mask.leading if dense.ndim > 2 else (1, 1), strict=True
    ):
        place = as_place(index, count)
        if place is None:
            raise SelectionError(
                "figure.part", f"the mask has {count} along {name}; got {shown(index)}."
            )
        dense = dense[place] if dense.ndim > 2 else dense
    rows, columns = ([str(each) for each in range(count)] for count in (queries, keys))
    made = {
        "title": mask.describe(),
        "tokens": rows,
        "source_tokens": columns,
        "inputs": {},
        "scale": 1.0,
        "softcap": None,
        "mask": ["".join(map(str, row)) for row in dense.int().tolist()],
        "bias": None,
        "show": ["mask"],
        "edit": ["mask"],
        "predict": None,
    }
    part = StageStart("mask", dense.cpu().double(), rows, columns)
    return Figure(FigureData(made, [part]), start)
