"""The examination of a function of query, key and value."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.cases import (
    Attempt,
    Sizes,
    as_case,
    attempted,
    attempts,
    hides_anything,
    planned,
    setting,
)
from clearhead.checking.common import (
    examine_gradients,
    examine_inputs,
    examine_repetition,
    examine_training,
)
from clearhead.checking.contract import Contract
from clearhead.checking.judging import judge_explained, judge_returned, judge_unexplained
from clearhead.checking.matching import (
    CLOSE,
    ROUNDED,
    Case,
    Explanation,
    distance,
    explain,
    follows,
    precision,
    window_of,
)
from clearhead.checking.notes import Notes
from clearhead.checking.probes import weights
from clearhead.checking.promises import (
    examine_halves,
    examine_nan,
    judge_empty,
    judge_empty_gradients,
    lost_by_plain,
)
from clearhead.checking.recipes import RIGHT, right_visible
from clearhead.checking.references import bank
from clearhead.checking.references.base import Mutant
from clearhead.checking.refusals import deliberate, first_line
from clearhead.checking.states import judge_scale_from_outside
from clearhead.checking.subject import Subject
from clearhead.errors import ModelError

NAMES = ("query", "key", "value", "mask")


def examine_qkv(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """Everything that can be asked of f(query, key, value)."""
    tried = attempts(subject, contract, seed)
    main = tried[0]
    if subject.axes < 4:
        notes.tell(f"called with {'(batch, len, dim)' if subject.axes == 3 else '(len, dim)'}")
    names = NAMES[: len(main.inputs)]
    used = {
        name: getattr(main.sizes, name)
        for name in ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")
    }
    if not examine_repetition(subject, main.inputs, contract, notes):
        return used
    cases = _cases(subject, tried, contract, notes)
    rounded = precision([case.target for case in cases], subject.dtype)
    cases = [replace(case, dtype=rounded) for case in cases]
    contract = _with_window(subject, main, cases, contract, notes)
    cases = _self_only(cases, contract, notes)
    explanation = explain(cases, contract, mutants_for(cases, subject.takes == "qkv,mask"))
    if explanation.mutants is not None:
        judge_explained(notes, cases, explanation)
        judge_scale_from_outside(subject, explanation, cases[0].setting, notes)
    elif explanation.error < ROUNDED:
        notes.tell(
            f"it is the definition but for {explanation.error:.1g} of the largest number: it "
            "computes in 16 bits somewhere"
        )
    else:
        measured = weights.measure(subject, *main.inputs)
        judge_unexplained(notes, tried, cases, contract, measured)
        _judge_batch(subject, main, notes)
    filled = explanation.contract
    if contract.causal is None and explanation.right:
        notes.tell(f"causal={filled.causal}")
    _judge_returned(subject, main, cases[0].under(filled), explanation, notes)
    examine_inputs(subject, main.inputs, names, notes, CLOSE[rounded])
    if rounded == subject.dtype:
        examine_gradients(subject, main.inputs, names, notes, seed)
    else:
        notes.skip("gradients: it computes in 16 bits")
    constant = [*main.inputs]
    constant[2] = torch.ones_like(constant[2])
    examine_training(subject, main.inputs, constant, contract, notes)
    with subject.spare():
        at = cases[0].under(filled).setting
        examine_nan(subject, main.inputs, at, contract.nan_safe, notes)
    _examine_empty(subject, filled, contract, notes, seed)
    _examine_halves(subject, main, filled, notes)
    return used


def _with_window(
    subject: Subject, main: Attempt, cases: list[Case], contract: Contract, notes: Notes
) -> Contract:
    """The contract, with a window that nobody declared if that makes the subject right."""
    if contract.window is not None or subject.takes == "qkv,mask" or follows(cases, contract):
        return contract
    measured = weights.measure(subject, *main.inputs)
    window = None if measured is None else window_of((measured.weights > 1e-12)[0, 0])
    if window is None or (contract.causal and window[1]):
        return contract
    filled = replace(contract, window=window, causal=window[1] == 0 or contract.causal)
    if not follows([each for each in cases if _square(each)], filled):
        return contract
    notes.tell(f"a window of {window[0]} tokens back and {window[1]} ahead")
    return filled


def _square(case: Case) -> bool:
    return case.setting.query_len == case.setting.kv_len


def _self_only(cases: list[Case], contract: Contract, notes: Notes) -> list[Case]:
    """The cases, without those of more keys than queries where a window is right but for these, and
    no known mistake is made there: blocks of a window are cut for as many keys as queries."""
    if contract.window is None:
        return cases
    square = [each for each in cases if _square(each)]
    if len(square) == len(cases) or not follows(square, contract):
        return cases
    if explain(cases, contract, mutants_for(cases, False)).mutants is not None:
        return cases
    notes.tell("with more keys than queries it is not the definition: it is for as many of both")
    return square


def mutants_for(cases: list[Case], given: bool) -> Callable[[Contract], list[Mutant]]:
    """The bank for these cases, under a contract."""

    def make(contract: Contract) -> list[Mutant]:
        masked = hides_anything([case.under(contract) for case in cases])
        return bank(contract, given=given, flat=cases[0].flat, masked=masked)

    return make


def _cases(
    subject: Subject, tried: Sequence[Attempt], contract: Contract, notes: Notes
) -> list[Case]:
    """The calls that worked; what did not is told, or is a mistake of its own."""
    cases = []
    for attempt in tried:
        case = as_case(attempt, contract, subject.dtype)
        if case is not None:
            cases.append(case)
            continue
        square = attempt.sizes.head_dim == attempt.sizes.value_head_dim
        if attempt.sizes.name == "main" and square and attempt.output is not None:
            raise ModelError(
                "check.output",
                f"{subject.name} must give (batch, num_heads, query_len, value_head_dim), or heads "
                f"side by side; from query {list(attempt.inputs[0].shape)} it gave "
                f"{list(attempt.output.shape)}.",
            )
        _judge_failed(attempt, contract, notes)
    return cases


def _judge_failed(attempt: Attempt, contract: Contract, notes: Notes) -> None:
    sizes, error = attempt.sizes, attempt.error
    if error is not None:
        words = first_line(error)
    else:
        assert attempt.output is not None
        words = f"the output has shape {list(attempt.output.shape)}"
    if sizes.value_head_dim != sizes.head_dim:
        declared = contract.sizes.get("value_head_dim") is not None
        # A refusal in words of its own is no mistake; a view that does not fit is one.
        fails = error is None or not deliberate(error)
        if declared or fails:
            notes.found(
                "shape.square-only",
                "it works only where the value is as wide as the key",
                f"head_dim {sizes.head_dim}, value_head_dim {sizes.value_head_dim}: {words}",
                "take the width of the output from the value: value.shape[-1]",
            )
        else:
            notes.tell(f"value_head_dim ≠ head_dim is refused: {words}")
    elif sizes.query_len != sizes.kv_len:
        notes.tell(f"query_len ≠ kv_len is refused: {words}")
    else:
        notes.tell(
            f"{sizes.query_len} tokens, {sizes.num_heads} heads of {sizes.head_dim}: {words}"
        )


def _judge_batch(subject: Subject, main: Attempt, notes: Notes) -> None:
    """Whether a sample alone gives what it gives in its batch."""
    assert main.output is not None
    alone = subject(*(each[:1] for each in main.inputs)).detach()
    whole = main.output[:1]
    gap = distance(alone, whole) if torch.equal(alone.isnan(), whole.isnan()) else torch.inf
    if gap > 1e-5 and "softmax.axis" not in notes.codes:
        notes.findings = [each for each in notes.findings if each.code != "differs"]
        notes.found(
            "batch.mixed",
            "one sample moves another",
            f"sample 0 alone differs from sample 0 in its batch by {gap:.3g} of the largest number",
            "an axis is taken for the batch, or a sum, norm or view goes over it",
        )


def _judge_returned(
    subject: Subject, main: Attempt, case: Case, explanation: Explanation, notes: Notes
) -> None:
    """Whether the weights that are returned made the output."""
    returned = subject.whole(*main.inputs)[1]
    if not isinstance(returned, Tensor) or explanation.mutants is None:
        return
    judge_returned(explanation.recipe.weights(case.query, case.key, case.setting), returned, notes)


def _examine_empty(
    subject: Subject, filled: Contract, contract: Contract, notes: Notes, seed: int
) -> None:
    """Queries that see nothing: by the mask handed in, or by causal with fewer keys than queries."""
    plan = planned(contract)[0]
    if subject.takes != "qkv,mask":
        if not filled.causal or contract.empty_row is None:
            return
        plan = replace(plan, query_len=plan.query_len + 3)
    attempt = _with_empty_rows(subject, plan, contract, seed)
    if attempt is None:
        notes.tell("a query that sees nothing is refused")
        return
    output, inputs = attempt
    case = as_case(Attempt(plan, inputs, output), filled, subject.dtype)
    if case is None:
        return
    empty = ~right_visible(case.setting).any(-1)
    if empty.ndim == 1:
        empty = empty.expand(plan.batch, 1, -1)
    uniform = stages.repeat_kv_heads(case.value, plan.num_heads).mean(-2, keepdim=True)
    target = case.target
    if target.ndim == 3:
        target = target.unflatten(-1, (plan.num_heads, -1)).transpose(1, 2)
    if subject.dtype == torch.float64 and contract.empty_row == "uniform":
        # In float64 a score is still felt beside −1e9, in float32 it is not.
        subject.use(torch.float32)
        again = as_case(Attempt(plan, inputs, subject(*inputs).detach()), filled, torch.float32)
        subject.use(torch.float64)
        target = target if again is None or target.shape != again.target.shape else again.target
    judge_empty(target, empty, uniform.expand_as(target), contract.empty_row, notes)
    if "mask.empty-row" not in notes.codes and target.isfinite().all():
        judge_empty_gradients(subject, inputs, contract.empty_row, notes)


def _with_empty_rows(
    subject: Subject, plan: Sizes, contract: Contract, seed: int
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    given = attempted(subject, plan, contract, seed + 2).inputs
    if subject.takes == "qkv,mask":
        given[3][:, :, 1] = False
    try:
        return subject(*given).detach().double(), given
    except Exception:  # what refuses such a row in its own words is told below
        return None


def _examine_halves(subject: Subject, main: Attempt, filled: Contract, notes: Notes) -> None:
    """Small scores, and scores whose exp does not fit float16."""
    if not filled.dtypes or main.output is None:
        return
    mask = main.inputs[3] if len(main.inputs) > 3 else None
    at = setting(main.sizes, filled, mask)

    def run(*tensors: Tensor) -> Tensor:
        output = subject.within(tensors[0].dtype, *tensors)
        if output.ndim == 3:
            output = output.unflatten(-1, (at.num_heads, -1)).transpose(1, 2)
        return output

    for factor, what in ((1.0, "with scores as they usually are"), (1.9, "with scores up to 15")):
        query, key, value = (each * factor for each in main.inputs[:3])
        given = (query, key, value / factor, *main.inputs[3:])
        target = RIGHT.styled("zero").heads(query, key, value / factor, at)
        plain = partial(lost_by_plain, *given[:3], at)
        examine_halves(run, plain, given, target, filled.dtypes, notes, what)
