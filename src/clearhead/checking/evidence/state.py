"""The state of a module, and the numbers that its code reads from around it."""

import dis
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor, nn

from clearhead._common.checks import is_number
from clearhead._common.foreign_names import KEPT_MASK, size_of
from clearhead.checking.evidence.cases import called
from clearhead.checking.evidence.feeding import is_mask, kept_masks, plain_tensors
from clearhead.checking.subject.copying import Enclosing
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import HUGE, TINY
from clearhead.recording.recorder import Recorder

MOVING = {"to", "device", "cuda", "type_as", "new_tensor", "to_device", "as_tensor"}


@dataclass(frozen=True)
class State:
    """The state of a module.

    Attributes:
        trained: the names of masks that are parameters, with their shapes.
        saved: the names of masks among the saved buffers.
        plain: the names of masks that are plain attributes, and stay behind when the module moves.
        shared: the names of lists of modules that hold the same one several times.
        loose: True if x is projected by a tensor that is no parameter.
        read: the numbers that its code reads from the module around it, by name.
        built: those that its constructor reads.
    """

    trained: Mapping[str, list[int]]
    saved: tuple[str, ...]
    plain: tuple[str, ...]
    shared: tuple[str, ...]
    loose: bool
    read: Mapping[str, float]
    built: Mapping[str, float]


def measure_state(subject: Subject, recorder: Recorder | None) -> State:
    """Return the state of the original, before any call; all but `read` is empty if it is not a module.

    `loose` is False without a recorder.
    """
    original, module = subject.original, subject.module
    read = outside_numbers(subject)
    if module is None or not isinstance(original, nn.Module):
        return State({}, (), (), (), False, read, {})
    masks, saved = kept_masks(original), set(original.state_dict())
    trained = {
        name: list(masks[name].shape) for name, _ in original.named_parameters() if name in masks
    }
    plain = {
        name
        for name, each in plain_tensors(original)
        if is_mask(each) and KEPT_MASK.search(name.rpartition(".")[2])
    }
    plain = {name for name in plain if not _moved(original, name)}
    return State(
        trained,
        tuple(sorted(set(masks) & saved - set(trained))),
        tuple(sorted(plain)),
        tuple(_shared(original)),
        recorder is not None and _loose(recorder),
        read,
        _built(original),
    )


