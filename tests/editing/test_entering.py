"""The edit is in force in the context that entered it, until it is left, whatever cuts it short."""

import contextvars
import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clearhead as ch
from clearhead.editing import entering
from clearhead.editing.edit import followed
from clearhead.errors import EditError
from tests.interrupts import Interrupt, left_behind
from tests.refusals import assert_refused
from tests.watching.models import Itself

WIDTH = 8
X = torch.randn(2, 5, WIDTH)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    assert left_behind() == []
    yield
    assert left_behind() == []


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=8, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2).eval()


class Blocks(nn.Module):
    def __init__(self, run: Callable[..., Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), Itself()) for _ in "ab")
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + self.run(block, x)
        return x


def hooks_on(model: nn.Module) -> list[Any]:
    names = "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called"
    return [each for module in model.modules() for name in names for each in vars(module)[name]]


def test_an_interrupt_before_the_first_line_of_what_leaves() -> None:
    """The edit is kept, and so is the error, and with it the frames, as at a prompt."""
    model = Itself()
    edit = ch.edit(model)
    edit[""].ablate()
    before = model(X)

    def leave(*_: object) -> None:
        raise Interrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(edit), "__exit__", entering.by_use(leave))
        with pytest.raises(Interrupt) as kept, edit:
            assert not model(X).any()
    assert torch.equal(model(X), before)
    assert kept.tb is not None
    with edit:
        assert not model(X).any()


def test_by_hand_and_by_a_stack_it_is_in_force_until_it_is_left() -> None:
    model = Itself()
    edit = ch.edit(model)
    edit[""].ablate()
    with ExitStack() as stack:
        stack.enter_context(edit)
        assert not model(X).any()
    assert model(X).any()
    edit.__enter__()
    assert not model(X).any()
    with pytest.raises(EditError, match=r"\[edit.entered\]"), edit:
        pass
    assert not model(X).any()
    edit.__exit__(None, None, None)
    assert model(X).any()


