"""What is checked: found, made, copied and called, and left as it was.

A module is copied, and the copy is run in float64. Whatever is drawn at random on the way, the
generators are put back.
"""

import importlib
import importlib.util
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.calling import by_heads, call
from clearhead.checking.contract import Contract
from clearhead.checking.enclosing import Enclosing, duplicate, held_by
from clearhead.checking.making import declared_arguments
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError

TAKES = ("qkv", "qkv,mask", "x", "x2d", "x,mask", "x,context", "decode")


class Subject:
    """Somebody's attention, ready to be called.

    Args:
        given: a class, an instance, a function, a dotted path, or "file.py:Name".
        takes: how it is called.
        args: for the constructor, where a class is given; what the contract says of its
            parameters, by their names, need not be said again.
        contract: what is declared.
        seed: of a class's own weights.
    """

    def __init__(
        self, given: Any, takes: str, args: Mapping[str, Any] | None, contract: Contract, seed: int
    ) -> None:
        if takes not in TAKES:
            raise ArgumentError(
                "check.takes", f"takes must be one of {', '.join(TAKES)}; got {takes!r}."
            )
        self.takes, self.args, self.contract, self.seed = takes, args, contract, seed
        found = located(given) if isinstance(given, str) else given
        self.cls = found if inspect.isclass(found) else None
        if args is not None and self.cls is None:
            raise ArgumentError("check.args", "args are for a class; what is checked is none.")
        self.name = name_of(found)
        if self.cls is not None:
            self.args = {**declared_arguments(self.cls, contract), **(args or {})}
        self.original = found if self.cls is None else self._made(self.args or {})
        if not callable(self.original) and takes != "decode":
            raise ArgumentTypeError(
                "check.subject",
                "what is checked must be a class, an instance, a function, or where one is found; "
                f"got {type(found).__name__}.",
            )
        held = {} if takes == "decode" else held_by(self.original)
        if held:
            self.original = Enclosing(self.original, held)
        self.copied, self.run = _copy(self.original)
        # What is handed in beside the first input, where only that one is asked about.
        self.beside: Callable[[Tensor], tuple[Tensor, ...]] = lambda x: ()
        self.dtype = torch.float64
        # Of query, key and value; fewer than 4 where heads are handed over one by one.
        self.axes = 4
        # Whether the causal mask is handed to a module that could do without.
        self.hands_mask = True
        if self.module is not None and self.copied:
            self.module.eval().to(device="cpu", dtype=torch.float64)

    def _made(self, args: Mapping[str, Any]) -> Any:
        assert self.cls is not None
        torch.manual_seed(self.seed)
        try:
            return self.cls(**args)
        except Exception as error:
            raise ModelError(
                "check.made",
                f"{self.name}({', '.join(f'{k}={v!r}' for k, v in args.items())}) could not be "
                f"made: {type(error).__name__}: {error}\n  args=dict(…) are handed to it, and "
                "what sizes=dict(…) says of its parameters. What wants a config goes in "
                "as an instance: attention = Attention(Config()) in a file is file.py:attention.",
            ) from error

    def sibling(self, args: Mapping[str, Any]) -> "Subject":
        """Another instance of the same class, made with other arguments."""
        return Subject(type(self.original), self.takes, args, self.contract, self.seed)

    @property
    def module(self) -> nn.Module | None:
        """The module that is run, if it is one."""
        return self.run if isinstance(self.run, nn.Module) else None

    def parts(self) -> Iterator[nn.Module]:
        """Every module in it; of an object that is none, of those that it holds."""
        held = vars(self.run).values() if hasattr(self.run, "__dict__") else ()
        tops = [self.run] if self.module is not None else held
        for top in tops:
            if isinstance(top, nn.Module):
                yield from top.modules()

    def use(self, dtype: torch.dtype) -> None:
        """Run in another precision from now on."""
        self.dtype = dtype
        if self.module is not None and self.copied:
            self.module.to(dtype)

    def settled(self, given: Sequence[Tensor], output: Tensor) -> Tensor:
        """The output, or the one in float32 where only that is finite; it then stays there.

        A constant such as finfo.min of another precision is no mistake in that precision.
        """
        if self.dtype != torch.float64 or output.isfinite().all():
            return output
        self.use(torch.float32)
        try:
            again = self(*given).detach()
        except Exception:  # what runs in float64 only stays there
            again = output
        if again.isfinite().all():
            return again
        self.use(torch.float64)
        return output

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The output for copies of these inputs, turned into the precision it runs in."""
        return self.whole(*tensors)[0]

    def bare(self, *tensors: Tensor) -> Tensor:
        """The output for these very inputs, so that it shows what is done to them."""
        return self._called(tensors)[0]

    def within(self, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        """The output in another precision, of a copy of its own: what is rounded stays rounded."""
        kept = self.dtype
        try:
            with self.spare():
                self.use(dtype)
                return self(*tensors)
        finally:
            self.dtype = kept

    @contextmanager
    def spare(self) -> Iterator[None]:
        """With a copy of the module, so that what it keeps of its calls is not kept."""
        kept = self.run
        if self.module is not None and self.copied:
            self.run = duplicate(self.run)
        try:
            yield
        finally:
            self.run = kept

    def whole(self, *tensors: Tensor) -> tuple[Tensor, Any]:
        """The output, and what was returned besides."""
        # Copies: whoever writes to an input must not spoil it for the next probe.
        return self._called([each.clone() for each in tensors])

    def _called(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        if len(tensors) == 1:
            tensors = (*tensors, *self.beside(tensors[0]))
        turned = [each.to(self.dtype) if each.is_floating_point() else each for each in tensors]
        run = self.run.full if self.takes == "decode" else self.run
        try:
            if self.axes < 4:
                return by_heads(run, self.axes, turned), None
            return call(run, self.takes, turned, bool(self.contract.causal and self.hands_mask))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Cut what a module keeps of a call, a cache or its weights, off the graph of that call."""
        for part in self.parts():
            for place in (vars(part), vars(part)["_buffers"]):
                for name, value in place.items():
                    if isinstance(value, Tensor) and value.grad_fn is not None:
                        place[name] = value.detach()

    @contextmanager
    def training(self) -> Iterator[None]:
        """As it is while training; only a module has a mode."""
        assert self.module is not None
        self.module.train()
        try:
            yield
        finally:
            self.module.eval()


