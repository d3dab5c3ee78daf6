"""The laws of training as a report, and as an assertion."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool
from clearhead._common.hints import with_hints
from clearhead._common.text import raised_words, shown
from clearhead.checking import Finding, Report
from clearhead.checking.subject.subject import undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, ModelError
from clearhead.testing.training.decoding import decoding
from clearhead.testing.training.learning import measuring, ordering, predicting
from clearhead.testing.training.parameters import parameters
from clearhead.testing.training.probes import Verdict
from clearhead.testing.training.rehearsal import Rehearsal, Script
from clearhead.testing.training.running import dropping, padding, resuming

Law = Callable[[Script], Iterator[Verdict]]
# pytest shows what is raised here without frames of this module.
__tracebackhide__ = True

# Each law with the codes of what it finds.
LAWS: dict[Law, tuple[str, ...]] = {
    predicting: ("train.leak", "train.target", "train.documents"),
    ordering: ("train.order",),
    padding: ("train.padding", "train.weights", "train.accumulation"),
    parameters: ("train.gradient", "train.optimizer", "train.moved", "train.frozen", "train.tied"),
    dropping: ("train.dropout", "train.eval", "train.replay"),
    resuming: ("train.resume",),
    decoding: ("train.decoding", "train.alone"),
}
# Measurements that are noted, and never fail.
NOTES = ("train.start", "train.heart")
CODES = (*(code for codes in LAWS.values() for code in codes), *NOTES)
# Names that a batch has for the tokens that are predicted, the likeliest first.
IDS = ("decoder_input_ids", "input_ids", "ids")


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

    All is asked of copies, of which some make steps: model, optimizer, generators and mode are as
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
    given = dict(skip or {})
    script = _checked(
        Script(
            {
                "model": model,
                "loss": loss,
                "optimizer": optimizer,
                "state": dict(state or {}),
                "save": save,
                "load": load,
                "accumulate": accumulate,
                "generate": generate,
            },
            batch,
            _entry(batch, ids),
            causal,
            padding,
            documents,
        ),
        given,
    )
    with undisturbed():
        try:
            Rehearsal(script).call().loss.backward()
        except ClearheadError:
            raise
        except Exception as error:
            raise ModelError(
                "trains.call", f"loss(model, batch) cannot be taken: {raised_words(error)}"
            ) from error
        verdicts = [each for law in LAWS for each in _asked(law, script, given)]
        with suppress(Exception):  # what cannot be measured is not noted
            verdicts += [each for each in measuring(script) if each.code not in given]
    return _report(type(model).__name__, verdicts)


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
        ✗ train.target   the target of a token is the token at its own place, not the one after it...
    """
    report = check_training(model, loss, optimizer, batch, **declared)
    if report.findings or (report.unverified and not allow_unverified):
        raise AssertionError(f"{report.name}\n{report}")


def _asked(law: Law, script: Script, skip: Mapping[str, str]) -> list[Verdict]:
    """The verdicts of a law; what it raises is the reason why the rest of it is not judged."""
    found: list[Verdict] = []
    try:
        if not all(code in skip for code in LAWS[law]):
            found.extend(law(script))
    except Exception as error:
        known = {each.code for each in found}
        found += [
            Verdict(code, "not judged", raised_words(error))
            for code in LAWS[law]
            if code not in known
        ]
    kept = [each for each in found if each.code not in skip]
    return kept + [Verdict(code, "not asked", skip[code]) for code in LAWS[law] if code in skip]


def _report(name: str, verdicts: list[Verdict]) -> Report:
    def of(state: str) -> list[Verdict]:
        return [each for each in verdicts if each.state == state]

    words = {"held": "clear", "broken": "found"}
    return Report(
        name=name,
        findings=tuple(
            Finding(each.code, each.says, each.measured, each.likely) for each in of("broken")
        ),
        passed=tuple(each.says for each in of("held")),
        told=tuple(each.says for each in of("told")),
        skipped=tuple(f"{each.code}: {each.says}" for each in of("not asked")),
        unverified=tuple(f"{each.code}: {each.says}" for each in of("not judged")),
        asked=tuple(
            (each.code, words.get(each.state, each.state), each.says)
            for each in verdicts
            if each.state != "told"
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
        if isinstance(each, Tensor) and each.ndim == 2 and _is_whole(each)
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


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _checked(script: Script, skip: Mapping[str, str]) -> Script:
    """The script, if it makes sense.

    Raises:
        ArgumentError, ArgumentTypeError: codes `trains.…`.
    """
    parts = script.parts
    for name, kind, words in (
        ("model", nn.Module, "an nn.Module"),
        ("optimizer", torch.optim.Optimizer, "a torch.optim.Optimizer"),
    ):
        if not isinstance(parts[name], kind):
            got = shown(type(parts[name]).__name__)
            raise ArgumentTypeError("trains.part", f"{name} must be {words}; got {got}.")
    for name in ("loss", "save", "load", "accumulate", "generate"):
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
    check_bool("causal", script.causal)
    text = script.text
    if text.ndim != 2 or not _is_whole(text) or not text.numel():
        raise ArgumentError(
            "trains.ids",
            f"ids must be whole numbers (batch, tokens); got {text.dtype} of shape {tuple(text.shape)}.",
        )
    for name, each in (("padding", script.padding), ("documents", script.documents)):
        tensor = script.entries.get(each) if isinstance(each, str) else None
        if isinstance(each, bool) or not (
            each is None or isinstance(each, int) or tensor is not None
        ):
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
    unknown = [code for code in skip if code not in CODES]
    if unknown:
        raise ArgumentError(
            "trains.skip", f"skip knows {', '.join(CODES)}; got {', '.join(map(shown, unknown))}."
        )
    return script
