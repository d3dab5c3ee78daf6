"""The effects of the heads: the change of a metric where one is ablated, layers × heads."""

import numpy as np
from matplotlib.axes import Axes

from clearhead.drawing.figures import scales
from clearhead.drawing.figures.lettering import name_axis, short_paths
from clearhead.drawing.figures.numbers import number
from clearhead.drawing.figures.paper import one
from clearhead.editing.effects import Effects


def of_effects(effects: Effects, *, ax: object = None) -> Axes:
    """Draw effects, at least one, as layers × heads, layers alone or layers × positions, and return the axes.

    Where effects have restored shares these are drawn instead of changes. Several heads of one position are drawn as
    the one that changes most. `ax` of None makes a figure.
    """
    names = [row.layer if row.call is None else f"{row.layer}, call {row.call}" for row in effects]
    layers = list(dict.fromkeys(names))
    by_position = any(row.position is not None for row in effects)
    by_head = not by_position and any(row.head is not None for row in effects)
    places = [(row.position if by_position else row.head) or 0 for row in effects]
    count = 1 + max(places)
    values = np.full((len(layers), count), np.nan)
    for row, name, place in zip(effects, names, places, strict=True):
        value = row.change if row.restored is None else row.restored
        # Of the heads of one position the one that changes most.
        if not abs(values[layers.index(name), place]) >= abs(value):
            values[layers.index(name), place] = value
    axes = one(ax, min(0.42 * count + 2.8, 14.0), min(max(0.32 * len(layers) + 1.2, 2.4), 14.0))
    shown, scale = np.ma.masked_invalid(values), scales.around_zero(values)
    image = axes.imshow(shown, cmap=scales.SIGNED, norm=scale, aspect="auto")
    number(axes, "x", [str(at) for at in range(count)] if by_head or by_position else ["all"])
    number(axes, "y", short_paths(layers))
    verb = "ablated" if effects.clean is None else "patched"
    name_axis(axes, "x", f"position, its largest head {verb}" if by_position else f"head {verb}")
    said = "change of the metric" if effects.clean is None else "share of the metric restored"
    scales.add_bar(image, [axes], said, "neither")
    return axes
