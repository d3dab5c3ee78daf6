"""A model from a tutorial, as a rung of the ladder.

New here: only names. What the tutorials call `W_query` or `weight_query` is `query` here, and the
mask that they save with the weights is a description, `clearhead.causal()`.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes
from clearhead._common.foreign_names import TUTORIALS
from clearhead.errors import ArgumentError, ArgumentTypeError, MaskError, ShapeError
from clearhead.ladder.batched_attention import BatchedAttention
from clearhead.ladder.concatenated_heads import ConcatenatedHeads
from clearhead.ladder.linear_layers import SelfAttentionWithLayers
from clearhead.ladder.self_attention import SelfAttention
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.ladder.split_heads import SplitHeads
from clearhead.masks import Mask, causal

OURS = {theirs: ours for names in TUTORIALS for theirs, ours in names.ours().items()}
MASKS = ("mask", "causal_mask")
HEAD = re.compile(r"heads\.(\d+)\.(.+)")


def from_tutorial(
    state_dict: Mapping[str, Any], *, num_heads: int | None = None, dropout: float | None = None
) -> SimpleAttention | ConcatenatedHeads:
    """The rung that a tutorial's weights belong to, with copies of them.

    | saved                                   | rung                                      |
    |-----------------------------------------|-------------------------------------------|
    | `W_query`, `W_key`, `W_value`           | `SelfAttention`                           |
    | `W_query.weight`, …                     | `SelfAttentionWithLayers`                 |
    | the same with a `mask`                  | `BatchedAttention`, causal                |
    | `heads.0.W_query.weight`, …             | `ConcatenatedHeads` of one of those above |
    | the same without heads, with `out_proj` | `SplitHeads`, causal with a `mask`        |

    Args:
        state_dict: what `model.state_dict()` of the tutorial's model gives.
        num_heads: for weights with an output projection, which do not tell it.
        dropout: probability of dropping a weight while training; weights do not tell it either.

    Raises:
        ArgumentTypeError: code `state_dict.type`, for what is no mapping.
        ArgumentError: code `tutorial.names`, for names that no tutorial has, or that are missing;
            `tutorial.heads`, for num_heads left out, given in vain, or no divisor of the width.
        MaskError: code `tutorial.mask`, for a saved mask that does not hide exactly the future,
            such as `tril` used where `triu` was meant.
        ShapeError: code `tutorial.shape` or `rung.weight`, for weights that do not fit together.

    Example:
        >>> saved = {name: torch.eye(3) for name in ("W_query", "W_key", "W_value")}
        >>> type(from_tutorial(saved)).__name__
        'SelfAttention'
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentTypeError(
            "state_dict.type",
            "state_dict must be a mapping of names to tensors, such as model.state_dict(); got "
            f"{type(state_dict).__name__}.",
        )
    heads = _by_head(state_dict)
    if not heads:
        return _rung(state_dict, num_heads, dropout)
    return ConcatenatedHeads(_rung(heads[index], num_heads, dropout) for index in sorted(heads))


