"""The laws of training as a report, and as an assertion."""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool
from clearhead._common.hints import with_hints
from clearhead._text import raised_words, shown
from clearhead.checking import Finding, Report
from clearhead.checking.subject.subject import undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, ModelError
from clearhead.recording.attempt import attempt
from clearhead.testing.training.script import FUNCTIONS, Script, is_whole
from clearhead.testing.training.script_calls import NotAskedError, NotJudgedError, ScriptCalls
from clearhead.testing.training.training_laws import LAWS, NOTES

# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True

CODES = (*LAWS, *NOTES)
# Names that a batch has for the tokens that are predicted, the likeliest first.
IDS = ("decoder_input_ids", "input_ids", "ids")
# What an error calls the type of an argument, and the types that it may have.
TYPES = {
    "model": ("an nn.Module", nn.Module),
    "optimizer": ("a torch.optim.Optimizer", torch.optim.Optimizer),
}


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
    _check_parts(parts)
    script = Script(parts, batch, _entry(batch, ids), causal, padding, documents)
    _check_batch(script)
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
        answers = [_asked(code, calls, skip) for code in LAWS]
        # What cannot be measured is not noted.
        noted = [attempt(note, calls)[0] for code, note in NOTES.items() if code not in skip]
    found = [each for each in answers if each.state == "found"]

    def reasons(state: str) -> tuple[str, ...]:
        """Return code and words of the answers with this state."""
        return tuple(f"{each.code}: {each.words}" for each in answers if each.state == state)

    return Report(
        name=type(model).__name__,
        findings=tuple(
            Finding(each.code, each.words, each.measured, sentences()[each.code]["likely"])
            for each in found
        ),
        passed=tuple(each.words for each in answers if each.state == "clear"),
        told=tuple(note for note in noted if note),
        skipped=reasons("not asked"),
        unverified=reasons("not judged"),
    )


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


class Answer(NamedTuple):
    """The answer of a law: `state` is "clear", "found", "not judged" or "not asked".

    `words` is the sentence of the law, or the reason why it is not judged or asked; `measured` is "" unless found.
    """

    code: str
    state: str
    words: str
    measured: str = ""


@cache
def sentences() -> Mapping[str, Mapping[str, str]]:
    """Return the sentences of training_laws.toml, by code and then by kind: "held", "broken", "likely" (cached)."""
    file = resources.files("clearhead.testing.training").joinpath("training_laws.toml")
    return tomllib.loads(file.read_text("utf-8"))


def _called(calls: ScriptCalls) -> None:
    """Call the loss once, forward and backward, which fills the cache of `calls.base`; the gradients are dropped."""
    calls.base.loss.backward(retain_graph=True)
    calls.rehearsal.model.zero_grad()


def _asked(code: str, calls: ScriptCalls, skip: Mapping[str, str]) -> Answer:
    """Return the answer of one law: "not asked" with the reason if it is in `skip` or raises NotAskedError.

    Any other error makes it "not judged". It is "clear" if nothing was measured, else "found"; of a list of names four
    are shown.
    """
    if code in skip:
        return Answer(code, "not asked", skip[code])
    measured, error = attempt(LAWS[code], calls)
    if error is not None:
        is_reason = isinstance(error, NotAskedError | NotJudgedError)
        state = "not asked" if isinstance(error, NotAskedError) else "not judged"
        return Answer(code, state, str(error) if is_reason else raised_words(error))
    if not measured:
        return Answer(code, "clear", sentences()[code]["held"])
    if not isinstance(measured, str):
        shorter = [*measured[:4], *[f"{len(measured) - 4} more"] * (len(measured) > 4)]
        measured = f"{len(measured)}: {', '.join(shorter)}"
    return Answer(code, "found", sentences()[code]["broken"], measured)


def _entry(batch: Any, ids: str | None) -> str | None:
    """Return the name of the batch's entry that is predicted; None for a batch that is the ids themselves.

    It is `ids`, else a usual name, else the only tensor of integers with two axes. Raises ArgumentTypeError if the
    batch is neither a tensor nor a mapping (or is a tensor, and `ids` is given), and ArgumentError if no entry fits.
    """
    if isinstance(batch, Tensor) and ids is None:
        return None
    if not isinstance(batch, Mapping):
        raise ArgumentTypeError(
            "trains.batch",
            "batch must be ids (batch, tokens), or a mapping of tensors by name; got "
            f"{shown(type(batch).__name__)}. Name what is in a tuple, and take it apart in the loss.",
        )
    fitting = [
        name
        for name, each in batch.items()
        if isinstance(each, Tensor) and each.ndim == 2 and is_whole(each)
    ]
    if ids is None:
        ids = next((name for name in IDS if name in fitting), None)
        ids = fitting[0] if ids is None and len(fitting) == 1 else ids
    if ids not in fitting:
        raise ArgumentError(
            "trains.ids",
            f"ids must name the entry that is predicted, whole numbers (batch, tokens); got {shown(ids)}, "
            f"and the batch has {', '.join(map(shown, fitting)) or 'none'}.",
        )
    return ids


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Check the types of the parts of a script.

    Raises ArgumentTypeError, codes `trains.part`, `trains.function` and `trains.state`; ArgumentError, code
    `trains.load`, if only one of save and load is given.
    """
    for name, (kind, types) in TYPES.items():
        if not isinstance(parts[name], types):
            got = shown(type(parts[name]).__name__)
            raise ArgumentTypeError("trains.part", f"{name} must be {kind}; got {got}.")
    for name in FUNCTIONS:
        if not callable(parts[name]) and (name == "loss" or parts[name] is not None):
            raise ArgumentTypeError(
                "trains.function", f"{name} must be a function; got {shown(parts[name])}."
            )
    if (parts["save"] is None) != (parts["load"] is None):
        raise ArgumentError("trains.load", "save and load go together; one of them was given.")
    for name, each in parts["state"].items():
        if not isinstance(each, torch.Generator) and not hasattr(each, "load_state_dict"):
            raise ArgumentTypeError(
                "trains.state",
                f"state must hold generators and what has a state_dict; {shown(name)} is "
                f"{shown(type(each).__name__)}.",
            )


def _check_batch(script: Script) -> None:
    """Check that the ids are integers (batch, tokens), and that padding and documents are an id or a fitting entry.

    Raises ArgumentError, codes `trains.ids`, `trains.entry` and `trains.shape`, and ArgumentTypeError if causal is no
    bool.
    """
    check_bool("causal", script.causal)
    text = script.text
    if text.ndim != 2 or not is_whole(text) or not text.numel():
        raise ArgumentError(
            "trains.ids",
            f"ids must be whole numbers (batch, tokens); got {text.dtype} of shape {tuple(text.shape)}.",
        )
    for name, each in (("padding", script.padding), ("documents", script.documents)):
        tensor = script.entries.get(each) if isinstance(each, str) else None
        number = isinstance(each, int) and not isinstance(each, bool)
        if each is not None and not number and tensor is None:
            raise ArgumentError(
                "trains.entry",
                f"{name} must be an id, or name an entry of the batch; got {shown(each)}, and the batch has "
                f"{', '.join(map(shown, script.entries))}.",
            )
        if tensor is not None and (
            tensor.ndim != 2 or (name == "documents" and tensor.shape != text.shape)
        ):
            raise ArgumentError(
                "trains.shape",
                f"{name} must have the shape of the tokens that it is about; got {tuple(tensor.shape)}.",
            )
