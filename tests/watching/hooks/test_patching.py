"""One function in the place of another, and back."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.torch_internals import compiler_rules
from clearhead._common.undoing import Undo
from clearhead.watching.hooks.patching import Replacement


def old() -> str:
    return "old"


def new() -> str:
    return "new"


def somebody_elses() -> str:
    return "somebody else's"


@pytest.fixture
def module() -> Iterator[Any]:
    made: Any = types.ModuleType("has_functions_under_names")
    made.first, made.second, made.other = old, old, somebody_elses
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_every_name_in_every_module_but_the_own(module: Any) -> None:
    undo: Undo = []
    Replacement([(old, new)], [globals()]).install(undo)
    assert old() == "old"
    assert (module.first(), module.second(), module.other()) == ("new", "new", "somebody else's")
    undo.pop()()
    assert (module.first(), module.second()) == ("old", "old")


def test_what_came_meanwhile(module: Any) -> None:
    undo: Undo = []
    Replacement([(old, new)], [globals()]).install(undo)
    module.third = module.first
    module.second = somebody_elses
    undo.pop()()
    assert (module.first(), module.third()) == ("old", "old")
    assert module.second is somebody_elses


def test_what_is_back_is_known_to_the_compiler() -> None:
    """It reads PyTorch's functions once, at its first use, which may be in between."""
    x = torch.randn(1, 2, 3)
    torch.compile(torch.sin, backend="eager")(x)
    rules = compiler_rules()
    assert rules is not None
    rules.cache_clear()
    torch._dynamo.reset()
    undo: Undo = []
    Replacement([(F.scaled_dot_product_attention, new)], [globals()]).install(undo)
    torch.compile(torch.sin, backend="eager")(x)
    undo.pop()()

    @torch.compile(backend="eager", fullgraph=True)
    def attended(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    assert attended(x).shape == x.shape
