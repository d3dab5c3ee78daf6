"""From measurements to findings: which name, in whose words, measured how, and what to change."""

import math

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.cases import Attempt
from clearhead.checking.contract import Contract
from clearhead.checking.matching import CLOSE, Case, Explanation, contracts, distance
from clearhead.checking.notes import Notes
from clearhead.checking.probes import weights
from clearhead.checking.recipes import RIGHT, Recipe, right_scale, right_visible
from clearhead.checking.references.masks import MASKS
from clearhead.checking.report import drawn


def judge_explained(notes: Notes, cases: list[Case], found: Explanation) -> None:
    """What it means that the subject follows this recipe."""
    assert found.mutants is not None
    cases = [case.under(found.contract) for case in cases]
    for mutant in found.mutants:
        also, sentence = (), mutant.detail
        if len(found.mutants) == 1 and found.also:
            codes = dict.fromkeys(each.code for each in found.also)
            also = tuple(code for code in codes if code != mutant.code)
            others = [each.detail for each in found.also if each.detail != mutant.detail]
            if others:
                words = "; or ".join(dict.fromkeys(others))
                sentence += f"; or {words}: at these sizes the output is the same"
        notes.found(
            mutant.code, sentence, _measured(mutant.code, cases, found), mutant.likely, also
        )
    touched = {name for mutant in found.mutants for name in mutant.changes}
    if not touched & {"visible", "hide", "after", "start"}:
        say_mask_right(notes, found.contract)
    if not touched & {"share", "after", "hide"}:
        notes.right("softmax over the keys")
    if not touched & {"scale", "prepare"}:
        notes.right(f"scale {scale_in_words(cases[0])}")
    if not touched & {"arrange", "group", "split", "merge", "end", "around"}:
        notes.right("heads")
    if found.mutants and any(not case.target.isfinite().all() for case in cases):
        bad = next(case for case in cases if not case.target.isfinite().all())
        notes.found(
            "mask.empty-row"
            if not found.mutants[0].code.startswith("softmax")
            else "mask.non-finite",
            "a query that sees nothing gives NaN",
            first_bad(bad.target),
            follows_from=notes.cause,
        )


def say_mask_right(notes: Notes, contract: Contract) -> None:
    """The mask as declared is in force."""
    if contract.causal:
        notes.right("causal")
    if contract.window is not None:
        notes.right(f"window {contract.window}")


def scale_in_words(case: Case) -> str:
    """The declared scale as a person writes it."""
    given = case.setting.contract.scale
    return f"1/√{case.setting.head_dim}" if given is None else f"{given:g}"


def first_bad(output: Tensor) -> str:
    """Where the first number that is not finite stands."""
    place = (~output.isfinite()).nonzero()[0].tolist()
    count = int((~output.isfinite()).sum())
    return f"{count} of {output.numel()} numbers are not finite, the first at {place}"


def _measured(code: str, cases: list[Case], found: Explanation) -> str:
    case = cases[0]
    if code == "mask.top-left":
        case = next((each for each in cases if each.setting.query_len != each.setting.kv_len), case)
    if code.startswith("scale."):
        used, right = found.recipe.scale(case.setting), right_scale(case.setting)
        return f"slope {used:.4g} of the log-weights over q·k; declared is {right:.4g} = {scale_in_words(case)}"
    if code.startswith("mask.") and (
        found.recipe.visible is not RIGHT.visible or found.recipe.start is not RIGHT.start
    ):
        return _drawn_mask(case, found.recipe)
    if code.startswith("softmax."):
        return sums(case, found.recipe) or difference(case)
    return difference(max(cases, key=lambda each: min(each.error(RIGHT), 1e9)))


