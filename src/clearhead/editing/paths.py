"""Path patching: the direct effect of a head on the inputs of others, or on the output."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_choice
from clearhead._common.foreign_names import side_of
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.attention.planning import run
from clearhead.editing.activation_patching import (
    CallContexts,
    Heads,
    Patched,
    as_found,
    check_alike,
    check_heads,
    contexts_in,
    copies_of,
    head_of,
    is_head,
)
from clearhead.editing.context_operations import HeadsAt, OfContext
from clearhead.editing.edit import Edit, followed
from clearhead.editing.effects import Effects, effect
from clearhead.editing.measuring import Metric, Progress, number_of, reporter, until_interrupted
from clearhead.errors import ArgumentTypeError, EditError
from clearhead.watching.projections import attention_at, projection_of
from clearhead.watching.recording import of_heads
from clearhead.watching.stream import called
from clearhead.watching.watch import watch

Input = Literal["query", "key", "value"]
Frozen = Literal["others", "heads"]
Receiver = tuple[str | int, int, Input]


@with_hints
def paths(
    model: nn.Module,
    clean: object,
    corrupt: object,
    *,
    metric: Metric,
    sender: Heads | None = None,
    receivers: Receiver | Sequence[Receiver] | None = None,
    frozen: Frozen = "others",
    progress: Progress | bool = True,
) -> Effects:
    """Measure the direct effect of a head on later heads or the output: only the paths between them are patched.

    Path patching (Wang et al., 2022, section 3.1 and appendix B, https://arxiv.org/abs/2211.00593), by two runs on the
    corrupt inputs for each sender. In the first the sender has its context of the clean run, and what lies between
    it and the receivers is frozen at its values of the corrupt one; in the second the receivers have the inputs
    that they had in the first, and everything after them runs as it does. Exchange the two inputs for the other
    direction: what is lost where the sender is corrupt.

    Args:
        model: any PyTorch model that `edit` edits.
        clean: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        corrupt: others, of as many samples and tokens.
        metric: makes a number of the model's output, such as a difference of two logits.
        sender: the layer and the head that is patched, as `edit[layer].heads[head]` takes them; a list of such, or
            rows that name them, such as the `top` of effects, each by itself; None for each head of the layers before
            the last receiver.
        receivers: layer, head, and which of its inputs, "query", "key" or "value", of this head alone where
            others share it; or a list of such, all at once. None is the output of the model.
        frozen: "others" freezes the other heads, and next to attention all modules with weights in their blocks; with
            "heads", MLPs are recomputed, and what they make of the sender counts.
        progress: True writes a line on a terminal, False nothing; or a function of the senders done and all senders.

    Returns:
        `Effects`, a row for each sender; after Ctrl-C those that are done.

    Raises:
        ArgumentTypeError: codes `edit.model`, `effects.metric`, `effects.progress`, `paths.sender`, `paths.receivers`.
        ArgumentError: code `frozen.value`.
        EditError: codes `edit.layers`, `edit.heads`, `effects.inputs` for inputs of other sizes, `paths.order` for a
            receiver that no sender comes before, `edit.missing`, where something attends that cannot be frozen, and
            those of `edit`.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "abc"))
        >>> clean, corrupt = torch.randn(2, 1, 5, 8)
        >>> score = lambda output: output.sum()
        >>> found = ch.paths(model, clean, corrupt, metric=score, sender=(0, 1), receivers=[(1, 0, "value")])
        >>> len(found), found[0].layer, found[0].head
        (1, '0', 1)
        >>> len(ch.paths(model, clean, corrupt, metric=score, receivers=[(1, 0, "value"), (2, 1, "key")]))
        4
    """
    check_choice("frozen", frozen, Frozen)
    done = reporter(progress)
    wanted = check_heads("paths.sender", "sender", sender)
    ends = _receivers(receivers)
    with torch.no_grad(), followed(model, strict=True) as plain:
        baseline = number_of(metric, called(model, corrupt))
    plain.warn_of_missing(["*"], stacklevel=4)
    order = list(plain.attended)
    places = {path: at for at, path in enumerate(order)}
    inputs = None if ends is None else _inputs_of(plain, ends)
    last = len(order) if inputs is None else max(places[path] for path, _ in inputs)
    senders = (
        [(path, head) for path in order[:last] for head in range(plain.attended[path])]
        if wanted is None
        else [head_of(plain, *each[:2]) for each in wanted]
    )
    first = min((places[path] for path, _ in senders), default=last)
    late = [path for path, _ in senders if places[path] >= last]
    early = [path for path, _ in inputs or () if places[path] <= first]
    if late or early or not senders:
        wrong, ran = (", ".join(map(shown, each)) for each in (dict.fromkeys(late + early), order))
        raise EditError(
            "paths.order",
            "each sender must come before a receiver, and each receiver behind a sender; "
            f"{wrong or 'no layer'} does not. They ran in this order: {ran}.",
        )
    with torch.no_grad(), followed(model):
        whole = number_of(metric, called(model, clean))
    outputs: Outputs = {}
    others = _other_parts(model, order) if frozen == "others" else []
    with _hooked(others, _recording_hook(outputs)):
        own = contexts_in(model, corrupt)
    patched = contexts_in(model, clean)
    for path in order:
        check_alike(path, patched.get(path, ()), own[path])
    runs = _Runs(model, corrupt, own, patched, outputs, inputs)
    numbers = (number_of(metric, runs.output(path, head)) for path, head in senders)
    found = until_interrupted(numbers, len(senders), done)
    rows = [
        effect(Patched(path, head), number, baseline, whole)
        for (path, head), number in zip(senders, found, strict=False)
    ]
    return Effects(rows, baseline, whole)


Inputs = dict[tuple[str, int], list[Input]]
"""The inputs of heads, by module."""

Outputs = dict[nn.Module, list[Any]]
"""The outputs of modules in a run, call by call."""


@dataclass
class _Runs:
    """The two runs that measure one sender.

    Attributes:
        contexts: the contexts of the corrupt run, by the paths of the modules in their order.
        clean_contexts: those of the clean run.
        outputs: what else is frozen.
        inputs: what the receivers get from the first run; None if the output of the model is measured.
    """

    model: nn.Module
    corrupt: object
    contexts: CallContexts
    clean_contexts: CallContexts
    outputs: Outputs
    inputs: Inputs | None

    @torch.no_grad()
    def output(self, path: str, head: int) -> Any:
        """Return the output of the model when this head alone is patched, and only its paths to the receivers count.

        Without receivers that is one run, else two; nothing of the model is changed.
        """
        order = list(self.contexts)
        behind = order[order.index(path) + 1 :]
        with followed(self.model) as edits:
            edits.add(path, "sender", OfContext((head,), None, as_found(self.clean_contexts, 1)))
            for each in behind:
                edits.add(each, "frozen", OfContext(slice(None), None, as_found(self.contexts, 1)))
            if self.inputs is None:
                return self._frozen()
            layers = [name for name, _ in self.inputs]
            with watch(self.model, values=True, layers=layers) as seen:
                self._frozen()
        with followed(self.model) as edits:
            for (name, each), parts in self.inputs.items():
                # What came before the sender has nothing from it.
                if name in behind:
                    whole = seen[name].problem.replace(value=seen[name].value)
                    problem = of_heads(whole, [each], name)
                    given = {part: getattr(problem, part) for part in parts}
                    edits.add(name, "receiver", OtherInputs((each,), given=given))
            return called(self.model, self.corrupt)

    def _frozen(self) -> Any:
        """Return the output of the corrupt run in which each frozen module returns its recorded output."""
        with _hooked(self.outputs, _replaying_hook(self.outputs)):
            return called(self.model, self.corrupt)


@dataclass(eq=False)
class OtherInputs(OfContext):
    """An operation that recomputes the context of a head with another query, key or value.

    Attributes:
        given: these, (batch, 1, tokens, width) each.
    """

    given: Mapping[str, Tensor] = field(default_factory=dict)

    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return the context of the selected heads, without dropout, when `given` replaces its query, key or value.

        `rows` is ignored.
        """
        call = of_heads(at.places.problem, at.heads, at.path)
        return run(call.replace(**self.given, dropout=None)).to(context)


