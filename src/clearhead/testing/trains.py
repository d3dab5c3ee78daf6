"""The laws of training as a report, and as an assertion."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool
from clearhead._common.hints import with_hints
from clearhead._text import raised_words, shown
from clearhead.checking import Finding, Report
from clearhead.checking.subject.subject import undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, ModelError
from clearhead.recording.attempt import attempt
from clearhead.testing.training.script import Script, is_whole
from clearhead.testing.training.script_calls import NotAskedError, NotJudgedError, ScriptCalls
from clearhead.testing.training.training_laws import LAWS

# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True

CODES = tuple(LAWS)
# Names that a batch has for the tokens that are predicted, the likeliest first.
IDS = ("decoder_input_ids", "input_ids", "ids")
# The parts of a script: what an error calls the type of each, and whether something is of it.
PARTS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "model": ("an nn.Module", lambda given: isinstance(given, nn.Module)),
    "optimizer": (
        "a torch.optim.Optimizer",
        lambda given: isinstance(given, torch.optim.Optimizer),
    ),
    "loss": ("a function", callable),
} | dict.fromkeys(
    ("save", "load", "accumulate"),
    ("a function or None", lambda given: given is None or callable(given)),
)


@with_hints
def check_training(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Tensor | Mapping[str, Any],
    *,
    causal: bool = True,
    ids: str | None = None,
    padding: str | int | None = None,
    documents: str | int | None = None,
    state: Mapping[str, Any] | None = None,
    save: Callable[..., Any] | None = None,
    load: Callable[..., None] | None = None,
    accumulate: Callable[[Any, list[Any]], None] | None = None,
    skip: Mapping[str, str] | None = None,
) -> Report:
    """Return a report on the laws of training of a script: whether it trains, and learns only what it should.

    All of this runs on copies, and some copies are trained: model, optimizer, generators and mode are as
    they were. One step is `zero_grad`, `loss(model, batch).backward()`, `optimizer.step()` and a
    step of each scheduler in `state`.

    Args:
        model: with its first weights, as `loss` calls it; its output, or what that calls `logits`, is
            (batch, tokens, vocabulary), or (batch, classes).
        loss: loss(model, batch), one number as a tensor. It calls the model that it is given.
        optimizer: of the model's parameters.
        batch: ids (batch, tokens), or a mapping of tensors, as `loss` takes it; 4 texts of 12 tokens
            are enough.
        causal: whether the logits at a token predict the next one; False for an encoder.
        ids: the entry of the batch that is predicted, the decoder's; None looks for it by its name.
        padding: the entry that is True at real tokens, (batch, tokens), or the id of padding.
        documents: the entry that numbers the documents of packed texts, (batch, tokens), or the id
            that ends one.
        state: what else is saved, by names: schedulers, a scaler, generators.
        save: `save(model, optimizer, **state)` returns a checkpoint; None saves what has a state_dict.
        load: `load(saved, model, optimizer, **state)` restores that checkpoint; None loads what has a state_dict.
        accumulate: accumulate(model, batches), the backward passes of several batches in one step.
        skip: the codes that are not asked, each with the reason.

    Raises:
        ArgumentError, ArgumentTypeError: codes `trains.…`, for a script that makes no sense.
        ModelError: code `trains.copy` if it cannot be copied, `trains.call` if the loss raises.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
        >>> def loss(model, ids):
        ...     return torch.nn.functional.cross_entropy(model(ids).mT, ids)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> report = ch.testing.check_training(model, loss, optimizer, torch.arange(24).view(3, 8) % 9)
        >>> report.findings[0].code
        'train.target'
    """
    skip, state = dict(skip or {}), dict(state or {})
    parts = {"model": model, "loss": loss, "optimizer": optimizer, "state": state}
    parts |= {"save": save, "load": load, "accumulate": accumulate}
    for name, (kind, is_right) in PARTS.items():
        if not is_right(parts[name]):
            raise ArgumentTypeError(
                "trains.part", f"{name} must be {kind}; got {shown(parts[name])}."
            )
    if (save is None) != (load is None):
        raise ArgumentError("trains.load", "save and load go together; one of them was given.")
    check_bool("causal", causal)
    script = Script(parts, batch, _entry(batch, ids), causal, padding, documents)
    for name, each in (("padding", padding), ("documents", documents)):
        if each is not None and type(each) is not int and each not in list(script.entries):
            raise ArgumentError(
                "trains.entry",
                f"{name} must be an id, or name an entry of the batch; got {shown(each)}, and the batch has "
                f"{', '.join(map(shown, script.entries))}.",
            )
    unknown = [code for code in skip if code not in CODES]
    if unknown:
        raise ArgumentError(
            "trains.skip", f"skip knows {', '.join(CODES)}; got {', '.join(map(shown, unknown))}."
        )
    with undisturbed():
        calls = ScriptCalls(script)
        _, error = attempt(_called, calls)
        if isinstance(error, ClearheadError):
            raise error
        if error is not None:
            words = f"loss(model, batch) cannot be taken: {raised_words(error)}"
            raise ModelError("trains.call", words) from error
        return _report(calls, skip)


@with_hints
def assert_trains(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Tensor | Mapping[str, Any],
    *,
    allow_unverified: bool = False,
    **declared: Any,
) -> None:
    """Raise an AssertionError with the report of `check_training` as its text, unless no law is broken.

    Args:
        model: as for `check_training`.
        loss: as for `check_training`.
        optimizer: as for `check_training`.
        batch: as for `check_training`.
        allow_unverified: do not fail for a law that is not judged; a broken one fails all the same.
        declared: as for `check_training`.

    Raises:
        AssertionError: a law is broken, or one that applies could not be judged.
        ClearheadError: what `check_training` raises.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
        >>> def loss(model, ids):
        ...     return torch.nn.functional.cross_entropy(model(ids).mT, ids)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> ch.testing.assert_trains(model, loss, optimizer, torch.arange(24).view(3, 8) % 9)
        Traceback (most recent call last):
        ...
        AssertionError: Sequential
        ✗ train.target   the target of a token is not the token after the last one it sees...
    """
    report = check_training(model, loss, optimizer, batch, **declared)
    if report.findings or (report.unverified and not allow_unverified):
        raise AssertionError(f"{report.name}\n{report}")


@cache
def sentences() -> Mapping[str, Mapping[str, str]]:
    """Return the sentences of training_laws.toml, by code and then by kind: "held", "broken", "likely" (cached)."""
    file = resources.files("clearhead.testing.training").joinpath("training_laws.toml")
    return tomllib.loads(file.read_text("utf-8"))


def _called(calls: ScriptCalls) -> None:
    """Call the loss once, forward and backward, which fills the cache of `calls.base`; the gradients are dropped."""
    calls.base.loss.backward(retain_graph=True)
    calls.rehearsal.model.zero_grad()


def _report(calls: ScriptCalls, skip: Mapping[str, str]) -> Report:
    """Return the report of all laws.

    A law is skipped, with the reason, if it is in `skip` or raises NotAskedError; any other error makes it unverified.
    It passes if nothing was measured.
    """
    findings, passed, skipped, unverified = [], [], [], []
    for code, law in LAWS.items():
        words = sentences()[code]
        measured, error = (None, None) if code in skip else attempt(law, calls)
        if code in skip or isinstance(error, NotAskedError):
            skipped.append(f"{code}: {skip.get(code, error)}")
        elif error is not None:
            reason = str(error) if isinstance(error, NotJudgedError) else raised_words(error)
            unverified.append(f"{code}: {reason}")
        elif measured:
            findings.append(Finding(code, words["broken"], _listed(measured), words["likely"]))
        else:
            passed.append(words["held"])
    return Report(
        type(calls.script.parts["model"]).__name__,
        tuple(findings),
        tuple(passed),
        skipped=tuple(skipped),
        unverified=tuple(unverified),
    )


def _listed(measured: str | Sequence[str]) -> str:
    """Return what a law measured as text: of a list of names their number, and at most four of them."""
    if isinstance(measured, str):
        return measured
    shorter = [*measured[:4], *[f"{len(measured) - 4} more"] * (len(measured) > 4)]
    return f"{len(measured)}: {', '.join(shorter)}"


def _entry(batch: Any, ids: str | None) -> str | None:
    """Return the name of the batch's entry that is predicted; None for a batch that is the ids themselves.

    It is `ids`, else a usual name, else the only tensor of integers with two axes. Raises ArgumentTypeError if the
    batch is neither a tensor nor a mapping (or is a tensor, and `ids` is given), and ArgumentError if no entry fits.
    """
    is_ids = isinstance(batch, Tensor) and ids is None
    if not is_ids and not isinstance(batch, Mapping):
        raise ArgumentTypeError(
            "trains.batch",
            "batch must be ids (batch, tokens), or a mapping of tensors by name; got "
            f"{shown(type(batch).__name__)}. Name what is in a tuple, and take it apart in the loss.",
        )
    entries: Any = {None: batch} if is_ids else batch
    fitting = [
        name
        for name, each in entries.items()
        if isinstance(each, Tensor) and each.ndim == 2 and is_whole(each) and each.numel()
    ]
    usual = [name for name in IDS if name in fitting] or (fitting if len(fitting) == 1 else [])
    found = next(iter(usual), None) if ids is None else ids
    if found not in fitting:
        raise ArgumentError(
            "trains.ids",
            f"ids must name the entry that is predicted, whole numbers (batch, tokens); got {shown(ids)}, "
            f"and the batch has {', '.join(map(shown, fitting)) or 'none'}.",
        )
    return found
