"""What a contract may promise besides: rows that see nothing, NaN behind the mask, 16 bits."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.matching import distance
from clearhead.checking.notes import Notes
from clearhead.checking.probes import halves
from clearhead.checking.recipes import Setting, right_scale, right_visible

# A computation in 16 bits may lose this share of the largest number, or four times what the plain
# one loses.
LOST = {torch.float16: 0.05, torch.bfloat16: 0.25, torch.float32: 1e-4, torch.float64: 1e-8}


def judge_empty(
    output: Tensor, empty: Tensor, uniform: Tensor | None, declared: str | None, notes: Notes
) -> None:
    """What became of the queries that see nothing.

    Args:
        output: (…, query_len, dim).
        empty: True for such a query, broadcasting over the output without its last axis.
        uniform: what equal weights would give, if that is known.
        declared: "zero", "uniform" or None.
        notes: where it is written down.
    """
    rows = output[empty.expand(output.shape[:-1])]
    if not rows.isfinite().all():
        got = "NaN"
    elif rows.abs().max() <= 1e-6:
        got = "zero"
    elif uniform is not None and distance(rows, uniform[empty.expand(output.shape[:-1])]) < 1e-4:
        got = "uniform"
    else:
        got = "something else"
    if declared is None:
        notes.tell(f"a query that sees nothing gives {got}")
    elif got == declared:
        notes.right(f"empty rows: {got}")
    else:
        notes.found(
            "mask.empty-row",
            f"a query that sees nothing gives {got}, and {declared} is declared",
            f"{rows.shape[0]} such rows, the first begins {rows[0, :3].tolist()}",
            "a softmax over nothing but -inf is NaN, over equal finite numbers it is uniform: "
            "weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) after the softmax"
            if declared == "zero"
            else "fill with a finite number such as torch.finfo(dtype).min",
        )


def judge_empty_gradients(
    run: Callable[..., Tensor], inputs: Sequence[Tensor], declared: str | None, notes: Notes
) -> None:
    """Whether the backward pass is finite too, where a query sees nothing.

    Args:
        run: the call.
        inputs: query, key and value, and a mask that hides everything from some query.
        declared: "zero", "uniform" or None.
        notes: where it is written down.
    """
    leaves = [each.clone().requires_grad_() for each in inputs[:3]]
    output = run(*leaves, *inputs[3:])
    if not output.requires_grad:
        return
    try:
        found = torch.autograd.grad(output.sum(), leaves, allow_unused=True)
    except RuntimeError:  # a backward pass that fails is told of elsewhere
        return
    names = [
        name
        for name, each in zip(("query", "key", "value"), found, strict=True)
        if each is not None and not each.isfinite().all()
    ]
    if not names:
        return
    words = " and ".join(names)
    if declared is None:
        notes.tell(f"a query that sees nothing makes the gradient of {words} NaN")
        return
    notes.found(
        "mask.empty-row",
        f"a query that sees nothing gives {declared}, as declared, and its gradient is NaN",
        f"the gradient of {words} is not finite, the output is",
        "nan_to_num after the softmax hides the NaN of the forward pass only: keep it from arising, "
        "scores.masked_fill(~mask.any(-1, keepdim=True), 0.0) before the softmax",
    )


def examine_nan(
    run: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    at: Setting,
    declared: bool | None,
    notes: Notes,
) -> None:
    """Whether a NaN in a hidden key or value reaches an output that must not see it."""
    seen = right_visible(at)
    seen = seen.expand(at.batch, at.num_heads, at.query_len, at.kv_len)
    hidden = (~seen).any(-2).all(1).all(0).nonzero()
    if not len(hidden):
        return
    token = int(hidden[-1])
    clean = run(*inputs).detach()
    blind = ~seen[..., token]
    leaks = []
    for place, name in ((1, "key"), (2, "value")):
        spoilt = [each.clone() for each in inputs]
        spoilt[place][:, :, token] = torch.nan
        output = run(*spoilt).detach()
        if output.shape[:-1] != blind.shape:
            return
        if not (output[blind].isfinite() | ~clean[blind].isfinite()).all():
            leaks.append(name)
    if not leaks:
        notes.right("NaN behind the mask stays there")
    elif declared:
        notes.found(
            "mask.leaks-nan",
            f"a NaN in a hidden {' and in a hidden '.join(leaks)} reaches outputs that do not see it",
            f"token {token} is NaN; queries that do not see it give NaN",
            "0 · NaN is NaN: hide the scores with torch.where, and replace hidden values by 0",
        )
    else:
        notes.tell(f"a NaN in a hidden {' or '.join(leaks)} reaches outputs that do not see it")


def lost_by_plain(
    query: Tensor, key: Tensor, value: Tensor, at: Setting, dtype: torch.dtype
) -> float:
    """What the plain computation loses in a dtype, of the largest number."""

    def computed(kind: torch.dtype) -> Tensor:
        q, k, v = (each.to(kind) for each in (query, key, value))
        scores = q @ stages.repeat_kv_heads(k, at.num_heads).mT * right_scale(at)
        weights = scores.masked_fill(~right_visible(at), -torch.inf).softmax(-1)
        return weights @ stages.repeat_kv_heads(v, at.num_heads)

    exact = computed(torch.float64)
    return halves.lost(computed(dtype).double(), exact) if exact.isfinite().all() else 0.0


def examine_halves(
    run: Callable[..., Tensor],
    plain: Callable[[torch.dtype], float],
    inputs: Sequence[Tensor],
    target: Tensor,
    dtypes: Sequence[torch.dtype],
    notes: Notes,
    what: str,
) -> None:
    """The declared dtypes, against float64."""
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        found = halves.measure(run, plain, inputs, target, dtype)
        if found.refused is not None:
            notes.found(
                "dtype.overflow",
                f"{name} is declared, and the call fails",
                found.refused,
                "-1e9 does not fit float16: fill with torch.finfo(scores.dtype).min or -torch.inf",
            )
        elif found.error > max(LOST[dtype], 4 * found.plain):
            size = "not finite" if found.error == torch.inf else f"off by {found.error:.2g}"
            notes.found(
                "dtype.overflow",
                f"in {name} the output is {size}, {what}",
                f"the plain computation in {name} is off by {found.plain:.2g} of the largest number",
                "make sums and exp in float32, and subtract the largest score before exp",
            )
        else:
            notes.right(name)
