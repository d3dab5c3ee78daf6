"""A tutorial's saved weights, as a rung of the ladder.

New here: only names. What the tutorials call `W_query` or `weight_query` is `query` here, and the
mask that they save with the weights is a description, `clearhead.causal()`.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead._common.foreign_names import TUTORIALS
from clearhead.errors import ArgumentError, MaskError
from clearhead.ladder.batched_attention import BatchedAttention
from clearhead.ladder.concatenated_heads import ConcatenatedHeads
from clearhead.ladder.linear_layers import SelfAttentionWithLayers
from clearhead.ladder.rung import Rung
from clearhead.ladder.self_attention import SelfAttention
from clearhead.ladder.split_heads import SplitHeads
from clearhead.masks import Mask, causal

SUFFIXES = {"": "", ".weight": "", ".bias": "_bias"}
OURS = {
    theirs + suffix: ours + SUFFIXES[suffix]
    for names in TUTORIALS
    for theirs, ours in names.ours().items()
    for suffix in SUFFIXES
}
MASKS = {"mask", "causal_mask"}
HEAD = re.compile(r"heads\.(\d+)\.(.+)")


def from_tutorial(
    state_dict: Mapping[str, Any], *, num_heads: int | None = None, dropout: float | None = None
) -> Rung:
    """Return the rung that a tutorial's weights belong to, with copies of them as its parameters.

    Names in the file, and the rung:

    - `W_query`, `W_key`, `W_value`: `SelfAttention`
    - `W_query.weight`, …: `SelfAttentionWithLayers`
    - the same with a `mask`: `BatchedAttention`, causal
    - `heads.0.W_query.weight`, …: `ConcatenatedHeads` of one of those above
    - the same without heads, with `out_proj`: `SplitHeads`, causal with a `mask`

    Args:
        state_dict: what `model.state_dict()` of the tutorial's model gives.
        num_heads: for weights with an output projection, which do not tell it.
        dropout: probability of dropping a weight while training, which weights do not tell either; a single
            head with one is a `BatchedAttention`.

    Raises:
        ArgumentError: code `tutorial.names`, for names that no tutorial has, or that are missing;
            `tutorial.heads`, for num_heads left out, or given in vain.
        MaskError: code `tutorial.mask`, for a saved mask that does not hide exactly the future,
            such as `tril` used where `triu` was meant.
        RuntimeError: of PyTorch's load_state_dict, for weights that do not fit together.

    Example:
        >>> saved = {name: torch.eye(3) for name in ("W_query", "W_key", "W_value")}
        >>> type(from_tutorial(saved)).__name__
        'SelfAttention'
    """
    heads: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state_dict.items():
        if match := HEAD.fullmatch(name):
            heads.setdefault(int(match[1]), {})[match[2]] = tensor
    if not heads or sum(map(len, heads.values())) < len(state_dict):
        return _rung(state_dict, num_heads, dropout)
    return ConcatenatedHeads(_rung(heads[index], num_heads, dropout) for index in sorted(heads))


def _rung(saved: Mapping[str, Tensor], num_heads: int | None, dropout: float | None) -> Rung:
    """Return the rung with these saved weights of one model, or of one head of `ConcatenatedHeads`.

    A `dropout` that is not None makes a single head a `BatchedAttention`.

    Raises:
        ArgumentError: code `tutorial.names`, for names that no tutorial has, or without query, key or value; code
            `tutorial.heads`, unless `num_heads` is given exactly for weights with an output projection.
        MaskError: code `tutorial.mask`, for a mask that is not causal.
    """
    # A layer stores the transpose of the bare matrix.
    weights = {
        OURS[name]: tensor.mT if name.endswith(".weight") else tensor
        for name, tensor in saved.items()
        if name in OURS
    }
    if not {"query", "key", "value"} <= weights.keys() or saved.keys() - OURS.keys() - MASKS:
        raise ArgumentError(
            "tutorial.names",
            "state_dict must hold W_query, W_key and W_value (or weight_query, …), as matrices or "
            f"as layers, with an out_proj and a mask or without; got {', '.join(saved) or 'nothing'}.",
        )
    if ("output" in weights) != (num_heads is not None):
        raise ArgumentError(
            "tutorial.heads",
            "num_heads must be given for weights with an output projection, and for no others; "
            f"got num_heads={num_heads} for {', '.join(weights)}.",
        )
    heads = num_heads or 1
    embed_dim, width = weights["query"].shape
    value_width = weights["value"].shape[1]
    kind: Any = SelfAttention
    options: dict[str, Any] = {"head_dim": width // heads, "value_head_dim": value_width // heads}
    if any("." in name for name in saved):
        kind, options["bias"] = SelfAttentionWithLayers, "query_bias" in weights
    if dropout is not None:
        kind, options["dropout"] = BatchedAttention, dropout
    for name in MASKS & saved.keys():
        kind, options["mask"] = BatchedAttention, _causal(saved[name])
    if "output" in weights:
        kind, options["num_heads"] = SplitHeads, num_heads
        options["output_dim"] = weights["output"].shape[1]
        options["output_bias"] = "output_bias" in weights
    with torch.device("meta"):  # where nothing is drawn: every weight is replaced
        rung = kind(embed_dim, **options)
    return rung.with_weights(**weights)


def _causal(mask: Tensor) -> Mask:
    """Return `causal()` for a mask that hides exactly the future, where 1 means hidden.

    Raise MaskError, code `tutorial.mask`, for any other.
    """
    if mask.ndim == 2 and torch.equal(mask.bool(), torch.ones_like(mask).bool().triu(1)):
        return causal()
    raise MaskError(
        "tutorial.mask",
        "the saved mask must be 1 exactly above the diagonal, torch.triu(…, diagonal=1): it is "
        "filled with -inf where it is 1, and so hides the future. This one, of shape "
        f"{tuple(mask.shape)}, hides other tokens. Leave it out of the state_dict to load the "
        "weights without a mask.",
    )