def _drawn_mask(case: Case, recipe: Recipe) -> str:
    seen = recipe.seen(case.setting)
    seen = seen.expand(1, 1, *seen.shape[-2:])[0, 0] if seen.ndim == 2 else seen[0, 0]
    empty = ~seen.any(-1)
    rows = [
        [None if gone and recipe.empty == "nan" else bool(cell) for cell in row]
        for row, gone in zip(seen.tolist(), empty.tolist(), strict=True)
    ]
    head = f"{seen.shape[0]} × {seen.shape[1]}, ● seen  · hidden  × NaN"
    return f"{head}\n{drawn(rows)}"


def sums(case: Case, recipe: Recipe) -> str | None:
    """Of what the weights of a call sum to."""
    if case.flat:
        return None
    found = recipe.weights(case.query, case.key, case.setting)
    rows, columns = found[0, 0].sum(-1), found[0, 0].sum(-2)
    return (
        f"sums over the keys {rows.min():.3g} … {rows.max():.3g}, "
        f"over the queries {columns.min():.3g} … {columns.max():.3g}"
    )


def difference(case: Case) -> str:
    """By how much, and where first, a call differs from the definition."""
    right = case.result(RIGHT)
    if right is None or right.shape != case.target.shape:
        shape = None if right is None else tuple(right.shape)
        return f"shape {tuple(case.target.shape)}, the definition gives {shape}"
    gap = (case.target - right).abs().nan_to_num(torch.inf)
    places = (gap > 1e-5 * right.nan_to_num(0.0).abs().max()).nonzero().tolist()
    place = places[0] if places else [0] * gap.ndim
    index = tuple(place)
    return (
        f"differs from the definition by up to {gap.max().item():.3g}, first at {place}: "
        f"{case.target[index].item():.6g}, expected {right[index].item():.6g}"
    )


def judge_unexplained(
    notes: Notes,
    attempts: list[Attempt],
    cases: list[Case],
    contract: Contract,
    measured: weights.Weights | None,
) -> None:
    """No mutant is what the subject computes: name each thing that can be seen by itself."""
    case = cases[0].under(contracts(contract)[0])
    bad = next((each for each in cases if not each.target.isfinite().all()), None)
    if bad is not None:
        notes.found(
            "mask.non-finite",
            "NaN or infinity comes out of a legal input",
            first_bad(bad.target),
            "0 · inf and inf − inf are NaN: fill with torch.where or masked_fill, and subtract the "
            "largest score before exp",
        )
        return
    # Weights are only those of an output that is linear in the value.
    if measured is not None and case.target.ndim == 4:
        groups = stages.repeat_kv_heads(case.value, case.setting.num_heads)
        if distance(measured.weights @ groups, case.target) > CLOSE[case.dtype]:
            measured = None
    if measured is not None:
        judge_weights(notes, case, measured, contract)
    if not notes.findings:
        worst = max(cases, key=lambda each: each.under(case.setting.contract).error(RIGHT))
        notes.found(
            "differs",
            "the output is not that of the definition, and no known mistake gives it",
            f"{worst.name} sizes: {difference(worst.under(case.setting.contract))}",
        )


def judge_weights(notes: Notes, case: Case, measured: weights.Weights, contract: Contract) -> None:
    """Name each thing that is wrong with the weights themselves."""
    found = measured.weights
    right = right_visible(case.setting).expand_as(found)
    seen = found.abs() > 1e-12
    undeclared = contract.causal is None and contract.window is None and case.setting.mask is None
    if undeclared:
        right = seen
    elif not torch.equal(seen, right):
        for mutant in MASKS:
            if not mutant.needs(contract) or not torch.equal(
                mutant.applied(RIGHT).seen(case.setting).expand_as(found), seen
            ):
                continue
            rows = [[bool(cell) for cell in row] for row in seen[0, 0].tolist()]
            notes.found(mutant.code, mutant.detail, drawn(rows), mutant.likely)
            break
    hidden = torch.zeros_like(right) if undeclared else ~right
    if torch.equal(found == 0, (measured.products <= 0) | hidden):
        _found_relu(notes)
    sums_of_rows = found.sum(-1)
    if not torch.allclose(sums_of_rows, torch.ones_like(sums_of_rows), atol=1e-4):
        judge_sums(notes, found)
    used = weights.slope(measured, seen & right)
    wanted = right_scale(case.setting)
    plain = contract.softcap is None and contract.bias is None and contract.alibi_slopes is None
    if used and plain and abs(used - wanted) > 1e-3 * abs(wanted):
        name, detail = scale_name(used, case)
        notes.found(
            name, detail, f"slope {used:.4g}, declared {wanted:.4g}", "scores / math.sqrt(head_dim)"
        )


