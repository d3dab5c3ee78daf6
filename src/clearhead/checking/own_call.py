"""The attentions that ran in one call of a model, each called again with the other arguments that it had."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import record
from clearhead.checking.report import Finding, Report
from clearhead.checking.reporting import cannot_run
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.copying import duplicate
from clearhead.checking.subject.signatures import OPTIONAL, PADDING, mask_of_tokens, of_call
from clearhead.checking.subject.subject import prepare
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt


class Captured(nn.Module):
    """A module, called with other tokens and with the other arguments of one call.

    Args:
        inner: the module, which is used as it is.
        arguments: of the call, by name; cache objects among them become None.
        names: those that are replaced, query first; one tensor may have several names.
    """

    def __init__(
        self, inner: nn.Module, arguments: Mapping[str, Any], names: tuple[tuple[str, ...], ...]
    ) -> None:
        super().__init__()
        self.__name__ = type(inner).__name__
        # A cache is written to by each call, and the attention of a call is the same without one.
        cached = [
            n for n, each in arguments.items() if OPTIONAL.search(n) and hasattr(each, "__dict__")
        ]
        self.inner, self.names = inner, names
        self.arguments: dict[str, Any] = {
            n: None if n in cached and not isinstance(each, Tensor) else each
            for n, each in arguments.items()
        }
        first = self.arguments[names[0][0]]
        self.first = isinstance(inner, nn.MultiheadAttention) and not inner.batch_first
        self.batch, self.tokens = (
            first.shape[1 if self.first else 0],
            first.shape[0 if self.first else -2],
        )

    @property
    def takes(self) -> str:
        """The calling convention: "x", "x,mask", "x,context" or "qkv"."""
        if len(self.names) == 2 and self.inputs[1].ndim == 2:
            return "x,mask"
        return {1: "x", 2: "x,context", 3: "qkv"}[len(self.names)]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors of the call that are replaced, with the batch first."""
        found = (self.arguments[each[0]] for each in self.names)
        return tuple(
            each.transpose(0, 1) if self.first and each.ndim == 3 else each for each in found
        )

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Any]:
        """Call the module with other tokens, batch first; return (output, the second value that it returned or None).

        A bool mask (batch, tokens), True at real tokens, is brought to the form of the call's own mask. Raises
        TypeError as `output_of`.
        """
        x = tensors[0]
        made = {name: self._fitted(each, x) for name, each in self.arguments.items()}
        for names, tensor in zip(self.names, tensors, strict=True):
            given = tensor.transpose(0, 1) if self.first and tensor.ndim == 3 else tensor
            for name in names:
                made[name] = _masked(self.arguments[name], given) if tensor.ndim == 2 else given
        output, rest = output_of(self.inner(**made))
        return (output.transpose(0, 1) if self.first else output), rest

    def _fitted(self, value: Any, x: Tensor) -> Any:
        """Return an argument of the call for the batch, the dtype and the number of tokens of x.

        Axes as long as the call's tokens are cut; of a first axis as long as its batch every sample gets the first
        entry. Tuples, lists and dicts are rebuilt; other values are returned unchanged.
        """
        if not isinstance(value, Tensor):
            return _pytree.tree_map_only(Tensor, lambda each: self._fitted(each, x), value)
        if value.is_floating_point():
            value = value.to(x.dtype)
        tokens = x.shape[-2]
        for axis, size in enumerate(value.shape):
            # Of two axes a first one of the size of the tokens is theirs, as in a mask of pairs.
            pairs = value.ndim == 2 and size == self.tokens
            if axis == 0 and value.ndim > 1 and size == self.batch and not pairs:
                value = value[:1].expand(x.shape[0], *value.shape[1:])
            elif size == self.tokens and tokens < size:
                value = value.narrow(axis, 0, tokens)
        return value


def _masked(like: Tensor, real: Tensor) -> Tensor:
    """Return `real`, bool, True at real tokens, in the form of the mask `like`.

    That is a mask that is added to the scores, or one in which padding is the rarer value.
    """
    if like.is_floating_point():
        return torch.zeros(real.shape, dtype=like.dtype).masked_fill(~real, -torch.inf)
    return (real if like.double().mean() >= 0.5 else ~real).to(like.dtype)


