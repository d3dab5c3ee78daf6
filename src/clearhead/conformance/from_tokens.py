"""The examination of a module, or a function, of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.conformance import signatures
from clearhead.conformance.common import (
    examine_gradients,
    examine_inputs,
    examine_repetition,
    examine_training,
)
from clearhead.conformance.contract import Contract
from clearhead.conformance.judging import (
    difference,
    judge_explained,
    judge_returned,
    say_mask_right,
)
from clearhead.conformance.matching import Case, Explanation, explain, follows, window_of
from clearhead.conformance.notes import Notes
from clearhead.conformance.probes import constant, dependency, equivariance
from clearhead.conformance.promises import examine_halves
from clearhead.conformance.probes.dependency import Dependency
from clearhead.conformance.readings import cases_of
from clearhead.conformance.recipes import RIGHT, Setting
from clearhead.conformance.references import bank
from clearhead.conformance.references.base import Mutant
from clearhead.conformance.report import drawn
from clearhead.conformance.sizes import found, longest, promised_length, width_in
from clearhead.conformance.states import (
    examine_globals,
    examine_sibling,
    examine_state,
    judge_scale_from_outside,
)
from clearhead.conformance.subject import Subject
from clearhead.errors import ModelError

NAMES = ("x", "context")
SPREAD = 2.0


@dataclass
class Tokens:
    """How a subject is fed: the width of a token, the lengths, and what was found of its heads."""

    width: int
    lengths: list[int]
    num_heads: int | None
    longest: int | None
    plain: bool

    def draw(self, tokens: int, seed: int, batch: int = 2) -> Tensor:
        """(batch, tokens, width), or (tokens, width) for a subject without a batch."""
        generator = torch.Generator().manual_seed(seed)
        shape = (tokens, self.width) if self.plain else (batch, tokens, self.width)
        return SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64)


def examine_tokens(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """Everything that can be asked of f(x)."""
    fed = feed(subject, contract)
    main = fed.draw(fed.lengths[0], seed)
    if not runs(subject, fed, main, notes):
        return {"d_in": fed.width}
    if not examine_repetition(subject, (main,), notes):
        return {"d_in": fed.width}
    inputs = [(each,) for each in _inputs(subject, fed, seed)]
    measured = measured_dependency(subject, main, fed, seed)
    contract = _with_window(measured, contract, notes)
    explanation = judge_reading(subject, inputs, fed, contract, notes)
    judge_dependency(subject, main, measured, fed, contract, explanation, notes, seed)
    if explanation is not None and subject.module is not None:
        _judge_outside(subject, inputs, fed, contract, explanation, notes)
        _examine_halves(subject, inputs, fed, explanation.contract, notes)
    examine_inputs(subject, (main,), NAMES[:1], notes)
    examine_gradients(subject, (main[..., :4, :],), NAMES[:1], notes, seed)
    constant = main[..., :1, :].expand_as(main).contiguous()
    examine_training(subject, (main,), (constant,), contract, notes)
    examine_state(subject, fed.width, promised_length(subject, contract), fed.plain, notes, seed)
    return {"d_in": fed.width, "num_heads": fed.num_heads or 1}


def feed(subject: Subject, contract: Contract) -> Tokens:
    """The sizes to feed it with.

    Raises:
        ModelError: code `check.width`, if the width of a token cannot be found.
    """
    width = width_in(subject, contract)
    if width is None:
        width = _tried_width(subject)
    if width is None:
        raise ModelError(
            "check.width",
            f"{subject.name} does not say how wide a token is; give it: sizes=dict(d_in=…).",
        )
    limit = longest(subject, contract)
    lengths = (
        [7, 5, 11, 1]
        if limit is None
        else sorted({min(7, limit), min(5, limit), limit}, reverse=True)
    )
    if limit is not None:
        lengths = sorted({min(each, limit) for each in (7, 5, 2)}, key=lambda n: abs(n - 7))
    heads = found("num_heads", subject, contract)
    return Tokens(width, lengths, heads, limit, subject.takes == "x2d")


def _tried_width(subject: Subject) -> int | None:
    for width in (*range(1, 17), 32, 64, 128, 256, 512, 768):
        shape = (3, width) if subject.takes == "x2d" else (2, 3, width)
        try:
            subject(torch.zeros(shape, dtype=torch.float64))
        except Exception:  # a wrong width raises whatever it raises
            continue
        return width
    return None


def _inputs(subject: Subject, fed: Tokens, seed: int) -> list[Tensor]:
    """One input for each length that the subject takes, the main one first."""
    made = []
    for index, tokens in enumerate(fed.lengths):
        x = fed.draw(tokens, seed + index, batch=2 + (index % 2))
        try:
            output = subject(x)
        except Exception:  # another length is not owed
            continue
        if output.shape[:-1] == x.shape[:-1]:
            made.append(x)
    return made


def runs(subject: Subject, fed: Tokens, main: Tensor, notes: Notes) -> bool:
    """Whether it can be called at all; two mistakes show in that it cannot."""
    try:
        output = subject(main)
    except Exception as error:
        if examine_globals(subject, error, notes):
            return False
        try:
            subject.use(torch.float32)
            output = subject(main)
        except Exception:
            subject.use(torch.float64)
            if _square_works(subject, main, notes, error):
                return False
            raise ModelError(
                "check.call",
                f"{subject.name} was called with takes={subject.takes!r}, x {list(main.shape)}, and "
                f"raised {type(error).__name__}: {error}\n"
                "If it needs other sizes, give them: sizes=dict(d_in=…, context_length=…).",
            ) from error
    if output.ndim != main.ndim or output.shape[:-1] != main.shape[:-1]:
        raise ModelError(
            "check.output",
            f"{subject.name} must give a vector for each token; from x {list(main.shape)} it gave "
            f"{list(output.shape)}.",
        )
    return True


def _square_works(subject: Subject, main: Tensor, notes: Notes, error: Exception) -> bool:
    """Whether the same class works where d_out = d_in."""
    args = dict(subject.args or {})
    pair = [next((n for n in names if n in args), None) for names in WIDTHS]
    wide, narrow = pair
    if wide is None or narrow is None or args[wide] == args[narrow]:
        return False
    try:
        subject.sibling({**args, narrow: args[wide]})(main)
    except Exception:
        return False
    notes.found(
        "shape.square-only",
        f"it works only where {narrow} = {wide}",
        f"{wide}={args[wide]}, {narrow}={args[narrow]}: {type(error).__name__}: "
        f"{str(error).splitlines()[0]}",
        "a layer or a view takes one width for the other",
    )
    return True


WIDTHS = (("d_in", "input_dim", "in_dim"), ("d_out", "output_dim", "out_dim"))


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
    for pairs in (False, True):
        for way in ways[:1] if pairs else [each for each in ways if each.sure]:
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
    error = found.error
    if way.plain and way.sure:
        # Nothing but the projections has weights, so that nothing else can be meant; still, what
        # the dependencies say comes first.
        case = max(way.cases, key=lambda each: each.under(found.contract).error(RIGHT))
        notes.unnamed = difference(case.under(found.contract))
    notes.skip(
        f"scale, softmax and heads: it is not the definition on its own projections (by {error:.2g}); "
        "it may do more than attend"
    )
    return None


def _judge_outside(
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
    x = inputs[0][0]
    ways = cases_of(subject, inputs[:1], fed.num_heads, contract, fed.width)
    if not contract.dtypes or not ways or notes.findings:
        return
    case = ways[0].cases[0]
    size = (case.query.norm(dim=-1).max() * case.key.norm(dim=-1).max()).item()
    size *= RIGHT.scale(case.setting) / case.setting.num_heads
    for factor, what in (
        (1.0, "with scores as they usually are"),
        ((15 / size) ** 0.5, "with scores up to 15"),
    ):
        target = subject(x * factor).detach()

        def run(given: Tensor) -> Tensor:
            kept = subject.dtype
            subject.use(given.dtype)
            try:
                return subject(given)
            finally:
                subject.use(kept)

        examine_halves(run, None, (x * factor,), target, contract.dtypes, notes, what)


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


def measured_dependency(subject: Subject, main: Tensor, fed: Tokens, seed: int) -> Dependency:
    """Who moves whom."""
    threshold = 1e-8 if subject.dtype == torch.float64 else 1e-5
    generator = torch.Generator().manual_seed(seed)
    batched = main[None] if fed.plain else main
    return dependency.measure(_batching(subject, fed), batched, generator, threshold)


def _batching(subject: Subject, fed: Tokens) -> Callable[[Tensor], Tensor]:
    return lambda x: subject(x[0])[None] if fed.plain else subject(x)


def _with_window(measured: Dependency, contract: Contract, notes: Notes) -> Contract:
    """The contract, with a window that nobody declared, if the dependencies are those of one."""
    if contract.window is not None or measured.broken.any():
        return contract
    window = window_of(measured.moves)
    if window is None or (contract.causal and window[1]):
        return contract
    notes.tell(f"a window of {window[0]} tokens back and {window[1]} ahead")
    return replace(contract, window=window, causal=window[1] == 0 or contract.causal)


def judge_dependency(
    subject: Subject,
    main: Tensor,
    measured: Dependency,
    fed: Tokens,
    contract: Contract,
    explanation: Explanation | None,
    notes: Notes,
    seed: int,
) -> Contract:
    """Who moves whom, held against the contract, and against what each mistake would do."""
    batched = main[None] if fed.plain else main
    run, generator = _batching(subject, fed), torch.Generator().manual_seed(seed)
    if measured.mixed and "softmax.axis" not in notes.codes:
        notes.found(
            "batch.mixed",
            "one sample moves another",
            "a token of the last sample was changed, and another sample's output moved",
            "an axis is taken for the batch, or a sum, norm or view goes over it",
        )
    at = Setting(
        contract, 1, fed.num_heads or 1, fed.num_heads or 1, main.shape[-2], main.shape[-2], 1, 1
    )
    options = (
        [contract]
        if contract.causal is not None
        else [replace(contract, causal=c) for c in (False, True)]
    )
    for option in options:
        if signatures.right(measured, at, option, seed):
            if explanation is None:
                say_mask_right(notes, option)
                _judge_unread(run, batched, option, notes, generator)
            if contract.causal is None:
                notes.tell(f"causal={option.causal}")
            return option
    if explanation is not None:
        if not measured.broken.all():
            _add_drawing(notes, measured)
        return explanation.contract
    if contract.causal is None:
        notes.tell(f"the dependencies are neither full nor causal:\n{drawn(measured.cells())}")
        return options[0]
    _judge_signature(measured, at, contract, notes, seed)
    return contract


def _judge_unread(
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    contract: Contract,
    notes: Notes,
    generator: torch.Generator,
) -> None:
    """What can be said of a module with right dependencies that is not understood further."""
    tokens = x.shape[1]
    if tokens < 3:
        return
    order = equivariance.measure(run, x, bool(contract.causal), generator)
    if order > 1e-5:
        notes.tell("the order of the tokens matters: it has positions of some kind")
        return
    spread = constant.measure(run, x[0, 0], (tokens, tokens - 1))
    if spread > 1e-4 and contract.sinks is None and notes.unnamed:
        notes.found(
            "softmax.missing",
            "the weights of a query do not sum to one",
            f"for equal tokens the outputs differ by up to {spread:.3g} of the largest number",
            "weights = torch.softmax(scores, dim=-1)",
        )
    elif spread > 1e-4:
        notes.tell(
            "equal tokens get different outputs, though it has no positions: weights that do not sum to one, or sinks"
        )
    elif notes.unnamed:
        notes.found(
            "differs",
            "it is not the definition on its own projections, and no known mistake gives it",
            notes.unnamed,
        )


def _judge_signature(
    measured: Dependency, at: Setting, contract: Contract, notes: Notes, seed: int
) -> None:
    head = f"{measured.moves.shape[0]} × {measured.moves.shape[1]} dependency, ● moves  · does not  × NaN"
    picture = f"{head}\n{drawn(measured.cells())}"
    flat = (at.num_heads or 1) > 1
    found = signatures.mutants(
        measured, at, contract, lambda c: bank(c, given=False, flat=flat, masked=True), seed
    )
    codes = list(dict.fromkeys(mutant.code for mutant in found if mutant.code != "differs"))
    if codes:
        first = found[0]
        sentence = first.detail
        if len(codes) > 1:
            sentence += "; the other names do the same to the dependencies"
        notes.found(codes[0], sentence, picture, first.likely, tuple(codes[1:4]))
        return
    if measured.broken.any():
        notes.found(
            "mask.non-finite",
            "NaN or infinity comes out of a legal input",
            picture,
            "0 · inf and inf − inf are NaN: fill with masked_fill",
        )
        return
    notes.found(
        "differs",
        "the outputs do not move with the tokens that the contract lets them see",
        picture,
    )


def _add_drawing(notes: Notes, measured: Dependency) -> None:
    """The measured dependencies, for a mistake of the mask."""
    for index, finding in enumerate(notes.findings):
        if finding.code.startswith("mask.") and finding.follows_from is None:
            size = f"{measured.moves.shape[0]} × {measured.moves.shape[1]}"
            head = "dependency, ● moves  · does not  × NaN"
            text = f"{size} {head}\n{drawn(measured.cells())}"
            sentence = f"{finding.sentence}: {_in_words(measured)}"
            notes.findings[index] = replace(finding, sentence=sentence, measured=text)
            return


def _in_words(measured: Dependency) -> str:
    """What the first output moves with, and which outputs are broken."""
    broken = measured.broken.nonzero().flatten().tolist()
    first = next(index for index in range(len(measured.broken)) if index not in broken)
    tokens = measured.moves[first].nonzero().flatten().tolist()
    if len(tokens) > 2 and tokens[-1] - tokens[0] == len(tokens) - 1:
        some = f"tokens {tokens[0]}…{tokens[-1]}"
    else:
        some = f"token{'s' if len(tokens) > 1 else ''} {', '.join(map(str, tokens))}"
    words = f"output {first} moves with {some}" if tokens else f"nothing moves output {first}"
    if broken:
        words += f", output {', '.join(map(str, broken))} is NaN"
    return words
