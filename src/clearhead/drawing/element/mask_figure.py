"""A mask as an interactive figure: cells to toggle, and the runs and blocks that result."""

from clearhead._common.checks import as_place, check_length
from clearhead._text import shown
from clearhead.drawing.element.data import FigureData, StageStart, check_sizes
from clearhead.drawing.element.figure import Figure
from clearhead.errors import SelectionError
from clearhead.masks.base import Mask


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
    (`figure.empty`) for its size, ArgumentError (`figure.start`) for a start that does not fit, and what
    `Mask.to_dense` raises.

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
