"""Runs that begin at the edited layer, held against those of all blocks, bit for bit."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing import measuring, replaying
from clearhead.editing.edit import followed
from clearhead.editing.replaying import Replay
from tests.integrations.models import KINDS, inputs, make

WIDTH, HEADS, LEN = 12, 4, 5


def score(output: Any) -> Tensor:
    made = output["logits" if "logits" in output else "last_hidden_state"]
    return (made * torch.linspace(-1, 1, made[0].numel()).view_as(made[0])).sum()


def attending(model: nn.Module, given: object) -> list[str]:
    with torch.no_grad(), followed(model) as edit:
        measuring.called(model, given)
    return list(edit.attended)


def whole(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> list[float]:
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "Replay", lambda *given: None)
        return ch.effects(*args, **options)["metric"].tolist()


@pytest.mark.parametrize("name", KINDS)
def test_every_architecture_gives_what_whole_runs_give(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name)
    clean: dict[str, Any] = {**inputs(name), "use_cache": True}
    corrupt = {
        each: value.flip(1) if each.endswith("input_ids") else value
        for each, value in clean.items()
    }
    for tokens in (0, 256):
        monkeypatch.setattr(replaying, "TOKENS", tokens)
        found = ch.effects(model, clean, corrupt, score)["metric"].tolist()
        expected = whole(monkeypatch, model, clean, corrupt, score)
        # Several copies have what one had, which another size of batch rounds otherwise.
        assert found == (pytest.approx(expected, rel=1e-4) if tokens else expected)
    # Decoders of two texts keep an object of two caches: the encoder alone is left out.
    assert Replay(model, corrupt, attending(model, corrupt))


class Block(nn.Module):
    """A block that counts how often it ran."""

    def __init__(self, between: Callable[["Block", Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.attention = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.between = between

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        runs[-1] += 1
        if self.between is not None:
            x = self.between(self, x)
        x = x + self.attention(x)
        return x + self.mlp(x)


runs = [0]


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module, shared: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.blocks, self.shared = nn.ModuleList(blocks), shared

    def forward(self, x: Tensor) -> Tensor:
        more = () if self.shared is None else (self.shared(),)
        for each in self.blocks:
            x = each(x, *more)
        return x


def stack(between: Callable[[Block, Tensor], Tensor] | None = None, **options: Any) -> Stack:
    return Stack(*(Block(between) for _ in "abc"), **options).eval()


def ran(model: nn.Module, layer: int = -1) -> int:
    """How many blocks run where the one is edited."""
    x = torch.randn(2, LEN, WIDTH)
    layers = attending(model, x)
    replay = Replay(model, x, layers)
    before = runs[-1]
    with torch.no_grad(), followed(model), replay.before([layers[layer]]):
        assert torch.equal(model(x), replay.output)
    return runs[-1] - before


def test_only_what_comes_from_the_layer_on_runs() -> None:
    assert [ran(stack(), layer) for layer in range(3)] == [3, 2, 1]
    once = Block().eval()
    assert ran(Stack(once, Block().eval(), once).eval()) == 3
    assert ran(Stack(Block(), Block()).train()) == 2


def kept(block: Block, x: Tensor) -> Tensor:
    block.last = x
    return x


def listed(block: Block, x: Tensor) -> Tensor:
    vars(block).setdefault("all", []).append(x)
    return x


def written(block: Block, x: Tensor) -> Tensor:
    return x.add_(1)


@pytest.mark.parametrize("between", [kept, listed, written])
def test_a_block_that_writes_is_run(between: Callable[[Block, Tensor], Tensor]) -> None:
    model = stack(between)
    x = torch.randn(2, LEN, WIDTH)
    with torch.no_grad():
        model(x.clone())
    layers = attending(model, x.clone())
    replay = Replay(model, x.clone(), layers)
    before = runs[-1]
    with torch.no_grad(), replay.before([layers[-1]]):
        assert torch.equal(model(x.clone()), model(x.clone()))
    assert runs[-1] - before == 6


def test_what_others_may_look_at_is_run() -> None:
    assert ran(stack(shared=dict)) == 3
    assert ran(stack(shared=tuple)) == 1
    model: Any = stack()
    handle = model.blocks[0].mlp.register_forward_hook(lambda *_: None)
    assert ran(model) == 2
    handle.remove()
    model.blocks[1].mlp.forward = model.blocks[1].mlp.forward
    assert ran(model) == 2
    with ch.watch(model := stack()):
        assert ran(model) == 3
    with torch.inference_mode():
        assert ran(stack()) == 3


def test_a_run_that_differs_without_an_edit_is_whole() -> None:
    class Attends(nn.Module):
        """Asks its blocks for something else than their outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.stack = stack()

        def forward(self, x: Tensor) -> Tensor:
            before = runs[-1]
            made = self.stack(x)
            return made + runs[-1] - before

    assert ran(Attends().eval()) == 3


def test_threads_run_all_blocks_and_an_interrupt_puts_them_back() -> None:
    model, x = stack(), torch.randn(2, LEN, WIDTH)
    layers = attending(model, x)
    replay = Replay(model, x, layers)
    other = torch.randn(1, LEN, WIDTH)
    expected, found = model(other), []

    def interrupted() -> None:
        with replay.before(layers[-1:]):
            thread = threading.Thread(target=lambda: found.append(model(other)))
            thread.start()
            thread.join()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(found[0], expected)
    assert torch.equal(model(other), expected)
    assert not any("forward" in vars(each) for each in model.modules())
