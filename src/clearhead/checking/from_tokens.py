"""The examination of a module, or a function, of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.calling import optional_mask, unfilled_mask
from clearhead.checking.common import (
    examine_gradients,
    examine_inputs,
    examine_repetition,
    examine_training,
)
from clearhead.checking.contract import Contract
from clearhead.checking.dependencies import (
    batching,
    examine_nan,
    judge_dependency,
    measured_dependency,
    with_window,
)
from clearhead.checking.feeding import Tokens, drawn_inputs, feed, runs, shortened
from clearhead.checking.judging import difference, judge_explained, judge_returned, judge_weights
from clearhead.checking.matching import ROUNDED, Case, Explanation, explain, follows
from clearhead.checking.notes import Notes
from clearhead.checking.probes import weights
from clearhead.checking.probes.dependency import Dependency
from clearhead.checking.promises import examine_halves, lost_by_plain
from clearhead.checking.readings import cases_of
from clearhead.checking.recipes import RIGHT
from clearhead.checking.references import bank
from clearhead.checking.references.base import Mutant
from clearhead.checking.sizes import promised_length
from clearhead.checking.states import examine_sibling, examine_state, judge_scale_from_outside
from clearhead.checking.subject import Subject
from clearhead.errors import ModelError

NAMES = ("x", "context")
# exp of such a score does not fit float16.
LARGE = 15.0
# Tokens from which the weights of a module are found.
FEW = 5
# Ways to read a module in which mistakes are looked for; the right one is, in all.
MOST = 9


def examine_tokens(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """Everything that can be asked of f(x)."""
    fed = feed(subject, contract)
    main = fed.draw(fed.lengths[0], seed)
    if not runs(subject, fed, main, notes):
        return {"d_in": fed.width}
    if not examine_repetition(subject, (main,), contract, notes):
        return {"d_in": fed.width}
    measured = _measured(subject, main, fed, contract, notes, seed)
    inputs = [(each,) for each in drawn_inputs(subject, fed, seed)]
    contract = with_window(measured, contract, notes)
    _refuse_without_mask(subject, measured, contract)
    explanation = judge_reading(subject, inputs, fed, contract, notes)
    judge_dependency(subject, main, measured, fed, contract, explanation, notes, seed)
    if explanation is not None and subject.module is not None:
        judge_outside(subject, inputs, fed, contract, explanation, notes)
        _examine_halves(subject, inputs, fed, explanation.contract, notes)
    batched = main[None] if fed.plain else main
    with subject.spare():
        examine_nan(batching(subject, fed), batched, measured, contract.nan_safe, notes)
    examine_inputs(subject, (main,), NAMES[:1], notes)
    examine_gradients(subject, (shortened(subject, main, 4),), NAMES[:1], notes, seed)
    constant = main[..., :1, :].expand_as(main).contiguous()
    examine_training(subject, (main,), (constant,), contract, notes)
    examine_state(subject, fed.width, promised_length(subject, contract), fed.plain, notes, seed)
    return {"d_in": fed.width, "num_heads": fed.num_heads or 1}


def _measured(
    subject: Subject, main: Tensor, fed: Tokens, contract: Contract, notes: Notes, seed: int
) -> Dependency:
    """Who moves whom; a causal mask is handed over only where the module has none of its own."""
    if not contract.causal or not optional_mask(subject.run):
        return measured_dependency(subject, main, fed, seed)
    subject.hands_mask = False
    measured = measured_dependency(subject, main, fed, seed)
    if not measured.moves.all():
        return measured
    subject.hands_mask = True
    notes.tell("it hides nothing by itself: the causal mask is handed to it, as attention_mask")
    return measured_dependency(subject, main, fed, seed)


def _refuse_without_mask(subject: Subject, measured: Dependency, contract: Contract) -> None:
    """A module that would have hidden the future had it been told to is not called wrong."""
    name = unfilled_mask(subject.run, subject.takes) if contract.causal else None
    if name is None or not measured.moves.all():
        return
    raise ModelError(
        "check.mask",
        f"{subject.name} takes {name}, for which takes={subject.takes!r} hands over nothing, and "
        "without it the future is seen. If the causal mask is to come by it, check a function that "
        f"hands it over: lambda x: attention(x, {name}=…). If not, this is mask.missing.",
    )


def judge_reading(
    subject: Subject,
    inputs: Sequence[tuple[Tensor, ...]],
    fed: Tokens,
    contract: Contract,
    notes: Notes,
) -> Explanation | None:
    """Hold the module against the definition on its own projections, if they can be read."""
    ways = cases_of(subject, inputs, fed.num_heads, contract, fed.width)
    if not ways:
        notes.skip("scale, softmax and heads: its projections cannot be read")
        return None
    for way in ways:
        if follows(way.cases, way.contract) is not None:
            explanation = explain(way.cases, way.contract, bank_for(way.cases))
            judge_explained(notes, way.cases, explanation)
            notes.told += [each for each in way.told if each not in notes.told]
            return explanation
    sure = [each for each in ways if each.sure]
    fused = [each for each in ways if each.fused and not each.sure]
    for pairs, some in ((False, [*sure, *fused][:MOST]), (True, ways[:1])):
        for way in some:
            explanation = explain(way.cases, way.contract, bank_for(way.cases), pairs=pairs)
            if explanation.mutants is None:
                continue
            if _folded(explanation, way.spread, way.cases[0].setting.head_dim):
                notes.tell("the scale is in a projection")
                judge_explained(notes, way.cases, replace(explanation, mutants=()))
                return replace(explanation, mutants=())
            judge_explained(notes, way.cases, explanation)
            return explanation
    way = ways[0]
    found = explain(way.cases, way.contract, lambda contract: [])
    if found.error < ROUNDED:
        notes.tell(
            f"it is the definition but for {found.error:.1g} of the largest number: it computes in "
            "16 bits somewhere"
        )
    elif way.plain:
        # Nothing but the projections has weights, so that nothing else can be meant.
        notes.unnamed = way.sure
        _judge_own_weights(subject, inputs, fed, way.contract, notes)
    case = max(way.cases, key=lambda each: each.under(found.contract).error(RIGHT))
    notes.skip(
        "scale, softmax and heads: it is not the definition on its own projections, and may do "
        f"more than attend; it {difference(case.under(found.contract))}"
    )
    return None


def _judge_own_weights(
    subject: Subject,
    inputs: Sequence[tuple[Tensor, ...]],
    fed: Tokens,
    contract: Contract,
    notes: Notes,
) -> None:
    """The weights, which a few tokens with wide values give away: context = weights · value."""
    x, *context = inputs[0]
    if context:
        return
    if shortened(subject, x, FEW).shape[-2] > FEW:
        return
    ways = cases_of(subject, [(x[..., :FEW, :],)], fed.num_heads, contract, fed.width)
    width = ways[0].cases[0].setting.value_head_dim if ways else 0
    tokens = min(FEW, width - 1)
    if tokens < 3 or shortened(subject, x, tokens).shape[-2] > tokens:
        return
    for way in cases_of(subject, [(x[..., :tokens, :],)], fed.num_heads, contract, fed.width):
        case = way.cases[0]
        measured = weights.solved(*_apart(case), case.target)
        if measured is not None:
            if weights.normalised_otherwise(measured):
                notes.tell("the weights of a query do not sum to one, as with a sink or a skip")
            else:
                judge_weights(notes, case, measured, contract)
            return


def judge_outside(
    subject: Subject,
    inputs: Sequence[tuple[Tensor, ...]],
    fed: Tokens,
    contract: Contract,
    explanation: Explanation,
    notes: Notes,
) -> None:
    """Sizes that its code reads from around it, and the weights that it returns."""
    ways = cases_of(subject, inputs[:1], fed.num_heads, contract, fed.width)
    case = ways[0].cases[0].under(explanation.contract)
    judge_scale_from_outside(subject, explanation, case.setting, notes)
    still = subject(*inputs[0]).detach()

    def same(other: Subject) -> bool | None:
        try:
            return torch.allclose(other(*inputs[0]).detach(), still, equal_nan=True)
        except Exception:  # another number there, and it fails: the number is a size
            return None

    examine_sibling(subject, explanation, same, notes)
    returned = subject.whole(*inputs[0])[1]
    if isinstance(returned, Tensor) and case.flat:
        query, key = RIGHT.split(case.query, case.setting.num_heads), case.key
        key = RIGHT.split(key, case.setting.num_kv_heads)
        judge_returned(explanation.recipe.weights(query, key, case.setting), returned, notes)


def _examine_halves(
    subject: Subject,
    inputs: Sequence[tuple[Tensor, ...]],
    fed: Tokens,
    contract: Contract,
    notes: Notes,
) -> None:
    """The declared 16-bit dtypes, with scores as they are and with scores up to 15."""
    if not contract.dtypes or notes.findings:
        return
    usual = inputs[0][0]
    case = _case(subject, usual, fed, contract)
    if case is None:
        return
    # Projections with a bias do not scale with the input, hence a second step.
    large = usual * (LARGE / _largest(case)) ** 0.5
    large = large * (LARGE / _largest(_case(subject, large, fed, contract) or case)) ** 0.5

    def run(given: Tensor) -> Tensor:
        return subject.within(given.dtype, given)

    for x, what in (
        (usual, "with scores as they usually are"),
        (large, f"with scores up to {LARGE:g}"),
    ):
        target = subject(x).detach()
        case = _case(subject, x, fed, contract) or case
        plain = partial(lost_by_plain, *_apart(case), case.setting)
        examine_halves(run, plain, (x,), target, contract.dtypes, notes, what)


def _case(subject: Subject, x: Tensor, fed: Tokens, contract: Contract) -> Case | None:
    """One call as a case, read in the likeliest way."""
    ways = cases_of(subject, [(x,)], fed.num_heads, contract, fed.width)
    return ways[0].cases[0].under(contract) if ways else None


def _apart(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with heads apart."""
    if not case.flat:
        return case.query, case.key, case.value
    at = case.setting
    key, value = (RIGHT.split(each, at.num_kv_heads) for each in (case.key, case.value))
    return RIGHT.split(case.query, at.num_heads), key, value