def _by_head(state_dict: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The weights of each head of a wrapper; nothing for a model of another kind."""
    heads: dict[int, dict[str, Tensor]] = {}
    matches = {name: HEAD.fullmatch(name) for name in state_dict}
    for name, match in matches.items():
        if match:
            heads.setdefault(int(match[1]), {})[match[2]] = state_dict[name]
    if heads and not all(matches.values()):
        raise _strange(state_dict)
    return heads


def _rung(
    saved: Mapping[str, Tensor], num_heads: int | None, dropout: float | None
) -> SimpleAttention:
    weights = _weights(saved)
    mask = causal() if any(_is_causal(saved[name]) for name in MASKS if name in saved) else None
    if ("output" in weights) != (num_heads is not None):
        raise ArgumentError(
            "tutorial.heads",
            "num_heads must be given for weights with an output projection, and for no others; "
            f"got num_heads={num_heads} for {', '.join(weights)}.",
        )
    # What is drawn here is replaced at once, so PyTorch's generator is put back.
    with torch.random.fork_rng(devices=[]):
        if num_heads is not None:
            rung = _split(weights, num_heads, mask, dropout)
        else:
            layers = any("." in name for name in saved)
            rung = _single(weights, layers, mask, dropout)
    return rung.with_weights(**weights)


def _single(
    weights: Mapping[str, Tensor], layers: bool, mask: Mask | None, dropout: float | None
) -> SelfAttention | SelfAttentionWithLayers:
    embed_dim, head_dim = weights["query"].shape
    value_head_dim, bias = weights["value"].shape[1], "query_bias" in weights
    if mask is not None or dropout is not None:
        return BatchedAttention(
            embed_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            bias=bias,
            mask=mask,
            dropout=dropout,
        )
    if layers:
        return SelfAttentionWithLayers(
            embed_dim, head_dim=head_dim, value_head_dim=value_head_dim, bias=bias
        )
    return SelfAttention(embed_dim, head_dim=head_dim, value_head_dim=value_head_dim)


def _split(
    weights: Mapping[str, Tensor], num_heads: int, mask: Mask | None, dropout: float | None
) -> SplitHeads:
    check_sizes(num_heads=num_heads)
    embed_dim, width = weights["query"].shape
    value_width, output_dim = weights["value"].shape[1], weights["output"].shape[1]
    if width % num_heads or value_width % num_heads:
        raise ArgumentError(
            "tutorial.heads",
            f"num_heads must divide the width of the projections; got {num_heads} for queries of "
            f"{width} and values of {value_width}.",
        )
    return SplitHeads(
        embed_dim,
        num_heads=num_heads,
        head_dim=width // num_heads,
        value_head_dim=value_width // num_heads,
        output_dim=output_dim,
        bias="query_bias" in weights,
        output_bias="output_bias" in weights,
        mask=mask,
        dropout=dropout,
    )


def _weights(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by our names, all to be used as `x @ weight`."""
    weights: dict[str, Tensor] = {}
    for name, tensor in saved.items():
        stem, _, kind = name.partition(".")
        if name in MASKS:
            continue
        if stem not in OURS or kind not in ("", "weight", "bias"):
            raise _strange(saved)
        ours = OURS[stem] + ("_bias" if kind == "bias" else "")
        if not isinstance(tensor, Tensor) or tensor.ndim != (1 if kind == "bias" else 2):
            raise ShapeError("tutorial.shape", f"{name} must be a tensor, a matrix or its bias.")
        # A layer keeps its weight the other way round than a bare matrix.
        weights[ours] = tensor.mT if kind == "weight" else tensor
    if not {"query", "key", "value"} <= set(weights):
        raise _strange(saved)
    return weights


def _is_causal(mask: Tensor) -> bool:
    """True, if the mask hides exactly the future; else it is refused. In it, 1 means hidden."""
    if not isinstance(mask, Tensor):
        raise ArgumentTypeError(
            "tutorial.mask", f"the saved mask must be a torch.Tensor; got {type(mask).__name__}."
        )
    if mask.ndim == 2 and torch.equal(mask.bool(), torch.ones_like(mask).bool().triu(1)):
        return True
    raise MaskError(
        "tutorial.mask",
        "the saved mask must be 1 exactly above the diagonal, torch.triu(…, diagonal=1): it is "
        f"filled with -inf where it is 1, and so hides the future. This one, of shape "
        f"{tuple(mask.shape)}, hides other tokens. Leave it out of the state_dict to load the "
        "weights without a mask.",
    )


def _strange(saved: Mapping[str, Tensor]) -> ArgumentError:
    return ArgumentError(
        "tutorial.names",
        "state_dict must hold W_query, W_key and W_value (or weight_query, …), as matrices or as "
        f"layers, with an out_proj and a mask or without; got {', '.join(saved) or 'nothing'}.",
    )