def unfilled(subject: Subject) -> tuple[str, ...]:
    """Return the names of the parameters that nobody filled, and of vectors with NaN in buffers or attributes.

    A parameter counts if it holds NaN, infinity, or numbers as large or as small as in memory that was not written to.
    Masks are left out.
    """
    named = subject.parameters()
    for part in subject.parts() if not named else ():
        named |= dict(part.named_parameters())

    def drawn(parameter: Tensor) -> bool:
        """Return True if the numbers of a parameter look initialised."""
        numbers = parameter.detach().abs()
        some = numbers.flatten()[:: max(1, numbers.numel() // 1000)]
        some = some[some != 0]
        most = not numbers.numel() or bool(numbers.max() < HUGE)
        return most and (not len(some) or bool(some.median() > TINY))

    original = subject.original
    kept = (
        [*original.named_buffers(), *plain_tensors(original)]
        if isinstance(original, nn.Module)
        else []
    )
    return (
        *(
            name
            for name, each in named.items()
            if each.is_floating_point() and not drawn(each) and not is_mask(each)
        ),
        *(
            name
            for name, each in kept
            if each.is_floating_point()
            and max(each.shape, default=1) == each.numel()
            and bool(each.isnan().any())
        ),
    )


def moves_at_first_alone(subject: Subject, inputs: tuple[Tensor, ...], name: str) -> bool:
    """Return True if a parameter changes the output of a first call but not of a later one, as with a cache.

    False if the subject cannot be copied; copies are changed.
    """

    def moved(copy: Callable[[], Subject]) -> bool:
        """Return True if adding 1 to the parameter changes the output of copies made by `copy`."""
        still, changed = copy(), copy()
        with torch.no_grad():
            changed.parameters()[name].add_(1.0)
            return not torch.equal(still(*inputs), changed(*inputs))

    return subject.copied and moved(subject.fresh) and not moved(subject.spare)


def with_zeros_drawn(subject: Subject) -> Subject:
    """Return a copy with small random numbers instead of parameters that are 0 throughout.

    The subject if it has no copy. Gates and output projections often begin as zeros.
    """
    found = subject.spare()
    generator = torch.Generator().manual_seed(subject.seed)
    with torch.no_grad():
        for each in found.parameters().values() if subject.copied else ():
            if not each.any():
                each.add_(0.1 * torch.randn(each.shape, generator=generator))
    return found


def _moved(module: nn.Module, name: str) -> bool:
    """Return True if a method other than `__init__` reads the named tensor and moves tensors to a device."""
    owner, _, attribute = name.rpartition(".")
    part = module.get_submodule(owner)
    for kind in type(part).__mro__:
        for own in vars(kind).values():
            code = getattr(own, "__code__", None)
            if code is None or own.__name__ == "__init__":
                continue
            if attribute in code.co_names and MOVING & set(code.co_names):
                return True
    return False


def _shared(module: nn.Module) -> Iterator[str]:
    """Yield the name of each ModuleList with parameters that has the same module more than once."""
    for name, part in module.named_modules():
        several = isinstance(part, nn.ModuleList) and len({id(each) for each in part}) < len(part)
        if several and any(True for _ in part.parameters()):
            yield name


def _loose(recorder: Recorder) -> bool:
    """Return True if x is projected by a tensor that is neither a parameter nor a buffer."""
    known = {*recorder.parameters, *recorder.buffers}
    inputs = [node.index for node in recorder.nodes if node.kind == "input"]
    for node in recorder.nodes:
        if node.kind != "linear" or node.constant is None:
            continue
        tags = node.tags[1 - node.constant]
        fed = tags is not None and all(int(each) in inputs for each in tags.node.unique())
        if fed and node.storages[node.constant] not in known:
            return True
    return False


def outside_numbers(subject: Subject) -> dict[str, float]:
    """Return the globals with a positive finite number that the subject's code reads, by name."""
    found: dict[str, float] = {}
    for _, own in _code(subject):
        found |= _numbers(own)
    return found


def _numbers(function: types.FunctionType) -> dict[str, float]:
    """Return the positive finite numbers among the globals that a function reads, by name."""
    found: dict[str, float] = {}
    read = (each for each in dis.get_instructions(function) if each.opname == "LOAD_GLOBAL")
    for name in (each.argval for each in read):
        value = function.__globals__.get(name)
        if isinstance(value, int | float) and is_number(value) and 0 < value < math.inf:
            found[name] = value
    return found


def _built(module: nn.Module) -> dict[str, float]:
    """Return the globals with a positive finite number that constructors read, by name, except those in capitals."""
    found: dict[str, float] = {}
    for part in module.modules():
        own = type(part).__dict__.get("__init__")
        if isinstance(own, types.FunctionType) and not _of_library(type(part)):
            found |= _numbers(own)
    return {name: value for name, value in found.items() if not name.isupper()}


def _of_library(kind: type) -> bool:
    """Return True if a class is defined in torch, transformers or builtins."""
    return kind.__module__.partition(".")[0] in ("torch", "transformers", "builtins")


def _code(subject: Subject) -> Iterator[tuple[nn.Module | None, types.FunctionType]]:
    """Yield the user's functions, each with the module that it is a method of, or None for a function that is checked.

    Constructors and methods of torch and transformers are left out.
    """
    if subject.module is None:
        own = inspect.unwrap(subject.run) if callable(subject.run) else None
        if isinstance(own, types.FunctionType):
            yield None, own
        return
    for part in subject.module.modules():
        if isinstance(part, Enclosing):
            own = inspect.unwrap(part.function)
            if isinstance(own, types.FunctionType):
                yield None, own
            continue
        for kind in takewhile(lambda each: not _of_library(each), type(part).__mro__):
            for name, own in vars(kind).items():
                if isinstance(own, types.FunctionType) and name != "__init__":
                    yield part, own


def with_number(subject: Subject, name: str, value: int) -> Subject:
    """Return a copy whose code reads another value for a global; the class and the functions themselves stay.

    Replaced: the function that is checked, or methods, on the instances of a copied module. The old value stays in
    a function that holds modules, in functions called by these, and in a module that cannot be copied.
    """
    copy = subject.spare()
    for part, code in list(_code(copy)):
        if name not in code.__code__.co_names:
            continue
        around = {**code.__globals__, name: value}
        other = types.FunctionType(
            code.__code__, around, code.__name__, code.__defaults__, code.__closure__
        )
        if part is None and copy.module is None:
            return replace(copy, run=other)
        if part is None or not copy.copied:
            continue
        if code.__name__ not in vars(part) and type(part).__dict__.get(code.__name__, code) is code:
            setattr(part, code.__name__, types.MethodType(other, part))
    return copy


def felt_numbers(
    subject: Subject, state: State, inputs: tuple[Tensor, ...], *, constants: bool
) -> dict[str, float]:
    """Return the whole numbers above 1 around the code that change the output when tripled, by name.

    Each is changed for a copy. A change that raises is left out: the number is a size. So are those that a constructor
    reads too.

    Args:
        subject: the attention.
        state: its state.
        inputs: of the call.
        constants: True to include names in capitals, which otherwise count only if they are sizes among the arguments.
    """
    found: dict[str, float] = {}
    still = subject(*inputs).detach()
    given = [value for name, value in (subject.args or {}).items() if size_of(name)]
    for name, value in state.read.items():
        # A name in capitals is a constant on purpose, unless it is a size that is an argument.
        constant = name.isupper() and value not in given and not constants
        if not isinstance(value, int) or value <= 1 or constant or name in state.built:
            continue
        output = called(with_number(subject, name, value * 3), inputs)
        if isinstance(output, Exception):  # the number is a size
            continue
        if output.shape != still.shape or not output.allclose(still, equal_nan=True):
            found[name] = value
    return found
