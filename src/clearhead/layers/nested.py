"""Nested tensors: sequences of any length, one after the other in a row, or as padded rows."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from clearhead.errors import UnsupportedError
from clearhead.layers.positions import positions_from_valid
from clearhead.masks.base import Mask
from clearhead.masks.documents import documents


class Sequences(NamedTuple):
    """The sequences of a nested tensor.

    Attributes:
        tokens: (1, tokens, width), one sequence after the other; or padded, (batch, longest, width).
        offsets: (sequences + 1,), the start of each, and the end.
        positions: of the tokens, (1, tokens) or (batch, longest), counted from 0 in each sequence.
        mask: no token sees another sequence; None where each is a row of its own.
        valid: the real tokens of padded rows, (batch, longest); None for a single row.
    """

    tokens: Tensor
    offsets: Tensor
    positions: Tensor
    mask: Mask | None
    valid: Tensor | None = None

    def padded(self) -> "Sequences":
        """The sequences as rows that are padded on the right."""
        lengths = self.offsets.diff()
        longest = int(lengths.max()) if len(lengths) else 0
        valid = torch.arange(longest, device=lengths.device) < lengths[:, None]
        width = self.tokens.shape[2]
        rows = self.tokens.new_zeros(*valid.shape, width).masked_scatter(
            valid[..., None], self.tokens
        )
        return Sequences(rows, self.offsets, positions_from_valid(valid), None, valid)

    def restore(self, output: Tensor) -> Tensor:
        """An output, (1, tokens, width) or (batch, longest, width), as a nested tensor."""
        values = output[0] if self.valid is None else output[self.valid]
        return torch.nested.nested_tensor_from_jagged(values, offsets=self.offsets)


def is_nested(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_nested


def sequences_of(tensor: object, **others: object) -> Sequences | None:
    """The sequences of a nested tensor, in a single row; None for any other.

    Raises:
        UnsupportedError: code `layer.nested`, for one that is not jagged, or next to others.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_nested:
        return None
    also = [name for name, other in others.items() if other is not None]
    if tensor.layout != torch.jagged or tensor.ndim != 3 or also:
        raise UnsupportedError(
            "layer.nested",
            "a nested tensor must be of layout torch.jagged and shape (batch, tokens, width), and "
            "comes without valid and positions: it has no padding, and the tokens of each sequence "
            f"are counted; got layout {tensor.layout}, {tensor.ndim} dimensions"
            f"{', with ' + ', '.join(also) if also else ''}. To give them, pad it: "
            "torch.nested.to_padded_tensor(x, 0.0).",
        )
    jagged = cast(Any, tensor)  # the attributes that only such a tensor has are not declared
    if jagged.lengths() is not None:
        jagged = jagged.contiguous()  # a part of another, with gaps between the sequences
    tokens, offsets = jagged.values(), jagged.offsets()
    lengths = offsets.diff()
    columns = torch.arange(len(tokens), device=tokens.device)
    positions = columns - offsets[:-1].repeat_interleave(lengths)
    return Sequences(tokens[None], offsets, positions[None], documents(lengths=lengths))
