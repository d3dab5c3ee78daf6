"""Who moves whom in a module of tokens, held against the contract and against each mistake."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking import signatures
from clearhead.checking.contract import Contract
from clearhead.checking.feeding import Tokens
from clearhead.checking.judging import say_mask_right
from clearhead.checking.matching import Explanation, window_of
from clearhead.checking.notes import Notes
from clearhead.checking.probes import constant, dependency, equivariance
from clearhead.checking.probes.dependency import Dependency
from clearhead.checking.recipes import RIGHT, Setting
from clearhead.checking.references import bank
from clearhead.checking.report import drawn
from clearhead.checking.subject import Subject


def measured_dependency(subject: Subject, main: Tensor, fed: Tokens, seed: int) -> Dependency:
    """Who moves whom."""
    threshold = 1e-8 if subject.dtype == torch.float64 else 1e-5
    generator = torch.Generator().manual_seed(seed)
    batched = main[None] if fed.plain else main
    return dependency.measure(batching(subject, fed), batched, generator, threshold)


def batching(subject: Subject, fed: Tokens) -> Callable[[Tensor], Tensor]:
    return lambda x: subject(x[0])[None] if fed.plain else subject(x)


def with_window(measured: Dependency, contract: Contract, notes: Notes) -> Contract:
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
    run, generator = batching(subject, fed), torch.Generator().manual_seed(seed)
    if measured.mixed and "softmax.axis" not in notes.codes:
        _found_mixed(measured, notes)
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
    _judge_signature(run, batched, measured, at, contract, notes, seed)
    return contract


def _found_mixed(measured: Dependency, notes: Notes) -> None:
    own = torch.eye(*measured.moves.shape, dtype=torch.bool)
    sentence = "one sample moves another"
    likely = "an axis is taken for the batch, or a sum, norm or view goes over it"
    if not (measured.moves & ~own).any():
        sentence += ", and no token another: it attends over the first axis"
        likely = (
            "(tokens, batch, dim) is wanted: nn.MultiheadAttention(…, batch_first=True). What takes "
            "the tokens first on purpose is checked so: lambda x: attention(x.transpose(0, 1))"
            ".transpose(0, 1)"
        )
    notes.found(
        "batch.mixed",
        sentence,
        "a token of the last sample was changed, and another sample's output moved",
        likely,
    )


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
    try:
        spread = constant.measure(run, x[0, 0], (tokens, tokens - 1))
        even = spread > 1e-4 and constant.grows_evenly(run, x[0, 0], tokens)
    except Exception:  # one length is all that it takes
        return
    if even and contract.sinks is None and notes.unnamed:
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


def _judge_signature(
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    measured: Dependency,
    at: Setting,
    contract: Contract,
    notes: Notes,
    seed: int,
) -> None:
    picture = _picture(measured)
    flat = (at.num_heads or 1) > 1
    found = signatures.mutants(
        measured, at, contract, lambda c: bank(c, given=False, flat=flat, masked=True), seed
    )
    if len(found) > 1 and not measured.broken.any():
        # Equal tokens tell apart what the weights sum to.
        seen = constant.profile(run, x[-1, 0], at.query_len)
        totals = [signatures.sums(mutant, at, contract) for mutant in found]
        fitting = [
            mutant
            for mutant, total in zip(found, totals, strict=True)
            if total is not None and signatures.proportional(seen, total - total[0])
        ]
        unknown = [
            mutant
            for mutant, total in zip(found, totals, strict=True)
            if total is None or not total.isfinite().all()
        ]
        found = fitting or unknown or found
    codes = list(dict.fromkeys(mutant.code for mutant in found if mutant.code != "differs"))
    if codes:
        first = found[0]
        sentence = first.detail
        if len(codes) > 1:
            sentence += (
                "; the other names do the same to what can be measured here, the dependencies"
            )
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
    expected = signatures.predicted(RIGHT.styled("zero"), at._replace(contract=contract), seed)
    if expected is not None and not (measured.moves & ~expected.moves).any():
        # A weight can be too small to be felt.
        notes.tell(f"some outputs do not move with tokens that they may see:\n{picture}")
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
            sentence = f"{finding.sentence}: {_in_words(measured)}"
            notes.findings[index] = replace(finding, sentence=sentence, measured=_picture(measured))
            return


def _picture(measured: Dependency) -> str:
    """Which outputs move with which tokens, drawn."""
    size = f"{measured.moves.shape[0]} × {measured.moves.shape[1]}"
    marks = ["● moves"] * bool(measured.moves.any())
    marks += ["○ its own query"] * bool(measured.moves.diagonal().any())
    marks += ["· does not"] * bool(not measured.moves.all())
    marks += ["× NaN"] * bool(measured.broken.any())
    return f"{size} dependency, {'  '.join(marks)}\n{drawn(measured.cells(), own=True)}"


def _in_words(measured: Dependency) -> str:
    """What the first output moves with, and which outputs are broken."""
    broken = measured.broken.nonzero().flatten().tolist()
    first = next(index for index in range(len(measured.broken)) if index not in broken)
    tokens = [each for each in measured.moves[first].nonzero().flatten().tolist() if each != first]
    if len(tokens) > 2 and tokens[-1] - tokens[0] == len(tokens) - 1:
        some = f"tokens {tokens[0]}…{tokens[-1]}"
    else:
        some = f"token{'s' if len(tokens) > 1 else ''} {', '.join(map(str, tokens))}"
    words = (
        f"output {first} moves with {some}" if tokens else f"no other token moves output {first}"
    )
    if broken:
        words += f", output {', '.join(map(str, broken))} is NaN"
    return words


def examine_nan(
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    measured: Dependency,
    declared: bool | None,
    notes: Notes,
) -> None:
    """Whether a NaN in a token reaches outputs that do not move with it."""
    token = x.shape[1] - 1
    blind = ~measured.moves[:, token] & ~measured.broken
    if not blind.any():
        return
    spoilt = x.clone()
    spoilt[:, token] = torch.nan
    if run(spoilt).detach()[:, blind].isfinite().all():
        notes.right("NaN behind the mask stays there")
    elif declared:
        notes.found(
            "mask.leaks-nan",
            "a NaN in a hidden token reaches outputs that do not see it",
            f"token {token} is NaN; of the outputs {blind.nonzero().flatten().tolist()} some are",
            "0 · NaN is NaN: hide the scores with torch.where, and replace hidden values by 0",
        )
    else:
        notes.tell("a NaN in a hidden token reaches outputs that do not see it")
