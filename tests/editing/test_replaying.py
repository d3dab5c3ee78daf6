"""Runs that begin at the edited layer, held against those of all blocks, bit for bit."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing import measuring
from clearhead.editing.activation_patching import Runs
from clearhead.editing.edit import followed
from clearhead.editing.replaying import Replay
from tests.integrations.models import KINDS, inputs, make

WIDTH, HEADS, LEN = 12, 4, 5


def score(output: Any) -> Tensor:
    made = output["logits" if "logits" in output else "last_hidden_state"]
    return (made * torch.linspace(-1, 1, made[0].numel()).view_as(made[0])).sum()


def whole(*args: Any, **options: Any) -> list[float]:
    """The effects by whole runs, one for each edit."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measuring, "TOKENS", 0)
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
    expected = whole(model, clean, corrupt, score)
    for tokens in (0, 256):
        monkeypatch.setattr(measuring, "TOKENS", tokens)
        found = ch.effects(model, clean, corrupt, score)["metric"].tolist()
        # Several copies have what one had, which another size of batch rounds otherwise.
        assert found == (pytest.approx(expected, rel=1e-4) if tokens else expected)
    with torch.no_grad(), followed(model) as edit:
        model(**corrupt)
    assert Replay(Runs(model, corrupt, None, score), list(edit.attended))._kept


class Block(nn.Module):
    """A block that counts how often it ran."""

    def __init__(self, between: Callable[["Block", Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.attention = ch.MultiHeadAttention(WIDTH, num_heads=HEADS)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        runs[-1] += 1
        if self.between is not None:
            x = self.between(self, x)
        x = x + self.attention(x)
        return x + self.mlp(x)


runs = [0]


def stack(between: Callable[[Block, Tensor], Tensor] | None = None) -> nn.Sequential:
    return nn.Sequential(*(Block(between) for _ in "abc")).eval()


def ran(model: nn.Module, layer: int = -1) -> int:
    """How many blocks run where the one is edited."""
    x = torch.randn(2, LEN, WIDTH)
    with torch.no_grad(), followed(model) as edit:
        output = model(x)
    layers = list(edit.attended)
    replay = Replay(Runs(model, x, output, score), layers)
    before = runs[-1]
    with torch.no_grad(), followed(model), replay.before([layers[layer]]):
        made = model(x)
    count = runs[-1] - before
    if not model.training:
        assert torch.equal(made, output) or count == 3
    return count


def test_only_what_comes_from_the_layer_on_runs() -> None:
    assert [ran(stack(), layer) for layer in range(3)] == [3, 2, 1]
    once = Block().eval()
    assert ran(nn.Sequential(once, Block().eval(), once)) == 3
    assert ran(nn.Sequential(Block(), Block()).train()) == 2


def kept(block: Block, x: Tensor) -> Tensor:
    block.last = x
    return x


def written(block: Block, x: Tensor) -> Tensor:
    return x.add_(1)


@pytest.mark.parametrize("between", [None, kept, written])
def test_blocks_that_write_have_the_effects_of_whole_runs(between: Any) -> None:
    model, x = stack(between), torch.randn(2, LEN, WIDTH)

    class Copied(nn.Module):
        """Gives its blocks an input that they may write to, and adds it to the output."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            return self.blocks(x) + x

    outer = Copied().eval()
    found = ch.effects(outer, x, lambda output: output.square().mean())["metric"].tolist()
    expected = whole(outer, x, lambda output: output.square().mean())
    assert found == pytest.approx(expected, rel=1e-5)


def test_what_others_may_look_at_is_run() -> None:
    model: Any = stack()
    handle = model[0].mlp.register_forward_hook(lambda *_: None)
    assert ran(model) == 2
    handle.remove()
    model[1].mlp.forward = model[1].mlp.forward
    assert ran(model) == 2
    with ch.watch(model := stack()):
        assert ran(model) == 3
    # The output rests on how often the blocks ran.
    counted: Any = stack(lambda block, x: x + runs[-1] % 7)
    assert ran(counted) == 3


def test_threads_run_all_blocks_and_an_interrupt_puts_them_back() -> None:
    model, x = stack(), torch.randn(2, LEN, WIDTH)
    layers = [f"{each}.attention" for each in range(3)]
    replay = Replay(Runs(model, x, None, score), layers)
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