def _found_relu(notes: Notes) -> None:
    notes.found(
        "softmax.missing",
        "a key with a score below 0 gets no weight at all, which a softmax never does",
        "weights are 0 exactly where q·k is",
        "weights = torch.softmax(scores, dim=-1)",
    )


def judge_sums(notes: Notes, found: Tensor) -> None:
    """Which axis sums to one, if it is not that of the keys."""
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        total = found.sum(axis)
        if torch.allclose(total, torch.ones_like(total), atol=1e-4):
            notes.found(
                "softmax.axis",
                f"the weights sum to one over the {name}, not over the keys",
                f"row sums {found.sum(-1).min():.3g} … {found.sum(-1).max():.3g}",
                "torch.softmax(scores, dim=-1)",
            )
            return
    notes.found(
        "softmax.missing",
        "the weights of a query do not sum to one, and no other axis does",
        f"row sums {found.sum(-1).min():.3g} … {found.sum(-1).max():.3g}",
        "weights = torch.softmax(scores, dim=-1)",
    )


def scale_name(used: float, case: Case) -> tuple[str, str]:
    """The name for a slope that no size explains on every call."""
    at = case.setting
    if math.isclose(used, 1.0, rel_tol=1e-3):
        return "scale.missing", "the scores are not scaled"
    if math.isclose(used, math.sqrt(at.head_dim), rel_tol=1e-3):
        return "scale.inverse", "the scores are multiplied by √head_dim, not divided"
    return "scale.wrong", (
        f"the scores are scaled by {used:.4g} = 1/√{1 / used**2:.4g}, declared is "
        f"{scale_in_words(case)}"
    )


def judge_returned(right: Tensor, returned: Tensor, notes: Notes) -> None:
    """Whether the weights that are returned made the output.

    Args:
        right: (batch, heads, query_len, kv_len), those that did.
        returned: those, their mean over the heads, or those of a single head.
        notes: where it is written down.
    """
    apart = not returned.requires_grad
    returned = returned.detach().double()
    if returned.shape == right[:, 0].shape:
        right = right.mean(1)
    if returned.ndim == 2 and right.shape[0] == 1:
        right = right[0]
    if returned.shape != right.shape or not returned.isfinite().all():
        return
    if returned.min() < -1e-6:
        shares = returned.softmax(-1)
        alike = torch.allclose(shares, right, atol=1e-4)
        if alike and apart:
            # As in Whisper: what is detached on purpose is for looking at, by whatever name.
            notes.tell("the scores are returned too, detached, as they are before the softmax")
            return
        if alike:
            notes.found(
                "weights.not-used",
                "what is returned as weights are the scores, before the softmax",
                f"they are negative in places; their softmax is the weights, to "
                f"{(shares - right).abs().max():.1g}",
                "return the tensor that was multiplied with the value",
            )
            return
        notes.tell("the second thing returned has the shape of weights, and is negative in places")
        return
    gap = (returned - right).abs().max().item()
    if gap > 1e-4:
        notes.found(
            "weights.not-used",
            "the weights returned are not those that made the output",
            f"they differ by up to {gap:.3g}; their rows sum to {returned.sum(-1).min():.3g} … "
            f"{returned.sum(-1).max():.3g}",
            "return the tensor that was multiplied with the value",
        )
    else:
        notes.right("weights returned")
