"""The law of parameters: each gets a gradient, is in the optimizer once and moves; the others stay."""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import nn

from clearhead.testing.training.probes import Verdict, broken, held
from clearhead.testing.training.rehearsal import Rehearsal, Script, draw_by

# Steps that each parameter is watched for: one that begins behind a zero moves at the second.
STEPS = 3


def parameters(script: Script) -> Iterator[Verdict]:
    """Each parameter gets a gradient, is in the optimizer once and moves; the others stay."""
    rehearsal = Rehearsal(script, training=True)
    model, groups = rehearsal.model, rehearsal.optimizer.param_groups
    named = dict(model.named_parameters())
    held_once = [id(each) for group in groups for each in group["params"]]
    before = {name: each.detach().clone() for name, each in named.items()}
    ties = _ties(model)
    reached: set[str] = set()
    foreign = [e for g in groups for e in g["params"] if id(e) not in {*map(id, named.values())}]
    lost = len(foreign)
    draw_by(0)
    for _ in range(STEPS):
        rehearsal.step()
        reached |= {n for n, e in named.items() if e.grad is not None and bool(e.grad.any())}
        lost = min(lost, sum(each.grad is None for each in foreign))
    wanting = [name for name, each in named.items() if each.requires_grad]
    yield _of(
        "train.gradient",
        "get no gradient",
        [name for name in wanting if name not in reached],
        "every parameter has a gradient",
        "they are not used, or what is made of them is detached",
    )
    yield _of(
        "train.optimizer",
        "are not in the optimizer once",
        [
            *(f"{name} ({held_once.count(id(named[name]))} times)" for name in wanting
              if held_once.count(id(named[name])) != 1),
            *[f"{lost} that are not the model's"] * (lost > 0),
        ],
        "the optimizer has each parameter once",
        "the optimizer was made before the model was whole, of a part of it, or got a parameter twice",
    )  # fmt: skip
    moved = {n for n, e in model.named_parameters() if not torch.equal(before[n], e.detach())}
    yield _of(
        "train.moved",
        f"have not moved after {STEPS} steps",
        [n for n in wanting if n in reached and n not in moved and id(named[n]) in held_once],
        "every parameter moves",
        "the learning rate is 0, or too small for the dtype",
    )
    yield _of(
        "train.frozen",
        "want no gradient, and have moved",
        [name for name in named if name not in wanting and name in moved],
        "what is frozen stays",
        "the model writes to them, as an embedding with max_norm does, or a gradient was left in .grad",
    )
    untied = [" and ".join(each) for each in ties - _ties(model)] + _nearly_tied(
        script.parts["model"]
    )
    yield _of(
        "train.tied",
        "that are tied are not one",
        untied,
        "tied weights are one",
        "tie the parameters themselves, after all copies: head.weight = embedding.weight",
    )


def _of(code: str, says: str, names: list[str], right: str, likely: str) -> Verdict:
    """A verdict about parameters, by the names of those that break it."""
    if not names:
        return held(code, right)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return broken(code, f"parameters {says}", f"{len(names)}: {shown}", likely)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    """The names of each parameter that has several."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, each in model.named_parameters(remove_duplicate=False):
        names[id(each)].append(name)
    return {tuple(each) for each in names.values() if len(each) > 1}


def _nearly_tied(model: nn.Module) -> list[str]:
    """Embeddings and what has the same numbers without being the same parameter."""
    embeddings = {
        f"{name}.weight".lstrip("."): each.weight
        for name, each in model.named_modules()
        if isinstance(each, nn.Embedding)
    }
    return [
        f"{name} and {other}"
        for name, weight in embeddings.items()
        for other, each in model.named_parameters()
        if each is not weight and each.shape == weight.shape and other not in embeddings
        if each.requires_grad and weight.requires_grad and torch.equal(each, weight)
        if bool(weight.std() > 0)  # what begins as zeros is equal and no copy
    ]
