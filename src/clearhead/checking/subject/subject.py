"""The subject of a check: found, made, copied and called, and left as it was.

A module is copied, and the copy is run in float64. A subject does not change: another precision,
another mode, or a fresh copy is another subject.
"""

import inspect
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._common.undoing import undoing
from clearhead._text import shown
from clearhead.checking.contract import Contract
from clearhead.checking.subject.calling import by_heads, call
from clearhead.checking.subject.completing import PARTS
from clearhead.checking.subject.constructing import (
    check_size,
    declared_arguments,
    guessed_arguments,
)
from clearhead.checking.subject.copying import Enclosing, duplicate, held_by
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.locating import located
from clearhead.checking.subject.refusals import raised_with_line
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError
from clearhead.recording.attempt import attempt

WHOLE = ("qkv", "qkv,mask", "x", "x2d", "x,mask", "x,context", "decode", "ids", "ids,mask")
TAKES = (*WHOLE, *PARTS)


def _nothing(x: Tensor) -> tuple[Tensor, ...]:
    """Return (): there are no inputs other than x."""
    return ()  # a lambda could not be sent to another process


@dataclass(frozen=True, eq=False)
class Subject:
    """The checked attention, ready to be called.

    Attributes:
        run: the copy that is called, or the object itself if it cannot be copied.
        original: what was given, or the instance made of it.
        name: its name in messages.
        takes: how it is called.
        contract: the declarations.
        args: for the constructor, if it is known how it was made.
        guessed: the names of those arguments that were not given.
        seed: of a class's own weights.
        copied: whether `run` is a copy.
        dtype: to which floating inputs are converted.
        axes: of query, key and value; fewer than 4 if heads are passed one by one.
        hands_mask: whether the causal mask is passed to a module that could do without.
        others: makes the other inputs from the first, where only the first is tested.
    """

    run: Any
    original: Any
    name: str
    takes: str
    contract: Contract
    args: Mapping[str, Any] | None
    guessed: tuple[str, ...]
    seed: int
    copied: bool
    dtype: torch.dtype = torch.float64
    axes: int = 4
    hands_mask: bool = True
    others: Callable[[Tensor], tuple[Tensor, ...]] = _nothing

    @property
    def module(self) -> nn.Module | None:
        """The module that is run; None if `run` is not a module."""
        return self.run if isinstance(self.run, nn.Module) else None

    def parts(self) -> Iterator[nn.Module]:
        """Yield every module in it, or in the attributes of an object that is not a module."""
        held = vars(self.run).values() if hasattr(self.run, "__dict__") else ()
        for top in [self.run] if self.module is not None else held:
            if isinstance(top, nn.Module):
                yield from top.modules()

    def parameters(self) -> dict[str, Tensor]:
        """Return its parameters by name, without those that a call does not use; {} for anything but a module."""
        named = self.module.named_parameters() if self.module is not None else ()
        left_out = {
            id(each) for each in (self.run.left_out if isinstance(self.run, Embedded) else ())
        }
        return {name: each for name, each in named if id(each) not in left_out}

    def within(self, dtype: torch.dtype) -> "Subject":
        """Return a copy that runs in another dtype; without a copy only the inputs are converted."""
        return replace(self.spare(), dtype=dtype)._converted()

    def _settled(self) -> None:
        """Put all its modules into evaluation mode and onto the CPU, in place."""
        for part in self.parts():
            part.eval()  # whose own train() may return nothing
            part.to(device="cpu")

    def _converted(self) -> "Subject":
        """Convert all modules of a copy to its dtype in place, and return the subject itself."""
        for part in self.parts() if self.copied else ():
            part.to(dtype=self.dtype)
        return self

    def spare(self, *, training: bool = False) -> "Subject":
        """Return one with its own copy of the present state, in training mode if asked.

        Itself if it cannot be copied.
        """
        if not self.copied:
            return self
        found = replace(self, run=duplicate(self.run))
        if training and found.module is not None:
            found.module.train()
        return found

    def fresh(self) -> "Subject":
        """Return one with a new eval-mode copy of the original, free of the state of any call; itself if not copied."""
        if not self.copied:
            return self
        found = replace(self, run=duplicate(self.original))
        found._settled()
        return found._converted()

    def made_again(self, args: Mapping[str, Any]) -> "Subject":
        """Return one with a new instance of the same class; raise ModelError if these arguments do not fit."""
        made = _made(type(self.original), args, self.seed)
        return _prepared(made, self.name, self.takes, self.contract, args, (), self.seed)

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Return the output for copies of these inputs, converted to the dtype it runs in."""
        return self.whole(*tensors)[0]

    def bare(self, *tensors: Tensor) -> Tensor:
        """Return the output for these very inputs, which the code may change unless their dtype is converted."""
        return self._called(tensors)[0]

    def whole(self, *tensors: Tensor) -> tuple[Tensor, Any]:
        """Return the output for copies of these inputs, and the second value that was returned, or None."""
        # Copies: whoever writes to one must not spoil it for the next probe.
        return self._called([each.clone() for each in tensors])

    def _called(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """Return the output for inputs cast to its dtype, and the second value or None; detach what modules keep."""
        if len(tensors) == 1:
            tensors = (*tensors, *self.others(tensors[0]))
        turned = [each.to(self.dtype) if each.is_floating_point() else each for each in tensors]
        try:
            with uncompiled():
                if self.axes < 4:
                    return by_heads(self.run, self.axes, turned), None
                return call(
                    self.run, self.takes, turned, bool(self.contract.causal and self.hands_mask)
                )
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Detach, in place, the tensors that a module keeps of a call as attributes or buffers."""
        for part in self.parts():
            for place in (vars(part), vars(part)["_buffers"]):
                for name, value in place.items():
                    if isinstance(value, Tensor) and value.grad_fn is not None:
                        place[name] = value.detach()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run without torch.compile in this block: a check makes many small calls, of many shapes.

    Private: `torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG`, in 2.13; without it a call of
    flex_attention compiles a wrapper of itself each time.
    """
    flag = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    known = getattr(flex, flag, None)
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules and not torch.compiler.is_compiling():
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if known is not None:
            stack.callback(setattr, flex, flag, known)
            setattr(flex, flag, True)
        yield


def prepare(
    given: Any, takes: str, args: Mapping[str, Any] | None, contract: Contract, seed: int
) -> Subject:
    """Import, make and copy the subject of a check.

    Args:
        given: a class, an instance, a function, a dotted path, or "file.py:Name".
        takes: how it is called; one of TAKES.
        args: for the constructor of a class; those of the contract are added by name, and required sizes guessed.
        contract: the declarations.
        seed: of a class's own weights.

    Raises:
        ArgumentError, ArgumentTypeError, ModelError: it cannot be found, made, called or copied as declared.
    """
    if takes not in TAKES:
        raise ArgumentError(
            "check.takes", f"takes must be one of {', '.join(TAKES)}; got {shown(takes)}."
        )
    number = as_int(seed)
    if number is None or abs(number) >= 1 << 62:
        raise ArgumentError(
            "check.seed", f"seed must be a whole number, of size below 2⁶²; got {shown(seed)}."
        )
    if torch.get_default_device().type == "meta":
        raise ArgumentError(
            "check.device",
            "the default device is meta, on which nothing is computed; set another one: "
            'torch.set_default_device("cpu").',
        )
    found = located(given) if isinstance(given, str) else given
    cls = found if inspect.isclass(found) else None
    if args is not None and cls is None:
        raise ArgumentError("check.args", "args are for a class; what is checked is none.")
    guessed: dict[str, Any] = {}
    if cls is not None:
        known = {**declared_arguments(cls, contract), **(args or {})}
        guessed, args, found = _guessed(cls, known, contract, seed)
    if not callable(found) and takes != "decode":
        raise ArgumentTypeError(
            "check.subject",
            "what is checked must be a class, an instance, a function, or where one is found; "
            f"got {type(found).__name__}.",
        )
    name = name_of(cls or found)
    if takes.startswith("ids"):
        found = _embedded(found, name, masked=takes.endswith("mask"))
        takes = takes.replace("ids", "x")
        contract = replace(contract, sizes={**found.sizes, **contract.sizes})
    return _prepared(found, name, takes, contract, args, tuple(guessed), seed)


def _prepared(
    found: Any,
    name: str,
    takes: str,
    contract: Contract,
    args: Mapping[str, Any] | None,
    guessed: tuple[str, ...],
    seed: int,
) -> Subject:
    """Return a subject that runs a copy of an object in float64, or the object itself if it cannot be copied.

    Raises ModelError for a lazy or too large module. A copy is in eval mode and on the CPU.
    """
    original = found if takes == "decode" else _as_module(found)
    check_size(original, name)
    copied, run = _copy(original)
    subject = Subject(run, original, name, takes, contract, args, guessed, seed, copied)
    if copied:
        subject._settled()
    return subject._converted()


def _as_module(found: Any) -> Any:
    """Return a function with the modules that it holds as one module; anything else unchanged."""
    held = held_by(found)
    return Enclosing(found, held) if held else found


def _embedded(found: Any, name: str, *, masked: bool) -> Embedded:
    """Return a copy of a model of ids that takes vectors; raise ModelError (`check.ids`) for anything but a module."""
    model = _as_module(found)
    if not isinstance(model, nn.Module):
        raise ModelError(
            "check.ids",
            f"takes='ids' wants a model that embeds its ids by an nn.Embedding; {name} is none.",
        )
    check_size(model, name)
    copied, run = _copy(model)
    return Embedded(run.to(device="cpu") if copied else run, masked=masked)


def _guessed(
    cls: type, given: Mapping[str, Any], contract: Contract, seed: int
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the guessed arguments of a class, all of its arguments, and an instance made with them.

    Raises:
        ModelError: code `check.made`, if the class does not take them.
    """
    guessed = guessed_arguments(cls, given, contract)
    args = {**guessed, **given}
    return guessed, args, _made(cls, args, seed)


