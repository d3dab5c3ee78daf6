"""Figures for papers, by matplotlib: what `plot()` of a matrix, a summary, a watch, a trace and a
mask draws.

paper      axes to draw on
lettering  tokens as text: fonts, and as many labels as there is room for
scales     numbers as colours
options    the arguments of a figure, and what is refused
cells      the weights of some heads, exact or pooled, and which of them are hidden
head_map   one head as a map
head_grid  many heads as small maps
numbers    a number per query or per head: a line, strips, layers × heads
received   what each token receives
trace_stages  the stages of a trace
pattern    a mask
head_effects  the change of a metric where a head is ablated
choosing   which of them is drawn for what
"""

from clearhead.errors import missing_extra

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise missing_extra("matplotlib", "plot", "drawing a figure") from error

from clearhead.drawing.figures.choosing import of_attention as of_attention
from clearhead.drawing.figures.choosing import of_seen as of_seen
from clearhead.drawing.figures.head_effects import of_effects as of_effects
from clearhead.drawing.figures.pattern import of_mask as of_mask
from clearhead.drawing.figures.trace_stages import of_trace as of_trace
