"""A layer of a page, and where its queries and keys are in the page's texts."""

import math
from typing import NamedTuple

from clearhead.drawing.page.runs import Layer, Run
from clearhead.drawing.page.texts import TextOffset
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

LONG, LONGEST = 1024, 4096
"""A text of more tokens than LONG is long: its heads are pooled, and no matrix of weights is formed. Of two texts
one may have up to LONGEST, where the other is as much shorter."""


class Located(NamedTuple):
    """A layer, the number of its run, and where its queries and keys are in the page's texts."""

    number: int
    run: Run
    layer: Layer
    query: TextOffset
    key: TextOffset

    @property
    def crosses(self) -> bool:
        """True if queries and keys are of two texts."""
        return self.query.text != self.key.text or self.layer.weights.cross

    @property
    def short(self) -> AttentionMatrix | None:
        """The matrix if the page has all of its weights; None for a summary, and for a long text."""
        weights = self.layer.weights
        if isinstance(weights, Summary):
            return None
        lengths = weights.query_len, weights.kv_len
        return weights if math.prod(lengths) <= LONG**2 and max(lengths) <= LONGEST else None
