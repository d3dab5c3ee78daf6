"""Features that an attention may have beyond the plain computation, and how a case asks for them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """One thing that an attention may be able to do.

    Attributes:
        passed: how a case asks for it, in words.
        needs: for each entry, at least one of its features must be declared as well.
        apart: features that never stand in a case together with this one.
        with_others: whether it stands in cases together with other features.
        lengths: (query_len, kv_len) of the cases for it alone.
    """

    passed: str
    needs: tuple[tuple[str, ...], ...] = ()
    apart: frozenset[str] = frozenset()
    with_others: bool = True
    lengths: tuple[tuple[int, int], ...] = field(default=((7, 11), (61, 131)))


MASKS = ("mask", "head_mask", "padding")
SHAPES = ("fewer_dims", "more_dims", "broadcast")
# Features that do not stand in a case together with tensors of other dimensions.
_OF_FOUR_DIMENSIONS = frozenset({*MASKS, "bias", "sinks", "empty_rows", "nan_behind_mask"})
_AT_EDGES = ((7, 11), (13, 13), (1, 17), (61, 131), (64, 128), (127, 257))

FEATURES: dict[str, Feature] = {
    "mask": Feature(
        "mask=, bool (batch, 1, query_len, kv_len), True = may attend",
        apart=frozenset({"head_mask", "padding"}),
        lengths=((7, 11), (13, 5), (61, 131), (129, 65)),
    ),
    "head_mask": Feature(
        "mask=, bool (batch, num_heads, query_len, kv_len)", apart=frozenset({"mask", "padding"})
    ),
    "padding": Feature(
        "mask=, bool (batch, 1, 1, kv_len), at the end, and without causal at the beginning too",
        apart=frozenset({"mask", "head_mask", "window"}),
        lengths=((7, 11), (13, 13), (61, 131)),
    ),
    "causal": Feature(
        "causal=True; the last query sits on the last key, whatever their numbers",
        lengths=_AT_EDGES,
    ),
    "window": Feature(
        "window=(left, right), tokens seen on each side of the query, which sits as with causal; "
        "with causal, right is 0",
        apart=frozenset({"padding"}),
        lengths=((7, 11), (13, 13), (61, 131), (128, 128)),
    ),
    "grouped": Feature(
        "key and value have fewer heads; query head h reads head h // (num_heads / num_kv_heads)"
    ),
    "value_width": Feature("value_head_dim ≠ head_dim"),
    "scale": Feature("scale=, a float that the scores are multiplied by; else 1/√head_dim"),
    "softcap": Feature("softcap=, a float; scaled scores become softcap · tanh(score / softcap)"),
    "bias": Feature(
        "bias=, (batch, num_heads, query_len, kv_len) in the query's dtype, added after the softcap"
    ),
    "sinks": Feature(
        "sinks=, (num_heads,) in the query's dtype, one more score for each head, without a value",
        apart=frozenset({"logsumexp"}),
    ),
    "empty_rows": Feature(
        "nothing more; some queries may attend to nothing, and get 0 (and a logsumexp of −inf)",
        needs=((*MASKS, "causal"),),
    ),
    "nan_behind_mask": Feature(
        "nothing more; a NaN in a hidden key or value stays there, also on the way back",
        needs=((*MASKS, "causal", "window"),),
    ),
    "logsumexp": Feature(
        "return_logsumexp=True; (context, logsumexp) comes back, (batch, num_heads, query_len), "
        "natural logarithm, of the masked scores",
    ),
    "dropout": Feature(
        "dropout=, a float: the share of the weights that is dropped, the others × 1/(1 − dropout); "
        "0.0 drops nothing, and neither does a module in eval mode",
        with_others=False,
    ),
    "chunks": Feature(
        "nothing more; causal queries in chunks, each with the keys so far, give the whole",
        needs=(("causal",),),
        lengths=((13, 13), (67, 67)),
    ),
    "empty_axes": Feature("nothing more; batch, query_len or kv_len is 0", with_others=False),
    "fewer_dims": Feature(
        "tensors (num_heads, len, dim) and (len, dim)",
        apart=_OF_FOUR_DIMENSIONS | {"more_dims", "broadcast"},
    ),
    "more_dims": Feature(
        "tensors (batch, more, num_heads, len, dim)",
        apart=_OF_FOUR_DIMENSIONS | {"fewer_dims", "broadcast"},
    ),
    "broadcast": Feature(
        "key and value have a batch of 1, the query has more",
        apart=_OF_FOUR_DIMENSIONS | {"fewer_dims", "more_dims"},
    ),
    "gradients": Feature("requires_grad of query, key and value", with_others=False),
    "bias_gradients": Feature(
        "requires_grad of bias as well", needs=(("bias",), ("gradients",)), with_others=False
    ),
    "sinks_gradients": Feature(
        "requires_grad of sinks as well", needs=(("sinks",), ("gradients",)), with_others=False
    ),
}


def apart(one: str, other: str) -> bool:
    """Return True if two features never stand in a case together."""
    return other in FEATURES[one].apart or one in FEATURES[other].apart
