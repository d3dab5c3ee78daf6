"""The hooks are installed once, and taken out whatever happens."""

import gc
import sys
import threading
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.watching.hooks import installing
from tests.interrupts import FUNCTIONS, left_behind
from tests.memory import new_garbage
from tests.watching.models import Itself

X = torch.randn(2, 2, 5, 8)


@pytest.mark.parametrize("step", range(len(installing.HOOKS)))
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_in_any_step(
    step: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = list(installing.HOOKS)

    def fails(undo: Any) -> None:
        hooks_before[step](undo)
        raise error

    hooks_before = tuple(hooks)
    hooks[step] = fails
    monkeypatch.setattr(installing, "HOOKS", tuple(hooks))
    with pytest.raises(error), ch.watch(Itself()):
        raise AssertionError
    monkeypatch.undo()
    assert left_behind() == []
    model = Itself()
    with ch.watch(model) as seen:
        model(X)
    assert len(seen) == 1


def test_an_error_in_undoing_does_not_stop_it() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    model = Itself()
    with pytest.raises(ZeroDivisionError), ch.watch(model):
        installing._undo.insert(2, fails)
    assert left_behind() == []


def test_the_next_watch_cleans_up_after_one_that_was_never_left() -> None:
    model = Itself()
    with new_garbage():
        forgotten = ch.watch(model)
        forgotten.__enter__()
        assert left_behind() != []
        del forgotten
        gc.collect()
    assert left_behind() == []


class User:
    """Uses the hooks, and is forgotten without a word."""


def test_the_hooks_go_with_the_last_user_and_without_waiting() -> None:
    attend = FUNCTIONS[F, "scaled_dot_product_attention"]
    user, other = User(), User()
    installing.install(user)
    installing.install(other)
    del user
    assert F.scaled_dot_product_attention is not attend  # the other one still does
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with installing._lock:
            taken.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(20)
    del other  # while another thread installs or undoes
    done.set()
    thread.join()
    installing.uninstall(None)
    assert F.scaled_dot_product_attention is attend


class Strange:
    """As a lazy module of other libraries: it answers with an error, or by loading much."""

    def __init__(self, error: BaseException) -> None:
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")


STRANGE: dict[str, Any] = {
    "error": lambda: Strange(RuntimeError("lazy")),
    "interrupt": lambda: Strange(KeyboardInterrupt()),
    "None": lambda: None,
    "dict": lambda: {"a": 1},
    "slots": type("Slots", (), {"__slots__": ()}),
    "class": lambda: type(
        "Own", (), {"attend": staticmethod(FUNCTIONS[F, "scaled_dot_product_attention"])}
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_module_in_sys_modules(name: str) -> None:
    model = Itself()
    sys.modules["something_strange"] = STRANGE[name]()
    try:
        with ch.watch(model) as seen:
            model(X)
    finally:
        del sys.modules["something_strange"]
    assert len(seen) == 1


def test_a_module_with_a_namespace_of_its_own_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lazy(types.ModuleType):
        @property
        def __dict__(self) -> Any:
            raise AssertionError("it loads everything")

    monkeypatch.setitem(sys.modules, "a_lazy_module", Lazy("a_lazy_module"))
    model = Itself()
    with ch.watch(model) as seen:
        model(X)
    assert len(seen) == 1


@pytest.mark.parametrize("rebound", [False, True])
def test_a_module_that_changed_is_searched_again(
    rebound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper: Any = types.ModuleType("a_helper")
    monkeypatch.setitem(sys.modules, "a_helper", helper)

    class Calling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return helper.attend(x, x, x)

    if rebound:
        # The module of a class of the model is always searched.
        Calling.__module__ = "a_helper"
        helper.attend = None
    model = Calling()
    plain = Itself()
    with ch.watch(plain):
        plain(X)
    helper.attend = FUNCTIONS[F, "scaled_dot_product_attention"]
    with ch.watch(model) as seen:
        model(X)
    assert len(seen) == 1
    assert helper.attend is FUNCTIONS[F, "scaled_dot_product_attention"]


@pytest.mark.parametrize("name", ["abc_net", "typing_net", "collections_net", "torch_net.model"])
def test_a_module_that_is_called_like_a_library_is_one_of_the_models(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    class Holding(nn.Module):
        __module__ = name
        attend = staticmethod(F.scaled_dot_product_attention)

        def forward(self, x: Tensor, also: Any = F.scaled_dot_product_attention) -> Tensor:
            return self.attend(x, x, x) + also(x, x, x)

    model = Holding()
    with ch.watch(model) as seen:
        model(X)
    assert len(seen.calls("")) == 2
