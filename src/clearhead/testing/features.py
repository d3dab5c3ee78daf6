"""Features that an attention may have beyond the plain computation, and how a case asks for them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """A feature that an attention may support.

    Attributes:
        needs: each entry is a choice of features, of which at least one must be declared as well.
        apart: features that are never in a case together with this one.
        with_others: False for a feature that is tested by itself only.
        lengths: (query_len, kv_len) of the cases for it alone.
    """

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
        apart=frozenset({"head_mask", "padding"}),
        lengths=((7, 11), (13, 5), (61, 131), (129, 65)),
    ),
    "head_mask": Feature(apart=frozenset({"mask", "padding"})),
    "padding": Feature(
        apart=frozenset({"mask", "head_mask", "window"}),
        lengths=((7, 11), (13, 13), (61, 131)),
    ),
    "causal": Feature(lengths=_AT_EDGES),
    "window": Feature(
        apart=frozenset({"padding"}), lengths=((7, 11), (13, 13), (61, 131), (128, 128))
    ),
    "grouped": Feature(),
    "value_width": Feature(),
    "scale": Feature(),
    "softcap": Feature(),
    "bias": Feature(),
    "sinks": Feature(apart=frozenset({"logsumexp"})),
    "empty_rows": Feature(needs=((*MASKS, "causal"),)),
    "nan_behind_mask": Feature(needs=((*MASKS, "causal", "window"),)),
    "logsumexp": Feature(),
    "dropout": Feature(with_others=False),
    "chunks": Feature(needs=(("causal",),), lengths=((13, 13), (67, 67))),
    "empty_axes": Feature(with_others=False),
    "fewer_dims": Feature(apart=_OF_FOUR_DIMENSIONS | {"more_dims", "broadcast"}),
    "more_dims": Feature(apart=_OF_FOUR_DIMENSIONS | {"fewer_dims", "broadcast"}),
    "broadcast": Feature(apart=_OF_FOUR_DIMENSIONS | {"fewer_dims", "more_dims"}),
    "gradients": Feature(with_others=False),
    "bias_gradients": Feature(needs=(("bias",), ("gradients",)), with_others=False),
    "sinks_gradients": Feature(needs=(("sinks",), ("gradients",)), with_others=False),
}


def apart(one: str, other: str) -> bool:
    """Return True if two features exclude each other in a case."""
    return other in FEATURES[one].apart or one in FEATURES[other].apart
