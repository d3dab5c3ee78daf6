"""Readings of a running model: logits of layers and heads, circuits, relevance, rollout.

`lens` reads the logits after each layer, `logits_of` the share of each head in a logit, `writes` the tokens that a
head raises and lowers. They are functions of one stream: the residual of each layer and the output of each head, read
from a run. `circuits` reads the weights of a layer alone, `relevance` and `rollout` the attention of a run.
"""

from clearhead._common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
