"""The examination of a module of tokens and a mask of which of them are real."""

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking.common import examine_inputs
from clearhead.checking.contract import Contract
from clearhead.checking.feeding import Tokens, feed, runs
from clearhead.checking.from_tokens import examine_tokens
from clearhead.checking.judging import judge_explained
from clearhead.checking.matching import Explanation, explain, follows
from clearhead.checking.notes import Notes
from clearhead.checking.probes import padding
from clearhead.checking.readings import cases_of
from clearhead.checking.references import bank
from clearhead.checking.subject import Subject

NAMES = ("x", "mask")
FIX = "hide padding keys from every query: scores.masked_fill(~mask[:, None, None, :], -torch.inf)"


def examine_padded(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """First without padding, as any module of tokens; then with it."""
    subject.beside = lambda x: (torch.ones(x.shape[:2], dtype=torch.bool),)
    fed = feed(subject, contract)
    used = {"d_in": fed.width, "num_heads": fed.num_heads or 1}
    if not runs(subject, fed, fed.draw(fed.lengths[0], seed), notes):
        return used
    _examine_padding(subject, fed, contract, notes, seed)
    sound = not notes.findings
    examine_inputs(subject, _padded(fed, seed), NAMES, notes)
    return examine_tokens(subject, contract, notes, seed) if sound else used


def _examine_padding(
    subject: Subject, fed: Tokens, contract: Contract, notes: Notes, seed: int
) -> None:
    x, mask = _padded(fed, seed)
    whole = subject(x, mask)
    generator = torch.Generator().manual_seed(seed)
    measured = padding.measure(subject, x, mask, generator)
    if not whole[mask].isfinite().all() and not notes.findings:
        _judge_broken(subject, fed, contract, notes, seed)
    elif measured.alone < 1e-5:
        notes.right("padding")
    elif not _read(subject, fed, contract, notes, seed):
        _judge_padding(measured, notes)
    if contract.padded_queries == "zero" and not measured.queries_zero:
        notes.found(
            "mask.padding-ignored",
            "the outputs of padding tokens are not zero, as declared",
            likely="output * mask[..., None] at the end",
            follows_from=notes.cause,
        )
    if measured.alone < 1e-5:
        with subject.spare():
            _examine_nan(subject, x, mask, contract, notes)
    _tell_empty(subject, x, mask, contract, notes)


def _padded(fed: Tokens, seed: int) -> tuple[Tensor, Tensor]:
    tokens = fed.lengths[0]
    x = fed.draw(tokens, seed + 3, batch=3)
    lengths = torch.tensor([max(tokens - less, 2) for less in (1, 3, 4)])
    return x, torch.arange(tokens) < lengths[:, None]


def _read(subject: Subject, fed: Tokens, contract: Contract, notes: Notes, seed: int) -> bool:
    """Name the mistake by a mutant on the module's own projections, if it can be read."""
    x, mask = _padded(fed, seed)
    inputs = [(x, mask), (fed.draw(x.shape[1], seed + 5, batch=3), mask.roll(1, 0))]
    before = [finding.code for finding in notes.findings]
    for way in cases_of(subject, inputs, fed.num_heads, contract, fed.width, padded=True):
        if follows(way.cases, way.contract) is not None:
            return False
        explanation = explain(
            way.cases,
            way.contract,
            lambda c: bank(c, given=True, flat=True, masked=True),
            pairs=False,
        )
        if not explanation.mutants:
            continue
        _rename(notes, way.cases, explanation)
        return len(notes.findings) > len(before)
    return False


def _rename(notes: Notes, cases: list, explanation: Explanation) -> None:  # type: ignore[type-arg]
    """A mask of padding that has no effect has a name of its own."""
    assert explanation.mutants is not None
    named = tuple(
        replace(
            each, code="mask.padding-ignored", detail="padding tokens are attended to", likely=FIX
        )
        if each.code == "mask.missing"
        else each
        for each in explanation.mutants
    )
    mine = Notes()
    judge_explained(mine, cases, replace(explanation, mutants=named))
    for finding in mine.findings:
        if finding.code not in notes.codes:
            notes.findings.append(finding)


def _judge_padding(measured: padding.Padded, notes: Notes) -> None:
    """Name the mistake by what moves what."""
    text = f"each row alone differs from its padded batch by up to {measured.alone:.3g}"
    if measured.ignored:
        notes.found(
            "mask.padding-ignored",
            "the mask changes nothing: padding tokens are attended to",
            text,
            FIX,
        )
    elif measured.by_padding and not measured.by_real:
        notes.found(
            "mask.inverted",
            "the mask is read the other way round: padding is seen, real tokens are hidden",
            text,
            "here True is a real token; PyTorch's key_padding_mask wants the padding: ~mask",
        )
    elif measured.by_other:
        notes.found(
            "mask.batch-mixed",
            "the mask of one sample moves the output of another",
            text,
            "keep the batch axis of the mask: mask[:, None, None, :]",
        )
    elif measured.by_padding:
        notes.found(
            "mask.padding-ignored",
            "padding tokens are attended to, and less than real ones: which of the names it is does "
            "not show from outside, since all of them let padding through",
            text,
            FIX,
            ("mask.multiplied", "mask.added-as-number", "mask.after-softmax"),
        )
    else:
        notes.found("differs", "a row alone differs from the row in its padded batch", text)


def _judge_broken(
    subject: Subject, fed: Tokens, contract: Contract, notes: Notes, seed: int
) -> None:
    if _read(subject, fed, contract, notes, seed):
        return
    notes.found(
        "mask.non-finite",
        "NaN or infinity comes out where tokens are padded",
        "with all tokens real the output is finite",
        "0 · inf is NaN: masked_fill instead of a product with -inf",
    )


def _examine_nan(
    subject: Subject, x: Tensor, mask: Tensor, contract: Contract, notes: Notes
) -> None:
    """Whether a NaN in a padding token reaches real outputs."""
    spoilt = x.masked_fill(~mask[..., None], torch.nan)
    if subject(spoilt, mask)[mask].isfinite().all():
        notes.right("NaN in padding stays there")
    elif contract.nan_safe:
        notes.found(
            "mask.leaks-nan",
            "a NaN in a padding token reaches real outputs",
            "all padding tokens are NaN",
            "0 · NaN is NaN: hide the scores with torch.where, and replace hidden values by 0",
        )
    else:
        notes.tell("a NaN in a padding token reaches real outputs")


def _tell_empty(
    subject: Subject, x: Tensor, mask: Tensor, contract: Contract, notes: Notes
) -> None:
    """A sample of padding only."""
    nothing = mask.clone()
    nothing[-1] = False
    try:
        rows = subject(x, nothing)[-1]
    except Exception:  # to refuse it is as good
        return
    broken = not rows.isfinite().all()
    if contract.empty_row is not None and broken:
        notes.found(
            "mask.empty-row",
            f"a sample of padding only gives NaN, and {contract.empty_row} is declared",
            f"{int((~rows.isfinite()).sum())} of {rows.numel()} numbers are not finite",
            "weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) after the softmax",
        )
    elif broken:
        notes.tell("a sample of padding only gives NaN")
