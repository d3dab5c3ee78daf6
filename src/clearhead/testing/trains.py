"""The laws of training as a report, and as an assertion."""

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from clearhead.testing.training.calls import NotAskedError, NotJudgedError, ScriptCalls
from clearhead.testing.training.laws import LAWS, NOTES
from clearhead.testing.training.rehearsal import Script, is_whole

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
FUNCTIONS = ("loss", "save", "load", "accumulate", "generate")


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
    generate: Callable[[Any, Any, int], Tensor] | None = None,
    skip: Mapping[str, str] | None = None,
) -> Report:
    """Ask the laws of training of a script: what trains, and learns what it should not, breaks one.

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
        save, load: save(model, optimizer, **state) returns what load(saved, model, optimizer,
            **state) goes on from; without them what has a state_dict is saved.
        accumulate: accumulate(model, batches), the backward passes of several batches in one step.
        generate: generate(model, batch, tokens), greedily, the ids that follow the ids of the batch.
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
    skip = dict(skip or {})
    parts = {"model": model, "loss": loss, "optimizer": optimizer, "state": dict(state or {})}
    parts |= {"save": save, "load": load, "accumulate": accumulate, "generate": generate}
    _check_parts(parts)
    script = Script(parts, batch, _entry(batch, ids), causal, padding, documents)
    _check_batch(script)
    unknown = [code for code in skip if code not in CODES]
    if unknown:
        raise ArgumentError(
            "trains.skip", f"skip knows {', '.join(CODES)}; got {', '.join(map(shown, unknown))}."
        )
    with undisturbed():
        try:
            calls = ScriptCalls(script)
            calls.base.loss.backward(retain_graph=True)
            calls.rehearsal.model.zero_grad()
        except ClearheadError:
            raise
        except Exception as error:
            raise ModelError(
                "trains.call", f"loss(model, batch) cannot be taken: {raised_words(error)}"
            ) from error
        answers = [_asked(code, calls, skip) for code in LAWS]
        notes = []
        for code in NOTES.keys() - skip.keys():
            with suppress(Exception):  # what cannot be measured is not noted
                notes.append((list(NOTES).index(code), NOTES[code](calls)))
    return _report(type(model).__name__, answers, [note for _, note in sorted(notes) if note])


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
    """Raise AssertionError with the report of `check_training` as its text, unless it is right.

    Args:
        model, loss, optimizer, batch: as for `check_training`.
        allow_unverified: let pass what is not judged; a broken law fails all the same.
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
    """The answer of a law: "held", "broken", "not judged" or "not asked", with words and what was measured."""

    code: str
    state: str
    words: str
    measured: str = ""


@cache
def words() -> Mapping[str, Mapping[str, str]]:
    """Return the sentences of laws.toml, by law."""
    text = resources.files("clearhead.testing.training").joinpath("laws.toml").read_text("utf-8")
    return tomllib.loads(text)


def _asked(code: str, calls: ScriptCalls, skip: Mapping[str, str]) -> Answer:
    """Ask one law; what it raises is the reason why it is not judged."""
    if code in skip:
        return Answer(code, "not asked", skip[code])
    try:
        measured = LAWS[code](calls) or ""
    except NotAskedError as error:
        return Answer(code, "not asked", str(error))
    except Exception as error:
        why = str(error) if isinstance(error, NotJudgedError) else raised_words(error)
        return Answer(code, "not judged", why)
    if not isinstance(measured, str):
        shorter = [*measured[:4], *[f"{len(measured) - 4} more"] * (len(measured) > 4)]
        measured = f"{len(measured)}: {', '.join(shorter)}"
    state = "broken" if measured else "held"
    return Answer(code, state, words()[code][state], measured)


def _report(name: str, answers: list[Answer], notes: list[str]) -> Report:
    def of(state: str) -> list[Answer]:
        return [each for each in answers if each.state == state]

    states = {"held": "clear", "broken": "found"}
    return Report(
        name=name,
        findings=tuple(
            Finding(each.code, each.words, each.measured, words()[each.code]["likely"])
            for each in of("broken")
        ),
        passed=tuple(each.words for each in of("held")),
        told=tuple(notes),
        skipped=tuple(f"{each.code}: {each.words}" for each in of("not asked")),
        unverified=tuple(f"{each.code}: {each.words}" for each in of("not judged")),
        asked=tuple(
            (each.code, states.get(each.state, each.state), each.words) for each in answers
        ),
    )


def _entry(batch: Any, ids: str | None) -> str | None:
    """The entry of the batch that is predicted; None for a batch that is the ids."""
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
    """Check the types of the parts of a script."""
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
    """Check the entries of the batch that are declared."""
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
