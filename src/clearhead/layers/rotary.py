"""Rotary position embeddings: pairs of numbers in query and key are rotated by their position."""

import math
from typing import Literal

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes, check_tensor, is_number
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.layers.parts import Part, check_head_dim
from clearhead.layers.scalings import Scaling

Layout = Literal["half", "interleaved"]


@with_hints
class Rotary(Part):
    """Rotary position embeddings (RoPE), as a part of a layer or alone.

    A pair of numbers is rotated by position · base^(−pair / pairs) radians, so that a score depends
    on the distance between query and key. There is no table and no maximum length.

    Source: Su et al., 2021, https://arxiv.org/abs/2104.09864.

    Args:
        head_dim: width of a query and a key.
        base: the larger, the slower the slow pairs rotate.
        layout: which numbers are a pair: "half", number i and number i + pairs (Llama, GPT-NeoX);
            "interleaved", numbers 2i and 2i + 1 (the paper, GPT-J). Weights that were trained with
            one are wrong with the other.
        rotated_dim: how many numbers are rotated, from the first on; None is all of them.
        scaling: a change of the frequencies for longer texts, or None.

    Raises:
        ArgumentError: codes `argument.size`, `rotary.dim`, `rotary.base`, `rotary.layout`.
        ArgumentTypeError: codes `argument.type`, `rotary.scaling`.

    Example:
        >>> import torch, clearhead as ch
        >>> rotary = ch.layers.Rotary(4)
        >>> rotary(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor([[1., 1., 0., 0.]])
        >>> rotary(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([1]))
        tensor([[0.5403, 0.9999, 0.8415, 0.0100]])
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal(), parts=[rotary])
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: Layout = "half",
        rotated_dim: int | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        rotated_dim = head_dim if rotated_dim is None else rotated_dim
        check_sizes(head_dim=head_dim, rotated_dim=rotated_dim)
        if rotated_dim % 2 or rotated_dim > head_dim:
            raise ArgumentError(
                "rotary.dim",
                f"rotated_dim must be even, and at most head_dim={head_dim}; got {rotated_dim}.",
            )
        if not is_number(base) or not 1 < base < math.inf:
            raise ArgumentError("rotary.base", f"base must be a number above 1; got {shown(base)}.")
        if layout not in ("half", "interleaved"):
            raise ArgumentError(
                "rotary.layout", f'layout must be "half" or "interleaved"; got {shown(layout)}.'
            )
        if scaling is not None and not isinstance(scaling, Scaling):
            raise ArgumentTypeError(
                "rotary.scaling",
                f"scaling must be a clearhead.layers.Scaling or None; got {type(scaling).__name__}.",
            )
        self.head_dim = head_dim
        self.base = float(base)
        self.layout = layout
        self.rotated_dim = rotated_dim
        self.scaling = scaling

    def forward(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """Rotate a query or a key.

        Args:
            tensor: (batch, heads, len, head_dim), or fewer leading dimensions.
            positions: whole numbers, in tokens: (len,), or (batch, len) for a tensor of four
                dimensions.

        Returns:
            A tensor like the one given.

        Raises:
            ShapeError: code `rotary.shape`.
            ArgumentTypeError: codes `tensor.type`, `positions.type`.
        """
        check_tensor("tensor", tensor)
        check_tensor("positions", positions)
        if positions.is_floating_point() or positions.dtype == torch.bool:
            raise ArgumentTypeError(
                "positions.type", f"positions must be whole numbers; got {positions.dtype}."
            )
        rows = [(), (1,), (tensor.shape[0],)] if tensor.ndim == 4 else [()]
        if (
            tensor.ndim < 2
            or tensor.shape[-1] != self.head_dim
            or positions.shape not in [(*row, tensor.shape[-2]) for row in rows]
        ):
            raise ShapeError(
                "rotary.shape",
                f"tensor must have shape (…, len, head_dim={self.head_dim}) and positions (len,), or "
                f"(batch, len) for a tensor of four dimensions; got {tuple(tensor.shape)} and "
                f"{tuple(positions.shape)}.",
            )
        cos, sin = self.turns(positions, tensor.dtype)
        return self._rotate(tensor, cos, sin)

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return query and key rotated by their positions; ShapeError, code `part.width`, for heads of another width.

        The text counts as long as the last position of both, for a scaling that depends on length.
        """
        check_head_dim(self, query, self.head_dim)
        length = None
        if self.scaling is not None:
            every = torch.cat([query_positions.flatten(), key_positions.flatten()])
            length = every.amax() + 1 if every.numel() else every.new_zeros(())
        of_query = of_key = self.turns(query_positions, query.dtype, length)
        if key_positions is not query_positions:
            of_key = self.turns(key_positions, key.dtype, length)
        return self._rotate(query, *of_query), self._rotate(key, *of_key)

    def turns(
        self, positions: Tensor, dtype: torch.dtype, length: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles, times the scaling's gain: (len, pairs) or (batch, 1, len, pairs).

        Angles are computed in float64, where the device has it: far into a text, float32 would be
        wrong by whole thousandths of a turn.

        Args:
            positions: whole numbers, (len,) or (batch, len), in tokens.
            dtype: of the result.
            length: number of tokens of the text; None is up to the last of the positions.
        """
        exact = torch.float32 if positions.device.type == "mps" else torch.float64
        pairs = self.rotated_dim // 2
        share = torch.arange(pairs, device=positions.device, dtype=exact) / pairs
        frequencies = self.base**-share
        gain = 1.0
        if self.scaling is not None:
            if length is None:
                last = positions.amax() if positions.numel() else positions.new_zeros(())
                length = last + 1
            frequencies = self.scaling.stretched(frequencies, self.base, length)
            gain = self.scaling.gain
        angles = positions[..., None] * frequencies
        if angles.ndim == 3:
            angles = angles[:, None]
        return (gain * angles.cos()).to(dtype), (gain * angles.sin()).to(dtype)

    def _rotate(self, tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return a new tensor whose first `rotated_dim` entries are rotated by angles with these cosines and sines."""
        part, rest = tensor[..., : self.rotated_dim], tensor[..., self.rotated_dim :]
        if self.layout == "half":
            first, second = part.chunk(2, dim=-1)
            rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        else:
            first, second = part[..., 0::2], part[..., 1::2]
            pairs = [first * cos - second * sin, second * cos + first * sin]
            rotated = torch.stack(pairs, dim=-1).flatten(-2)
        return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults, and head_dim, base and layout, for `repr`."""
        text = f"{self.head_dim}, base={self.base:g}, layout={self.layout!r}"
        if self.rotated_dim != self.head_dim:
            text += f", rotated_dim={self.rotated_dim}"
        return text if self.scaling is None else f"{text}, scaling={self.scaling}"