def _copy(original: Any) -> tuple[bool, Any]:
    """A copy, so that the original is never touched; what cannot be copied is used as it is."""
    try:
        return True, duplicate(original)
    except Exception:  # some objects refuse in their own ways
        return False, original


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is done inside, the random numbers and the warnings outside are as before."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numbers)


@contextmanager
def left_alone(original: Any, copied: bool) -> Iterator[None]:
    """Put back the state, mode and gradients of a module that could not be copied."""
    if copied or not isinstance(original, nn.Module):
        yield
        return
    state = {name: value.clone() for name, value in original.state_dict().items()}
    modes = {module: module.training for module in original.modules()}
    gradients = {each: each.grad for each in original.parameters()}
    original.eval()
    try:
        yield
    finally:
        original.load_state_dict(state)
        for module, mode in modes.items():
            module.training = mode
        for each, gradient in gradients.items():
            each.grad = gradient


def name_of(found: Any) -> str:
    """What a person calls it."""
    return getattr(found, "__name__", None) or type(found).__name__


def located(place: str) -> Any:
    """What stands at "file.py:Name", "package.module:Name" or "package.module.Name"."""
    module, colon, name = place.rpartition(":")
    if not colon and not place.endswith(".py"):
        module, _, name = place.rpartition(".")
    if not module or not name:
        raise ArgumentError(
            "check.place",
            f'a place is "file.py:Name" or a dotted import path; got {place!r}.',
        )
    try:
        found: Any = (
            _from_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        )
    except (Exception, SystemExit) as error:  # a script that ends itself would end this one
        raise ModelError(
            "check.import", f"{module} could not be imported: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = [
                each for each in dir(found) if callable(getattr(found, each)) and each[0] != "_"
            ]
            raise ModelError(
                "check.name", f"{module} has no {part}; it has {', '.join(names) or 'nothing'}."
            )
        found = getattr(found, part)
    return found


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_checked_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Beside it may lie what it imports.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
