"""A KV cache in int8 (Zafrir et al., 2019, https://arxiv.org/abs/1910.06188;
Liu et al., 2024, https://arxiv.org/abs/2402.02750)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead.layers.caches.columns import ColumnCache
from clearhead.layers.caches.layout import Layout

STEPS = 127
"""Steps from 0 to the largest number."""


@with_hints
class QuantisedCache(ColumnCache):
    """A KV cache of any length in int8, with one scale for each head of each token.

    A number x is kept as round(x / scale), where scale is the largest |x| of its head and token
    over 127, and is returned as a float: a copy, since only the whole numbers are kept. Keys and
    values take a little more than a quarter of float32. A head of a token that is not finite is
    returned as NaN.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import QuantisedCache
        >>> cache = QuantisedCache()
        >>> key, value = torch.randn(2, 1, 2, 5, 64)
        >>> kept, _ = cache.append(key, value)
        >>> bool((kept - key).abs().max() <= cache.error)
        True
    """

    def describe(self) -> str:
        return "QuantisedCache()"

    @property
    def error(self) -> float:
        """A bound on |x − what is returned|, for all numbers of the real tokens held; 0 for none.

        Half a step of the coarsest scale, and the rounding of the dtype.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import QuantisedCache
            >>> cache = QuantisedCache()
            >>> _ = cache.append(torch.full((1, 1, 1, 4), 127.0), torch.zeros(1, 1, 1, 4))
            >>> round(cache.error, 3)
            0.5
        """
        if self._layout is None or not self._seen:
            return 0.0
        scales = torch.cat(self._stores[2:], dim=3)[:, :, : self._seen]
        if self._valid is not None:
            scales = scales.masked_fill(~self._valid[:, None, :, None], 0.0)
        info = torch.finfo(self._layout.dtype)
        # Quantising and dequantising round once each, besides the loss to whole numbers.
        step = 0.5 + STEPS * info.eps
        return float(scales.max()) * step + info.smallest_normal * info.eps

    def _shapes(self, layout: Layout) -> tuple[tuple[int, torch.dtype], ...]:
        scale = torch.promote_types(layout.dtype, torch.float32)
        return (
            (layout.head_dim, torch.int8),
            (layout.value_head_dim, torch.int8),
            (1, scale),
            (1, scale),
        )

    def _encode(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        numbers: list[Tensor] = []
        scales: list[Tensor] = []
        for given in (key, value):
            exact = given.to(torch.promote_types(given.dtype, torch.float32))
            largest = exact.abs().amax(dim=3, keepdim=True)
            scale = largest / STEPS
            info = torch.finfo(scale.dtype)
            # Rounded up, the scale of the largest number there is would make it infinite.
            scale = torch.where(scale * STEPS > largest, scale * (1 - info.eps), scale)
            # Not below the smallest divisor; NaN where the scale would be infinite.
            scale = scale.clamp_min(info.smallest_normal)
            scale = scale.masked_fill(~largest.isfinite(), torch.nan)
            numbers.append((exact / scale).nan_to_num(0.0).round().to(torch.int8))
            scales.append(scale)
        return *numbers, *scales

    def _decode(self, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        assert self._layout is not None
        keys, values, key_scales, value_scales = stored
        dtype = self._layout.dtype
        return (keys * key_scales).to(dtype), (values * value_scales).to(dtype)
