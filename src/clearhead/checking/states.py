"""What a module keeps: sizes read from outside, masks saved with the weights or too short."""

import inspect
import math
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead._common.checks import is_number
from clearhead.checking.enclosing import Enclosing
from clearhead.checking.matching import Explanation
from clearhead.checking.notes import Notes
from clearhead.checking.recipes import Setting
from clearhead.checking.report import Finding
from clearhead.checking.sizes import kept_masks
from clearhead.checking.subject import Subject

# A name that is missing may be an import as well; these are names of sizes.
SIZE = re.compile(r"^[a-z]$|^[dn]_|dim|size|heads?$|len|num|embed|hidden|scale|width|model")


def examine_globals(subject: Subject, error: Exception, notes: Notes) -> bool:
    """Whether a call failed because a name of the notebook is not there."""
    if not isinstance(error, NameError) or isinstance(error, UnboundLocalError):
        return False
    if not SIZE.search(error.name or ""):
        return False
    notes.found(
        "state.global-dim",
        f"it reads {error.name!r} from outside, and nothing of that name is there",
        str(error),
        "take the size from the tensor at hand: query.shape[-1]",
    )
    return True


def global_sizes(subject: Subject) -> dict[str, float]:
    """The numbers that its code reads from the module around it."""
    found: dict[str, float] = {}
    for _, own in _code(subject):
        for name in own.__code__.co_names:
            value = own.__globals__.get(name)
            if isinstance(value, int | float) and is_number(value) and 0 < value < math.inf:
                found[name] = value
    return found


def _code(subject: Subject) -> Iterator[tuple[nn.Module | None, types.FunctionType]]:
    """The functions that somebody wrote: what is checked, or the methods of its modules."""
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
        for kind in type(part).__mro__:
            if kind.__module__.partition(".")[0] == "torch":
                break
            for name, own in vars(kind).items():
                if isinstance(own, types.FunctionType) and name != "__init__":
                    yield part, own


def judge_scale_from_outside(
    subject: Subject, explanation: Explanation | None, at: Setting | None, notes: Notes
) -> None:
    """Whether a wrong scale is that of a number that the code reads from around it."""
    if explanation is None or at is None or not explanation.mutants:
        return
    if not any(each.code.startswith("scale.") for each in explanation.mutants):
        return
    used = explanation.recipe.scale(at)
    if math.isclose(used, 1.0):
        return
    for name, value in global_sizes(subject).items():
        forms = {f"1/√{name}": value**-0.5, name: value, f"1/{name}": 1 / value}
        form = next((words for words, scale in forms.items() if abs(used / scale - 1) < 1e-3), None)
        if form is not None:
            old = next(each for each in notes.findings if each.code.startswith("scale."))
            notes.findings.remove(old)
            # A constant has no other explanation; a scale by a size of its own has.
            also = () if "whatever the sizes are" in old.sentence else (old.code,)
            notes.findings.insert(0, _from_outside(form, name, value, old.measured, also))
            notes.findings.insert(1, replace(old, follows_from="state.global-dim"))
            return


def _from_outside(
    form: str, name: str, value: float, measured: str, also: tuple[str, ...]
) -> Finding:
    other = "; or a size of its own is the wrong one, and the number outside is equal by chance"
    return Finding(
        "state.global-dim",
        f"the scale is {form} with {name} = {value} read from outside the class, not from the "
        "tensors: an instance of another size is wrong" + (other if also else ""),
        measured,
        "take the size from the tensor at hand: query.shape[-1]",
        also,
    )


def examine_sibling(
    subject: Subject,
    explanation: Explanation | None,
    follow: Callable[[Subject], bool | None],
    notes: Notes,
) -> None:
    """Whether a number read from outside is right for this instance only."""
    if explanation is None or not explanation.right:
        return
    # A name in capitals is a constant on purpose.
    read = {
        name: value
        for name, value in global_sizes(subject).items()
        if isinstance(value, int) and value > 1 and not name.isupper()
    }
    for name, value in read.items():
        # The same code with another number there: if it is no size of its own, nothing changes.
        with _patched(subject, name, value * 3):
            moved = follow(subject)
        if moved is False and name not in _names_in_constructors(subject):
            notes.found(
                "state.global-dim",
                f"{name} = {value} is read from outside the class: it fits this instance, and an "
                "instance of another size is wrong",
                f"with {name} = {value * 3} there the same instance gives another output",
                "take the size from the tensor at hand: query.shape[-1]",
            )


def _names_in_constructors(subject: Subject) -> set[str]:
    names: set[str] = set()
    for part in subject.module.modules() if subject.module is not None else ():
        own = type(part).__dict__.get("__init__")
        if isinstance(own, types.FunctionType):
            names |= set(own.__code__.co_names)
    return names


@contextmanager
def _patched(subject: Subject, name: str, value: int) -> Iterator[None]:
    """The copy's own methods with another number under a name; what they belong to is not touched."""
    changed: list[tuple[nn.Module, str]] = []
    for part, own in list(_code(subject)):
        if part is None or name not in own.__code__.co_names or own.__name__ in vars(part):
            continue
        if type(part).__dict__.get(own.__name__, own) is not own:
            continue
        around = {**own.__globals__, name: value}
        other = types.FunctionType(
            own.__code__, around, own.__name__, own.__defaults__, own.__closure__
        )
        setattr(part, own.__name__, types.MethodType(other, part))
        changed.append((part, own.__name__))
    try:
        yield
    finally:
        for part, method in changed:
            delattr(part, method)


def examine_state(
    subject: Subject,
    width: int,
    longest: int | None,
    plain: bool,
    notes: Notes,
    seed: int,
) -> None:
    """The mask in the state_dict, and at the longest legal input."""
    module = subject.module
    if module is None:
        return
    masks = kept_masks(module)
    saved = set(module.state_dict())
    trained = [name for name, each in module.named_parameters() if name in masks]
    if trained:
        notes.found(
            "state.mask-saved",
            f"the mask {trained[0]} is a parameter: it is trained and saved with the weights",
            f"{trained[0]} {list(masks[trained[0]].shape)} is among the parameters",
            "register_buffer(name, mask, persistent=False)",
        )
    for name in sorted(set(masks) & saved - set(trained)):
        notes.tell(
            f"the buffer {name!r} holds a mask and is saved with the weights; "
            f"register_buffer({name!r}, …, persistent=False) leaves it out"
        )
    if longest is None or longest > 600:
        return
    _examine_longest(subject, width, longest, plain, notes, seed)


def _examine_longest(
    subject: Subject, width: int, longest: int, plain: bool, notes: Notes, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (longest, width) if plain else (1, longest, width)
    x: Tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
    try:
        subject(x)
    except Exception as error:  # whatever it raises
        notes.found(
            "state.mask-saved",
            f"{longest} tokens are legal, and it fails on them",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "the mask is too short: it must be context_length × context_length",
        )
