"""The temperature of the softmax, which falls as a text grows."""

import math

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes, is_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError
from clearhead.layers.parts import Part


@with_hints
class Temperature(Part):
    """Queries that grow with their position, by 1 + gain · ln(1 + ⌊(position + 1) / every⌋).

    The weights of a long text stay as sharp as those of a short one.

    Source: Llama 4 (2025), on its layers without rotary positions, after Nakanishi, 2025,
    https://arxiv.org/abs/2501.19399.

    Args:
        gain: how much a query grows, above 0.
        every: tokens, 1 or more; queries before stay as they are.

    Raises:
        ArgumentError: codes `temperature.gain`, `argument.size`; ArgumentTypeError, code
            `argument.type`.

    Example:
        >>> import torch, clearhead as ch
        >>> part, ones, places = ch.layers.Temperature(0.1, every=4), torch.ones(3, 1), torch.tensor([0, 3, 11])
        >>> part.transform_query_key(ones, ones, places, places)[0].flatten()
        tensor([1.0000, 1.0693, 1.1386])
    """

    def __init__(self, gain: float, *, every: int) -> None:
        super().__init__()
        if not is_number(gain) or not 0 < gain < math.inf:
            raise ArgumentError(
                "temperature.gain", f"gain must be a positive number; got {shown(gain)}."
            )
        check_sizes(every=every)
        self.gain = float(gain)
        self.every = every

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the query times its factor by position, a new tensor, and the key unchanged."""
        if query_positions.ndim == 2:
            query_positions = query_positions[:, None]
        steps = torch.div(query_positions + 1, self.every, rounding_mode="floor")
        growth = steps.to(torch.promote_types(query.dtype, torch.float32)).log1p()
        return query * (1 + self.gain * growth)[..., None].to(query.dtype), key

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return f"{self.gain:g}, every={self.every}"
