"""Figures for papers, by matplotlib: the `plot()` of matrices, summaries, records, traces and masks.

lettering  axes to draw on, and tokens as text on them: fonts, and as many labels as there is room for
cells      the arguments of a figure, and numbers as colours
head_map   one head as a map
head_grid  many heads as small maps
numbers    a number per query or per head, what each token receives, and the effects of heads
trace_stages  the stages of a trace
pattern    a mask
choosing   which of them is drawn for what

`A.plot()` belongs to the matrix, and what draws it knows the matrix, packages above. The method fetches
`drawing/figures/` by name (`_common/lazy.py`) when the first figure is asked for. Methods set on the classes
from above would not be seen by type checkers nor stand in the source of the class; base classes with a `plot`
would still have to import upwards.

`drawing/figures/` has one figure a file. All of them take their numbers from `HeadView` and the public methods
of what they draw, so that a test can hold the array of an image against the matrix. What is hidden is masked in that
array, and so grey. Long matrices go through `pool`, long masks through `blocks`; whether a cell is hidden whole is
read from the spans of the mask.

Without `ax=` a figure is one of pyplot's, as with pandas and seaborn: a figure that pyplot does not know
shows itself neither in a notebook nor by `plt.show()`. With `ax=` pyplot is not even imported.
"""

from clearhead._common.lazy import importing

with importing("matplotlib", extra="plot", purpose="drawing a figure"):
    import matplotlib  # noqa: F401

from clearhead.drawing.figures.choosing import of_attention as of_attention
from clearhead.drawing.figures.choosing import of_seen as of_seen
from clearhead.drawing.figures.numbers import of_effects as of_effects
from clearhead.drawing.figures.pattern import of_mask as of_mask
from clearhead.drawing.figures.trace_stages import of_trace as of_trace