def _made(cls: type, args: Mapping[str, Any], seed: int) -> Any:
    """Seed PyTorch's generator, and return an instance of a class; ModelError (`check.made`) if that raises."""
    torch.manual_seed(seed)
    made, error = attempt(cls, **args)
    if error is not None:
        given = ", ".join(f"{name}={shown(value)}" for name, value in args.items())
        raise ModelError(
            "check.made",
            f"{cls.__name__}({given}) could not be made: {raised_with_line(error)}\n"
            "  args=dict(…) are passed to it, and sizes=dict(…) by the names of its parameters. Or give an "
            "instance: attention = Attention(Config()) in a file is file.py:attention.",
        ) from error
    return made


def _copy(original: Any) -> tuple[bool, Any]:
    """Return True and a copy, or False and the original if it cannot be copied."""
    copied, error = attempt(duplicate, original)
    return (True, copied) if error is None else (False, original)


def _determinism() -> tuple[bool, bool]:
    """Return two flags: deterministic algorithms are required, and PyTorch only warns about others."""
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), only_warns


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run with gradients, no autocast or warnings; restore generators, dtype, threads, sys.path, environ, folder."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else None
    kept = torch.get_default_dtype(), torch.get_num_threads(), list(sys.path), dict(os.environ)
    strict = _determinism()
    folder, fast = os.getcwd(), torch.backends.mha.get_fastpath_enabled()

    def restore() -> None:
        """Restore what the code may have changed, except PyTorch's generators."""
        random.setstate(python)
        torch.backends.mha.set_fastpath_enabled(fast)
        if numpy is not None:
            numpy.random.set_state(numbers)
        torch.set_default_dtype(kept[0])
        if torch.get_num_threads() != kept[1]:
            torch.set_num_threads(kept[1])
        sys.path[:] = kept[2]
        if dict(os.environ) != kept[3]:
            os.environ.clear()
            os.environ.update(kept[3])
        if _determinism() != strict:  # setting it imports the compiler, for seconds
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        if os.getcwd() != folder:
            os.chdir(folder)

    with (
        torch.random.fork_rng(),
        warnings.catch_warnings(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        undoing() as undo,
    ):
        warnings.simplefilter("ignore")
        undo.append(restore)
        # One operation for a whole layer shows nothing of what it does.
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def left_alone(subject: Subject) -> Iterator[None]:
    """Run a module that could not be copied in eval mode in this block, and restore it after; no-op for any other."""
    original = subject.original
    if subject.copied or not isinstance(original, nn.Module):
        yield
        return
    state = {name: value.clone() for name, value in original.state_dict().items()}
    modes = {module: module.training for module in original.modules()}
    gradients = {each: each.grad for each in original.parameters()}

    def restore() -> None:
        original.load_state_dict(state)
        for module, mode in modes.items():
            module.training = mode
        for each, gradient in gradients.items():
            each.grad = gradient

    with undoing() as undo:
        undo.append(restore)
        original.eval()
        yield


def name_of(found: Any) -> str:
    """Return the name of a class or function, or of the class of an instance."""
    return getattr(found, "__name__", None) or type(found).__name__
