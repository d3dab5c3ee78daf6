"""Objects that a function holds on to, and copies that hold on to copies."""

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.checking.subject.copying import duplicate, held_by
from tests.checking.bank import defined

Padded = defined("modules.Padded")

around = nn.Linear(2, 2)


def helper(x: Tensor) -> Tensor:
    return around(x)


def calls(x: Tensor) -> Tensor:
    return helper(x)


def attended(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)


class Holding(nn.Module):
    """As in minGPT: a function in an attribute calls the layers by another way."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = drop = nn.Dropout(0.9)
        self.linear = linear = nn.Linear(3, 3)
        self.run = lambda x, last=linear: last(drop(x))

        def hook(module: nn.Module, given: Any, output: Tensor) -> Tensor:
            return output + 0 * linear.weight.sum()

        self.register_forward_hook(hook)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def test_a_copy_calls_its_own_layers_from_its_functions() -> None:
    original = Holding()
    copied = duplicate(original).eval().double()
    assert copied(torch.ones(2, 3).double()).equal(copied.linear(torch.ones(2, 3).double()))
    assert original.training
    assert original.linear.weight.dtype == torch.float32


def test_a_function_that_holds_on_to_nothing_is_left_alone() -> None:
    holder = SimpleNamespace(run=lambda x: x + 1)
    assert duplicate(holder).run is holder.run


def test_a_recursive_function_is_copied() -> None:
    linear = nn.Linear(2, 2)

    def down(count: int) -> Any:
        return linear if not count else down(count - 1)

    copied = duplicate(SimpleNamespace(linear=linear, down=down))
    assert copied.linear is not linear
    assert copied.down(0) is copied.linear


def test_modules_are_found_in_closures_defaults_methods_partials_and_files() -> None:
    one, two = nn.Linear(2, 2), nn.Identity()
    assert held_by(lambda x, last=two: last(one(x))) == {"one": one, "last": two}
    assert held_by(one.forward) == {"Linear": one}
    assert held_by(functools.partial(one)) == {"func": one}
    assert held_by(functools.partial(attended, layer=two)) == {"layer": two}
    assert held_by(calls) == {"around": around}
    assert held_by(torch.relu) == {}

    def early(x: Tensor) -> Tensor:
        return later(one(x))

    assert held_by(early) == {"one": one}
    later = two
    assert held_by(early) == {"one": one, "later": two}


def test_a_function_around_a_module_in_training_is_checked_as_the_module() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    assert ch.check(lambda x: layer(x, x, x), takes="x").ok
    assert layer.training
    assert layer.in_proj_weight.dtype == torch.float32

    padded = Padded()
    report = ch.check(lambda x: padded(x, torch.ones(x.shape[:2]).bool()), takes="x", num_heads=3)
    assert report.ok
    assert "scale 1/√4" in report.passed


class Keeping(nn.Module):
    """As in the reference of llama: what was projected last is kept, graph and all."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.kept = torch.zeros(4, 16, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.kept.to(x)
        self.kept[: len(x), : x.shape[1]] = self.key(x)
        scores = self.query(x) @ self.kept[: len(x), : x.shape[1]].mT / 6**0.5
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.value(x)


def test_what_a_module_keeps_of_a_call_with_nan_is_not_its_mistake() -> None:
    torch.manual_seed(0)
    report = ch.check(Keeping(), takes="x", causal=True, dtypes=(torch.bfloat16,))
    assert report.ok, report
    assert "gradients" in report.passed


class KeepingAList(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.__dict__["seen"] = [found, {"found": found}]
        return found


def test_what_is_kept_of_a_call_in_a_list_is_copied_without_its_graph() -> None:
    torch.manual_seed(0)
    layer = KeepingAList()
    layer(torch.randn(2, 5, 6))
    other = duplicate(layer)
    one, two = other.__dict__["seen"]
    assert one is two["found"]
    assert torch.equal(one, layer.__dict__["seen"][0])
    assert one.grad_fn is None
    assert layer.__dict__["seen"][0].grad_fn is not None
    assert ch.check(lambda x: layer(x), takes="x", causal=True).ok