def _receivers(given: Any) -> list[Receiver] | None:
    """Return the receivers as a list of (layer, head, input); None if None was given.

    Raises ArgumentTypeError, code `paths.receivers`, for anything else and for an empty list.
    """
    if given is None:
        return None
    every = [given] if isinstance(given, tuple) and is_head(given[:2]) else given
    found: list[Receiver] = []
    for each in every if isinstance(every, list | tuple) else ():
        side = None
        if isinstance(each, tuple) and len(each) == 3 and is_head(each[:2]):
            side = side_of(each[2]) if isinstance(each[2], str) else None
        if side is not None:
            found.append((*each[:2], cast(Input, side)))
    if not found or len(found) < len(every):
        raise ArgumentTypeError(
            "paths.receivers",
            'receivers must be (layer, head, input), where the input is "query", "key" or "value"; a list of such; or '
            f"None; got {shown(given)}.",
        )
    return found


def _inputs_of(plain: Edit, receivers: Sequence[Receiver]) -> Inputs:
    """Return a list of inputs for each receiving (path, head); EditError for a layer or head that did not attend."""
    found: Inputs = {}
    for layer, head, part in receivers:
        found.setdefault(head_of(plain, layer, head), []).append(part)
    return found


def _other_parts(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """Return the outermost modules of each block that have a matrix of weights, and no attention and no norm inside.

    The query, key, value and output projections of the attentions at `paths` are left out. A block is a module of a
    list that has an attention inside, or the module right around one.
    """
    holders = {id(attention_at(model, path)) for path in paths}
    holders |= {id(each) for path in paths if (each := projection_of(model, path)) is not None}
    found: list[nn.Module] = []

    def visit(module: nn.Module, *, is_block: bool) -> None:
        """Append to `found` the parts of a module, or the module; `is_block` if it is in a block."""
        if id(module) in holders:
            return
        attends = any(id(each) in holders for each in module.modules())
        if attends or any(map(_is_norm, module.modules())):
            is_list = isinstance(module, nn.ModuleList | nn.Sequential)
            around = any(id(each) in holders for each in module.children())
            for child in module.children():
                inside = any(id(each) in holders for each in child.modules())
                visit(child, is_block=is_block or around or (is_list and inside))
        elif is_block and any(each.ndim > 1 for each in module.parameters()):
            found.append(module)

    visit(model, is_block=False)
    return found


def _is_norm(module: nn.Module) -> bool:
    """Return True if a module has parameters of its own and all of them are vectors."""
    own = [each.ndim for each in module.parameters(recurse=False)]
    return bool(own) and max(own) == 1


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Register `hook`, called as `hook(module, args, output)`, on these modules for the time of a block."""
    handles = [each.register_forward_hook(hook) for each in modules]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def _recording_hook(outputs: Outputs) -> Callable[..., None]:
    """Return a forward hook that appends a copy of each output to `outputs` under its module."""

    def keep(module: nn.Module, args: object, output: Any) -> None:
        """Append a copy of the output under its module."""
        outputs.setdefault(module, []).append(copies_of(output))

    return keep


def _replaying_hook(outputs: Outputs) -> Callable[..., Any]:
    """Return a forward hook that replaces each output by a copy of the next recorded one, from the first on.

    It raises StopIteration at a call more than were recorded.
    """
    calls = {module: iter(some) for module, some in outputs.items()}
    return lambda module, args, output: copies_of(next(calls[module]))
