"""The effects of the heads: the change of a metric where one is ablated, layers × heads."""

import numpy as np
from matplotlib.axes import Axes

from clearhead.drawing.figures import scales
from clearhead.drawing.figures.lettering import name_axis, short_paths
from clearhead.drawing.figures.numbers import number
from clearhead.drawing.figures.paper import one
from clearhead.editing.effects import Effects


def of_effects(effects: Effects, *, ax: object = None) -> Axes:
    """Layers × heads, or layers alone; a layer may have fewer heads than another."""
    layers = list(dict.fromkeys(row.layer for row in effects))
    count = 1 + max(row.head or 0 for row in effects)
    values = np.full((len(layers), count), np.nan)
    for row in effects:
        values[layers.index(row.layer), row.head or 0] = row.change
    shown = np.ma.masked_invalid(values)
    axes = one(ax, min(0.42 * count + 2.8, 14.0), min(max(0.32 * len(layers) + 1.2, 2.4), 14.0))
    scale = scales.around_zero(values)
    image = axes.imshow(shown, cmap=scales.SIGNED, norm=scale, aspect="auto")
    by_head = effects[0].head is not None
    number(axes, "x", [str(head) for head in range(count)] if by_head else ["all"])
    number(axes, "y", short_paths(layers))
    name_axis(axes, "x", "head ablated")
    scales.add_bar(image, [axes], "change of the metric", "neither")
    return axes
