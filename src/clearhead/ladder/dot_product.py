"""The dot product: one number that says how well two vectors match.

New here: the score (Luong et al., 2015, https://arxiv.org/abs/1508.04025, its "dot"). It is large
when the two are long and point the same way, 0 when they are at right angles, negative when they
point apart.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ladder.checking import check_axes


def dot_product(a: Float[Tensor, " dim"], b: Float[Tensor, " dim"]) -> Float[Tensor, ""]:
    """The products of the numbers at equal places, added up: `torch.dot`, written out.

    Args:
        a: (dim,).
        b: (dim,).

    Raises:
        ShapeError: code `rung.input`, if b is not as long as a.

    Example:
        >>> from clearhead.ladder import EXAMPLE_EMBEDDINGS
        >>> journey, your = EXAMPLE_EMBEDDINGS[1], EXAMPLE_EMBEDDINGS[0]
        >>> dot_product(journey, your)  # 0.55 · 0.43 + 0.87 · 0.15 + 0.66 · 0.89
        tensor(0.9544)
    """
    check_axes("a", a, "dim")
    check_axes("b", b, "dim", dim=len(a))
    total = torch.zeros((), dtype=a.dtype, device=a.device)
    for i in range(len(a)):
        total = total + a[i] * b[i]
    return total