def in_thread(act: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_edit_one_model_each_get_their_own_and_another_none() -> None:
    model, meet = Blocks(), threading.Barrier(3)
    before, found = model(X), {}

    def alone(block: int) -> Tensor:
        with ch.edit(model) as edit:
            edit[f"blocks.{block}"].ablate()
            return model(X)

    def run(block: int) -> None:
        with ch.edit(model) as edit, ch.watch(model):
            edit[f"blocks.{block}"].ablate()
            meet.wait(20)
            found[block] = [model(X) for _ in range(5)]
            meet.wait(20)

    expected = [alone(0), alone(1)]
    threads = [threading.Thread(target=run, args=(block,)) for block in (0, 1)]
    for each in threads:
        each.start()
    meet.wait(20)
    plain = [model(X) for _ in range(5)]
    meet.wait(20)
    for each in threads:
        each.join()
    assert all(torch.equal(each, before) for each in plain)
    for block in (0, 1):
        assert all(torch.equal(each, expected[block]) for each in found[block])


def test_a_thread_takes_the_edit_along_with_its_context() -> None:
    model = Itself()
    with ch.edit(model) as edit:
        edit[""].ablate()
        assert in_thread(lambda: model(X)).any()
        assert not in_thread(partial(contextvars.copy_context().run, model, X)).any()
        kept = contextvars.copy_context()
    assert kept.run(model, X).any()


@torch.no_grad()
def test_the_fast_path_is_off_for_the_model_that_is_edited_alone() -> None:
    model, other = encoder(), encoder()
    taken: list[bool] = []
    for each in (model, other):
        each.layers[0].register_forward_pre_hook(
            lambda *_: taken.append(torch.backends.mha.get_fastpath_enabled())
        )
    with followed(model):
        model(X)
        other(X)
        in_thread(lambda: model(X))
        assert torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        other(X)
        torch.backends.mha.set_fastpath_enabled(True)
    model(X)
    assert taken == [False, True, True, False, True]


def test_a_copy_of_the_model_is_as_the_model_was() -> None:
    model = encoder()
    before = model(X)
    with ch.edit(model) as edit:
        edit["layers.0"].ablate()
        inside = copy.deepcopy(model)
        assert not torch.equal(model(X), before)
        assert torch.equal(inside(X), before)
    assert torch.equal(inside(X), before)
    assert hooks_on(inside) == []
    with ch.edit(inside) as edit, ch.watch(inside):
        edit["layers.0"].ablate()
        assert not torch.equal(inside(X), before)
    assert not any(each._forward_pre_hooks_with_kwargs for each in inside.modules())


class InAnotherThread(torch.autograd.Function):
    """A backward pass that calls another one, so deep that autograd takes another thread."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int, inner: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.rest = depth, inner
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,), (depth, inner) = ctx.saved_tensors, ctx.rest
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            THREADS.add(threading.get_ident())
            more = inner(x) if depth == 0 else InAnotherThread.apply(x, depth - 1, inner)
        return torch.autograd.grad(more, x, grads[0])[0], None, None


THREADS: set[int] = set()


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_runs_again_is_edited_by_the_thread_that_asked(reentrant: bool) -> None:
    model = Blocks(partial(checkpoint, use_reentrant=reentrant))
    plain = Blocks()
    plain.load_state_dict(model.state_dict())

    def grad(model: nn.Module, block: int | None) -> Tensor:
        x = X.clone().requires_grad_()
        with followed(model) as edit:
            if block is not None:
                edit[f"blocks.{block}"].hide(key=0)
            return torch.autograd.grad(model(x).square().sum(), x)[0]

    expected = [grad(plain, block) for block in (None, 0, 1)]
    assert not torch.equal(expected[1], expected[2])
    if not reentrant:  # which has no torch.autograd.grad
        for block, right in zip((None, 0, 1), expected, strict=True):
            torch.testing.assert_close(grad(model, block), right, rtol=0, atol=0)
    x = X.clone().requires_grad_()
    with ch.edit(model) as edit:
        edit["blocks.1"].hide(key=0)
        loss = model(x).square().sum()
        other = in_thread(lambda: grad(plain, None))
        loss.backward()
    torch.testing.assert_close(x.grad, expected[2], rtol=0, atol=0)
    torch.testing.assert_close(other, expected[0], rtol=0, atol=0)


def test_a_thread_of_autograds_own_has_the_edits_of_the_one_that_asked() -> None:
    model = Blocks()

    def grad(edits: bool) -> Tensor:
        x = X.clone().requires_grad_()
        with followed(model) as edit:
            if edits:
                edit["blocks.0"].hide(key=0)
            model(x)
            THREADS.clear()
            loss = InAnotherThread.apply(x, 70, lambda x: model(x).square())
            return torch.autograd.grad(loss, x, torch.ones_like(x))[0]

    x = X.clone().requires_grad_()
    with ch.edit(model) as edit:
        edit["blocks.0"].hide(key=0)
        expected = torch.autograd.grad(model(x).square().sum(), x)[0]
        other = in_thread(lambda: grad(edits=False))
        assert len(THREADS) > 1
    torch.testing.assert_close(grad(edits=True), expected)
    plain = torch.autograd.grad(model(x).square().sum(), x)[0]
    torch.testing.assert_close(other, plain)


class Function(nn.Module):
    """Has a checkpoint run what is no module."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(F.scaled_dot_product_attention, x, x, x, use_reentrant=False)


def test_a_function_that_a_checkpoint_runs_again_is_refused() -> None:
    model, x = Function(), X.clone().requires_grad_()
    with ch.edit(model) as edit:
        edit[""].hide(key=0)
        loss = model(x).sum()
        assert_refused(loss.backward, "edit.checkpoint")
        edit.clear()
        model(x).sum().backward()
