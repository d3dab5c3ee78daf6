"""The attention that each token receives from all queries together."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from torch import Tensor

from clearhead.drawing.figures.lettering import (
    MOST_LABELS,
    entitle,
    families,
    name_axis,
    tick,
    written,
)
from clearhead.drawing.figures.paper import one

MOST_BARS = 24
UNIT = "attention received (sum of weights)"


def bars(
    received: Tensor, *, title: str, tokens: Sequence[str] | None, log: bool, ax: object
) -> Axes:
    """Draw what each key receives, (kv_len,), as bars, and return the axes; of more than 64 keys the largest only.

    `ax` of None makes a figure; `tokens` of None writes positions; `log` is a logarithmic scale.
    """
    count = len(received)
    values = received.detach().cpu().double()
    if count <= MOST_LABELS:
        axes = one(ax, min(max(0.22 * count, 3.2), 12.0) + 0.8, 3.4)
        axes.bar(range(count), values.tolist())
        axes.set_xlim(-0.7, count - 0.3)
        tick(axes, "x", count, tokens)
        name_axis(axes, "x", "attended to (key)")
        name_axis(axes, "y", UNIT)
        if log:
            axes.set_yscale("log")
    else:
        # What is no number is among the largest for `topk`, and would hide them.
        most, places = values.nan_to_num(nan=0.0).topk(MOST_BARS)
        axes = one(ax, 5.0, 0.2 * MOST_BARS + 1.0)
        axes.barh(range(MOST_BARS), most.tolist())
        top: list[int] = places.tolist()
        words = None if tokens is None else written([tokens[each] for each in top])
        names = [f"{each} {words[at]}" if words else str(each) for at, each in enumerate(top)]
        style = {"fontsize": "small", "parse_math": False, "fontfamily": list(families())}
        axes.set_yticks(range(MOST_BARS), names, **style)
        axes.set_ylim(MOST_BARS - 0.3, -0.7)
        name_axis(axes, "y", f"the {MOST_BARS} keys of {count} that receive most")
        name_axis(axes, "x", UNIT)
        if log:
            axes.set_xscale("log")
    entitle(axes, title)
    return axes
