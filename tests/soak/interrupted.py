"""What is interrupted at any moment, and must leave nothing: a watch, an edit, a conversion, a file; and edits in
threads, which must not meet."""

import contextlib
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import clearhead as ch
from tests.interrupts import interrupt, left_behind, moments

WIDTH, HEADS = 8, 2


class Scene(NamedTuple):
    """Something that is interrupted.

    Attributes:
        act: what is run, again and again.
        left: what is not as it was before, after it was run or interrupted.
    """

    act: Callable[[], Any]
    left: Callable[[], list[str]]


def _model() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=8, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).eval()
    return model.requires_grad_(False), torch.randn(2, 5, WIDTH)


def state_of(model: nn.Module) -> list[object]:
    """Return what an interrupt might leave changed: the modules, their modes, hooks and weights."""
    found: list[object] = []
    for path, module in model.named_modules():
        hooks = [
            (name, len(held))
            for name, held in sorted(vars(module).items())
            if isinstance(held, dict) and "hooks" in name
        ]
        found += [path, id(module), type(module), module.training, hooks]
    return found + [(name, each.sum().item()) for name, each in model.state_dict().items()]


def watched(keep: Any) -> Scene:
    """A model that is watched."""
    model, x = _model()

    def act() -> None:
        with ch.watch(model, keep=keep):
            model(x)

    return _of_model(model, x, act)


def edited(*, held: bool) -> Scene:
    """A model that is edited; `held`, by an edit that somebody keeps."""
    model, x = _model()
    edit = ch.edit(model)

    def change(edit: Any) -> None:
        edit["layers.0"].ablate()
        edit["layers.1"].heads[0].hide(key=0)

    def again() -> None:
        with edit:
            model(x)

    def once() -> None:
        with ch.edit(model) as edit:
            change(edit)
            model(x)

    change(edit)
    return _of_model(model, x, again if held else once)


def _of_model(model: nn.Module, x: Tensor, act: Callable[[], Any]) -> Scene:
    before, state = model(x), state_of(model)

    def left() -> list[str]:
        found = [] if torch.equal(model(x), before) else ["another output"]
        return found + left_behind() + ([] if state_of(model) == state else ["the model"])

    return Scene(act, left)


class Attention(nn.Module):
    """With a packed projection, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = HEADS
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        split = (each.unflatten(-1, (HEADS, -1)) for each in self.c_attn(x).chunk(3, dim=-1))
        query, key, value = (each.transpose(1, 2) for each in split)
        context = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(context.transpose(1, 2).flatten(-2))


def converted() -> Scene:
    """A model that is converted and taken back. Whole, it was interrupted in `undo`, which is called again."""
    model = nn.Sequential(Attention(), nn.Linear(WIDTH, WIDTH), Attention())
    model[2].eval()
    own = model[0], model[2]
    x, conversions = torch.randn(2, 5, WIDTH), []
    before, state = model(x).detach(), state_of(model)

    def act() -> None:
        conversions[:] = [ch.convert(model, inputs=(x,))]
        conversions[0].undo()
        conversions.clear()

    def left() -> list[str]:
        for conversion in conversions:
            conversion.undo()
            conversion.undo()
        conversions.clear()
        whole = [type(each) not in (Attention, nn.Linear) for each in model]
        if whole == [True, False, True] and torch.allclose(model(x), before):
            model[0], model[2] = own  # whole, and the interrupt took what was returned
        found = [] if torch.equal(model(x), before) else ["another output"]
        return found + ([] if state_of(model) == state else ["the model"])

    return Scene(act, left)


def saved(folder: str) -> Scene:
    """A file that is written over an older one."""
    model, x = _model()
    place = Path(folder) / "a.clearhead"
    with ch.watch(model) as seen:
        model(x)
    seen.save(place)
    known = place.read_bytes()

    def left() -> list[str]:
        beside = [each for each in Path(folder).iterdir() if each != place]
        for each in beside:
            each.unlink()
        half = [] if place.read_bytes() == known else ["half of a file"]
        return [each.name for each in beside] + half

    return Scene(lambda: seen.save(place), left)


SCENES: dict[str, Callable[[str], Scene]] = {
    "watch": lambda _: watched("matrix"),
    "watch with summaries": lambda _: watched("summary"),
    "edit": lambda _: edited(held=False),
    "edit that is held": lambda _: edited(held=True),
    "convert": lambda _: converted(),
    "save": saved,
}
"""Each made with a folder of its own."""


def interrupted(name: str, count: int, seed: int = 0) -> tuple[int, list[str]]:
    """Interrupt a scene at random moments; returns how many interrupts got out of it, and what was left."""
    at_random, out, failed = random.Random(seed), 0, []
    with tempfile.TemporaryDirectory() as folder:
        scene = SCENES[name](folder)
        for _ in range(2):
            scene.act()
        places = moments(scene.act)
        for each in range(count):
            # Of the places the first time, or any moment: most are in loops.
            moment = at_random.choice(places) if each % 2 else at_random.randrange(max(places) + 1)
            out += interrupt(scene.act, moment)
            if found := scene.left():
                failed.append(f"{name}, moment {moment}: {', '.join(found)}")
    return out, failed


def in_threads(count: int, seed: int = 0) -> list[str]:
    """Edit one model in three threads beside one that runs it as it is, so many times; returns which of them
    got another output than alone."""
    model, x = _model()
    at_random, failed = random.Random(seed), []
    layers, keys = ("layers.0", "layers.1", "*"), range(5)

    def once(operation: tuple[str, int, int] | None) -> Tensor:
        if operation is None:
            return model(x)
        layer, head, key = operation
        with ch.edit(model) as edit:
            edit[layer].heads[head].hide(key=key)
            return model(x)

    for number in range(count):
        operations = [
            None,
            *(
                (at_random.choice(layers), at_random.randrange(HEADS), at_random.choice(keys))
                for _ in "abc"
            ),
        ]
        expected, found = [once(each) for each in operations], [[] for _ in operations]

        def run(place: int, operations: Any = operations, found: Any = found) -> None:
            with contextlib.suppress(Exception):  # what is not there is wrong
                found[place] = [once(operations[place]) for _ in range(3)]

        threads = [threading.Thread(target=run, args=(place,)) for place in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for place, right in enumerate(expected):
            if len(found[place]) != 3 or not all(torch.equal(each, right) for each in found[place]):
                failed.append(f"threads, {number}: {operations[place]} beside {operations}")
        failed += [f"threads, {number}: {each} is left" for each in left_behind()]
    return failed