def _largest(case: Case) -> float:
    """The largest score, or how far one is above the mean of its query, whichever is less."""
    query, key, _ = _apart(case)
    at = case.setting
    scores = stages.scores(query, stages.repeat_kv_heads(key, at.num_heads)) * RIGHT.scale(at)
    above = scores - scores.mean(-1, keepdim=True)
    return max(min(scores.max().item(), above.max().item()), 1e-6)


def _folded(explanation: Explanation, spread: tuple[float, float, float], head_dim: int) -> bool:
    """Whether 1/√head_dim is in the weights of the query, or half of it in query and key."""
    assert explanation.mutants is not None
    if [each.code for each in explanation.mutants] != [
        "scale.missing"
    ] or explanation.recipe.after is not RIGHT.after:
        return False
    query, key, usual = spread
    factor = head_dim**-0.5
    if head_dim == 1:
        return True

    # Nearer to folded than to equal: 0.4 of the way, in logarithms.
    if query / key <= factor**0.4 or key / query <= factor**0.4:
        return True
    half = usual * factor**0.5
    return abs(query / half - 1) < 0.1 and abs(key / half - 1) < 0.1


def bank_for(cases: Sequence[Case]) -> Callable[[Contract], list[Mutant]]:
    """The bank for a module of tokens."""
    flat = cases[0].flat

    def make(contract: Contract) -> list[Mutant]:
        masked = bool(contract.causal) or contract.window is not None
        return bank(contract, given=False, flat=flat, masked=masked)

    return make
