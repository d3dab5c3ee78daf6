"""Path patching, held against two runs with everything between frozen by hand, in float64."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import EditError, EditWarning
from tests.editing.by_hand import ByHand, by_hand, edited
from tests.integrations.models import KINDS, Exact, pair
from tests.refusals import refusals

paths: Any = ch.paths  # with arguments of other types
WIDTH, HEADS, LEN = 12, 4, 5
PARTS = ("query", "key", "value")

BESIDE: dict[str, tuple[str, ...]] = {
    "gpt2": (r"h\.\d+\.mlp",),
    "t5": (r"DenseReluDense",),
    "bart": (r"layers\.\d+\.fc1", r"layers\.\d+\.fc2"),
    "bert": (r"intermediate\.dense", r"layer\.\d+\.output\.dense"),
    "vit": (r"intermediate\.dense", r"layer\.\d+\.output\.dense", r"layers?\.\d+\.mlp"),
    "whisper": (r"layers\.\d+\.fc1", r"layers\.\d+\.fc2"),
}
"""The paths of what is beside attention, of each architecture; of all others their MLPs."""


class Patching(ByHand):
    """What is kept of each module that attends, and what is put in, by its place in the order."""

    def __init__(self) -> None:
        super().__init__(0)
        self.place = -1
        self.kept: dict[str, list[Tensor]] = {"context": [], **{part: [] for part in PARTS}}
        self.put: dict[tuple[str, int], dict[int | None, Tensor]] = {}

    def at(self, module: nn.Module) -> bool:
        super().at(module)
        self.place = next(at for at, each in enumerate(self.seen) if each is module)
        return True

    def change(self, name: str, tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        for head, new in self.put.get((name, self.place), {}).items():
            heads = slice(None) if head is None else head
            tensor[:, heads] = new[:, heads]
        self.kept[name].append(tensor)
        return tensor

    def inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        change = self.change
        return change("query", query), change("key", key), change("value", value)

    def context(self, context: Tensor) -> Tensor:
        return self.change("context", context)


@contextmanager
def beside(model: nn.Module, name: str, outputs: dict[str, Any], *, put: bool) -> Iterator[None]:
    """Keep the outputs of what is beside attention, or put them in."""

    def hook(path: str) -> Any:
        def run(module: nn.Module, args: Any, output: Any) -> Any:
            return outputs[path] if put else outputs.update({path: output})

        return run

    wanted = re.compile("|".join(f"(?:{each})$" for each in BESIDE.get(name, (r"\.mlp",))))
    some = [(path, module) for path, module in model.named_modules() if wanted.search(path)]
    assert len(some) >= 2
    handles = [module.register_forward_hook(hook(path)) for path, module in some]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def metric(output: Any) -> Tensor:
    output = output.logits if "logits" in output else output.last_hidden_state
    return (output[:, -1] * torch.linspace(-1, 1, output.shape[-1])).sum()


def reference(
    name: str, sender: tuple[int, int], receivers: list[tuple[int, int, str]] | None, frozen: str
) -> float:
    model, clean, corrupt = pair(name)
    model = by_hand(model)
    outputs: dict[str, Any] = {}

    def run(given: dict[str, Tensor], hand: Patching) -> float:
        with Exact(), torch.no_grad(), edited(hand):
            return float(metric(model(**given)))

    said, own, first, second = (Patching() for _ in range(4))
    run(clean, said)
    with beside(model, name, outputs, put=False):
        run(corrupt, own)
    count = len(own.kept["context"])
    first.put["context", sender[0]] = {sender[1]: said.kept["context"][sender[0]]}
    for at in range(sender[0] + 1, count):
        first.put["context", at] = {None: own.kept["context"][at]}
    if frozen == "others":
        with beside(model, name, outputs, put=True):
            number = run(corrupt, first)
    else:
        number = run(corrupt, first)
    if receivers is None:
        return number
    for layer, head, part in receivers:
        layer %= count
        second.put.setdefault((part, layer), {})[head] = first.kept[part][layer]
    return run(corrupt, second)


@pytest.mark.parametrize("frozen", ["others", "heads"])
@pytest.mark.parametrize("name", [*KINDS, "vit", "whisper"])
def test_paths_are_those_by_hand(name: str, frozen: str) -> None:
    model, clean, corrupt = pair(name)
    several = [(-1, 1, "query"), (-1, 2, "value"), (1, 0, "key")]
    changes = []
    for receivers in (None, several, [(-1, 0, "key")], [(-1, 0, "query"), (-1, 0, "value")]):
        options: Any = {"metric": metric, "sender": (0, 1), "receivers": receivers}
        with Exact():
            found = paths(model, clean, corrupt, **options, frozen=frozen)
        expected = reference(name, (0, 1), receivers, frozen)
        assert found[0].metric == pytest.approx(expected, rel=0, abs=1e-10), receivers
        changes.append(abs(found[0].change))
    assert max(changes) > 1e-4


def stack(depth: int = 3) -> tuple[Any, Tensor, Tensor]:
    torch.manual_seed(0)
    layers = (ch.MultiHeadAttention(WIDTH, HEADS, mask=ch.causal()) for _ in range(depth))
    clean, corrupt = torch.randn(2, 2, LEN, WIDTH, dtype=torch.float64)
    return nn.Sequential(*layers).double().eval(), clean, corrupt


def total(output: Tensor) -> Tensor:
    return output.square().sum()


def test_all_heads_before_the_receivers_are_senders() -> None:
    model, clean, corrupt = stack()
    done: list[tuple[int, int]] = []
    receivers = [(1, 0, "value"), (2, 3, "key")]
    found = paths(
        model, clean, corrupt, metric=total, receivers=receivers, progress=lambda *n: done.append(n)
    )
    every = [(layer, head) for layer in "01" for head in range(HEADS)]
    assert [row[:2] for row in found] == every
    assert done == [(each, 8) for each in range(9)]
    some = paths(model, clean, corrupt, metric=total, sender=[(0, 2), (1, -1)], receivers=receivers)
    assert list(some) == [found[2], found[7]]
    rows = paths(model, clean, corrupt, metric=total, sender=some, receivers=receivers)
    assert list(rows) == list(some)
    whole = paths(model, clean, corrupt, metric=total)
    assert len(whole) == 12
    assert whole[0].change == pytest.approx(0.0, abs=1e-9)
    last = paths(model, clean, corrupt, metric=total, sender=(2, 1))
    assert last[0] == whole[9]
    with ch.watch(model, keep="contexts") as seen:
        model(clean)
    with ch.edit(model) as edit:
        edit[2].heads[1].replace(seen)
        assert last[0].metric == float(total(model(corrupt)).detach())


def test_one_receiver_is_a_list_of_one() -> None:
    model, clean, corrupt = stack(2)
    for part in PARTS:
        expected = list(paths(model, clean, corrupt, metric=total, receivers=[(1, 0, part)]))
        for given in ((1, 0, part), (1, 0, part[0]), [(-1, 0, part[0])]):
            assert list(paths(model, clean, corrupt, metric=total, receivers=given)) == expected


test_what_is_no_path_is_refused = refusals(
    lambda options: paths(*stack(), **({"metric": total} | options)),
    ({"frozen": "mlp"}, "frozen.value", 'frozen // "others", "heads" // \'mlp\''),
    ({"metric": 3}, "effects.metric", "3"),
    ({"progress": 3}, "effects.progress", "3"),
    ({"sender": 3}, "paths.sender", "sender // 3"),
    ({"sender": []}, "paths.sender", "sender // []"),
    ({"sender": (0, "x")}, "paths.sender", "sender // (0, 'x')"),
    ({"receivers": [(1, 0, "z")]}, "paths.receivers", "[(1, 0, 'z')]"),
    ({"receivers": [(1, 0, ["key"])]}, "paths.receivers", "[(1, 0, ['key'])]"),
    ({"receivers": (1, 0)}, "paths.receivers", "(1, 0)"),
    ({"receivers": (1, 0, "key", "value")}, "paths.receivers", "(1, 0, 'key', 'value')"),
    ({"sender": (7, 0)}, "edit.layers", "7 // '0', '1', '2'"),
    ({"sender": ("*", 0)}, "edit.layers", "'*' // 3 // '0', '1', '2'"),
    ({"sender": (0, 4)}, "edit.heads", "heads[4] // 0 // 4"),
    (
        {"sender": (2, 0), "receivers": [(1, 0, "key")]},
        "paths.order",
        "'2', '1' // '0', '1', '2'",
    ),
    ({"receivers": [(0, 0, "key")]}, "paths.order", "'0' // '0', '1', '2'"),
    (
        {"sender": (1, 0), "receivers": [(1, 0, "key"), (2, 0, "key")]},
        "paths.order",
        "'1' // '0', '1', '2'",
    ),
)


def test_models_and_inputs_that_do_not_fit_are_refused() -> None:
    model, clean, corrupt = stack()
    text = "[effects.inputs] the clean and the corrupt run must have the same numbers of"
    for other in (clean[:, :3], clean[:1]):
        with pytest.raises(EditError, match=re.escape(text)):
            paths(model, other, corrupt, metric=total)
    with pytest.raises(EditError, match=re.escape("[paths.order] ")):
        paths(nn.Linear(WIDTH, 2).double(), clean, corrupt, metric=total)


def test_what_cannot_be_frozen_is_refused() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).softmax(dim=-1) @ x

    model, clean, corrupt = stack(2)
    model = nn.Sequential(*model.children(), Own())
    with pytest.raises((EditError, EditWarning), match=re.escape("[edit.missing]")):
        paths(model, clean, corrupt, metric=total)
