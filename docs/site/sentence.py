"""The page on which the GPT of lesson 15 reads what is typed, in the browser."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.drawing.page.payload import Payload


def sentence_payload(model: Any, letters: list[str]) -> Payload:
    """Return the page of a GPT with the attributes of lesson 15.

    Args:
        model: `token` and `place`, embeddings; `blocks`, of lesson 14; `norm` and `guess`.
        letters: of its ids.
    """
    matrices = {"token": model.token.weight, "place": model.place.weight}
    matrices |= {"norm": normed(model.norm), "guess": linear(model.guess)}
    for layer, block in enumerate(model.blocks):
        mine, (wide, _, narrow) = block.attention, block.mlp
        parts = {name: linear(getattr(mine, f"W_{name}")) for name in ("query", "key", "value")}
        parts |= {"out": linear(mine.out_proj), "wide": linear(wide), "narrow": linear(narrow)}
        parts |= {"norm_1": normed(block.norm_1), "norm_2": normed(block.norm_2)}
        matrices |= {f"{layer}.{name}": each for name, each in parts.items()}
    arrays = {name: each.detach() for name, each in matrices.items()}
    data = {
        "letters": letters,
        "context": model.place.num_embeddings,
        "layers": len(model.blocks),
        "heads": model.blocks[0].attention.num_heads,
    }
    return Payload("sentence", "Your sentence", data, arrays)


def linear(layer: nn.Linear) -> Tensor:
    """Return (in_features, out_features), and the bias, if there is one, as one more row."""
    bias = [] if layer.bias is None else [layer.bias[None]]
    return torch.cat([layer.weight.T, *bias])


def normed(norm: nn.LayerNorm) -> Tensor:
    return torch.stack([norm.weight, norm.bias])
