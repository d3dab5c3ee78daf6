"""Edits of the scores: scale, softcap, bias and sinks."""

from collections.abc import Callable

from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.recipe import (
    Recipe,
    Setting,
    Stage,
    StageEdit,
    declared,
    declared_bias,
    right_scale,
)

BIASED, CAPPED = declared("bias", "alibi_slopes"), declared("softcap")

# The sizes that a scale is made of by mistake.
SIZES: list[tuple[str, Callable[[Setting], float]]] = [
    ("√head_dim", lambda at: at.head_dim**0.5),
    ("1/head_dim", lambda at: 1 / at.head_dim),
    ("1/√num_heads", lambda at: at.num_heads**-0.5),
    ("1/√(the whole width)", lambda at: (at.num_heads * at.head_dim) ** -0.5),
    ("1/√query_len", lambda at: at.query_len**-0.5),
    ("1/√kv_len", lambda at: at.kv_len**-0.5),
    ("1/√value_head_dim", lambda at: at.value_head_dim**-0.5),
    ("1/√d_in, the width of the input,", lambda at: (at.d_in or at.head_dim) ** -0.5),
]


SCALES = [
    StageEdit("scale.missing", "missing", {"scale": lambda at: 1.0}),
    StageEdit("scale.wrong", "size", {"scale": lambda at: at.head_dim**-0.5},
         declared("scale"), {"size": "1/√head_dim"}),
    *(StageEdit("scale.wrong", "size", {"scale": scale}, values={"size": name}) for name, scale in SIZES),
    StageEdit("scale.missing", "late",
         {"scale": lambda at: 1.0, "after": lambda weights, seen, at: weights * right_scale(at)}),
]  # fmt: skip


# Cap, bias and sinks: raw scores, seen, scale, at, recipe → masked scores.


def _prepared(*order: str) -> Stage:
    """Return a `prepare` stage that applies steps to the scores in this order, by name, such as "scale" and "hide".

    A step of something undeclared, as "bias", is a no-op.
    """

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        """Return the raw scores after all steps."""
        bias = declared_bias(at)
        steps: dict[str, Callable[[Tensor], Tensor]] = {
            "scale": lambda x: x * scale,
            "cap": lambda x: stages.capped_scores(x, at.contract.softcap),
            "hide": lambda x: recipe.hide(x, seen, scale, recipe.empty),
            "hide-finite": lambda x: x.masked_fill(~seen, -1e9),
            "bias": lambda x: x if bias is None else x + bias,
            "unbias": lambda x: x if bias is None else x - bias,
        }
        for step in order:
            raw = steps[step](raw)
        return raw

    return prepare


def _bias_after(only_seen: bool) -> Stage:
    """Return an `after` stage that adds the bias to the weights; `only_seen` sets hidden ones to 0."""

    def after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
        """Return the weights plus the bias, if `only_seen` with 0 for hidden pairs."""
        bias = declared_bias(at)
        total = weights if bias is None else weights + bias
        return total * seen if only_seen else total

    return after


ORDER = [
    StageEdit("bias.wrong", "scaled", {"prepare": _prepared("bias", "scale", "cap", "hide")}, BIASED),
    *(
        StageEdit("bias.wrong", "after",
             {"prepare": _prepared("scale", "cap", "hide"), "after": _bias_after(seen)}, BIASED)
        for seen in (False, True)
    ),
    StageEdit("bias.wrong", "sign", {"prepare": _prepared("scale", "cap", "unbias", "hide")}, BIASED),
    *(
        StageEdit("softcap.order", "mask", {"prepare": _prepared(*order)}, CAPPED)
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    StageEdit("softcap.order", "scale", {"prepare": _prepared("cap", "scale", "bias", "hide")}, CAPPED),
    StageEdit("softcap.order", "bias", {"prepare": _prepared("scale", "bias", "cap", "hide")},
         lambda contract: CAPPED(contract) and BIASED(contract)),
]  # fmt: skip