def captured(model: nn.Module, inputs: Any) -> Iterator[tuple[str, Captured]]:
    """Yield (name, module) for the modules of a model that ran on tokens in one call, inner ones first.

    Args:
        model: the model, which is copied; the copy is called in evaluation mode without gradient.
        inputs: the arguments of the call: a tuple, a dict of keywords, or anything else as the only one.

    Raises:
        Exception: what the call raises.
    """
    copied = duplicate(model).eval()
    names = {each: name for name, each in copied.named_modules()}
    calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def kept(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Store the arguments of the first call of a module."""
        calls.setdefault(module, (args, kwargs))

    args, kwargs = (), {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = inputs if isinstance(inputs, tuple) else (inputs,)
    handles = [each.register_forward_hook(kept, with_kwargs=True) for each in names]
    try:
        with torch.no_grad():
            copied(*args, **kwargs)
    finally:
        for each in handles:
            each.remove()
    for module, (some, more) in calls.items():
        found = _of_tokens(module, dict(zip(of_call(module), some, strict=False)) | more)
        if found is not None:
            yield names[module], found


def _of_tokens(module: nn.Module, arguments: dict[str, Any]) -> Captured | None:
    """Return a module with the arguments of a call, if it was called with vectors of tokens; None otherwise.

    The first three tensors of four axes are query, key and value; else the first two of three axes are x and a context.
    A tensor with several names counts once. Without a context, a mask of x's tokens is replaced too.
    """
    tensors = {name: each for name, each in arguments.items() if isinstance(each, Tensor)}
    vectors = [n for n, each in tensors.items() if each.is_floating_point() and each.ndim in (3, 4)]
    groups: dict[int, list[str]] = {}
    for name in vectors:
        groups.setdefault(id(tensors[name]), []).append(name)
    found = [tuple(each) for each in groups.values()]
    axes = [tensors[each[0]].ndim for each in found]
    if axes[:3] == [4, 4, 4]:
        return Captured(module, arguments, tuple(found[:3]))
    found = [each for each, count in zip(found, axes, strict=True) if count == 3][:2]
    if not found or axes[0] != 3:
        return None
    x = tensors[found[0][0]]
    mask = mask_of_tokens(list(arguments))
    # With as many samples as tokens the shape does not say whether a mask is of pairs; its name does.
    named = x.shape[0] != x.shape[1] or PADDING.search(mask or "")
    if len(found) == 1 and named and mask in tensors and tensors[mask].shape == x.shape[:2]:
        found.append((mask,))
    return Captured(module, arguments, tuple(found))


def of_own_call(
    model: nn.Module,
    inputs: Any,
    contract: Contract,
    seed: int,
    reported: Callable[[Captured, Contract], Report],
) -> Report:
    """Return one report about every attention that ran in a call of a model.

    The report of the error if the call raises.

    Args:
        model: the model, which is copied.
        inputs: the arguments of its call.
        contract: what every attention in it promises.
        seed: of the inputs of the checks.
        reported: checks one of them. A ModelError of it becomes a report that is not judged.

    Raises:
        ModelError: code `check.inputs`, if it is no model, or no module in it attends.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            "check.inputs", f"inputs= is for a model, an nn.Module; got {type(model).__name__}."
        )
    reports: dict[str, Report] = {}
    calls, error = attempt(lambda: list(captured(model, inputs)))
    if error is not None:
        return cannot_run(type(model).__name__, error)
    for name, each in calls or ():
        if any(f"{inner}.".startswith(f"{name}." * bool(name)) for inner in reports):
            continue
        place = name or type(model).__name__
        sizes = {"context_length": each.tokens, **contract.sizes}
        promised = replace(contract, sizes=sizes)
        found = record(prepare(each, each.takes, None, promised, seed), each.inputs)
        if found is None or not found.attentions:
            continue
        try:
            reports[place] = reported(each, promised)
        except ModelError as error:
            reports[place] = Report(place, (), unverified=(error.message.partition("\n")[0],))
    if not reports:
        raise ModelError(
            "check.inputs",
            f"no module of {type(model).__name__} attends in this call: none multiplies two of its "
            "projections. Check the function that attends, with takes=.",
        )
    return _joined(type(model).__name__, reports)


def _joined(name: str, reports: Mapping[str, Report]) -> Report:
    """Return one report of several attentions.

    Equal findings and remarks appear once, with the names of the attentions. Sizes and place are those of the first.
    """

    def said(texts: Callable[[Report], Sequence[str]]) -> tuple[str, ...]:
        """Return the remarks of all reports, each once, with the names of those that have it unless all do."""
        where: dict[str, list[str]] = {}
        for place, report in reports.items():
            for text in texts(report):
                where.setdefault(text, []).append(place)
        every = [*reports]
        return tuple(
            text if places == every else f"{', '.join(places)}: {text}"
            for text, places in where.items()
        )

    findings: dict[tuple[str, str], list[str]] = {}
    made: dict[tuple[str, str], Finding] = {}
    for place, report in reports.items():
        for each in report.findings:
            key = each.code, each.sentence
            findings.setdefault(key, []).append(place)
            made.setdefault(key, each)
    first = next(iter(reports.values()))
    return Report(
        name,
        tuple(
            replace(made[key], sentence=f"{', '.join(places)}: {key[1]}")
            for key, places in findings.items()
        ),
        said(lambda each: each.passed),
        said(lambda each: each.told),
        said(lambda each: each.skipped),
        first.sizes,
        said(lambda each: each.unverified),
        first.place,
    )
