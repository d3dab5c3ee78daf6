"""Heads of SmolLM2 beside TransformerLens and nnsight, in the environment of `make peers`: the same numbers, the lines
that each takes, and the CPU time of one thread. In any other environment there are no such cases."""

import ast
import importlib
import inspect
import textwrap
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Sides, case

TEXT = "When {one} and {other} went to the {place}, {giver} gave the {thing} to"
SCENES = (
    ("Mary", "John", "store", "drink"),
    ("Tom", "James", "park", "ball"),
    ("Dan", "Anna", "office", "book"),
    ("Sarah", "Paul", "school", "pen"),
)
LAYERS, WIDTH = range(21, 25), 64
HERE = find_spec("transformer_lens") is not None and find_spec("nnsight") is not None

nnsight: Any = importlib.import_module("nnsight") if HERE else None


class Task(NamedTuple):
    """Four texts, in each of which one name is right, four in which the other is, and both names."""

    clean: Tensor
    corrupt: Tensor
    right: Tensor
    wrong: Tensor

    def metric(self, logits: Any) -> Tensor:
        last = getattr(logits, "logits", logits)[:, -1]
        return (last.gather(1, self.right[:, None]) - last.gather(1, self.wrong[:, None])).mean()


def z_here(model: Any, task: Task) -> Any:
    with ch.watch(model, keep="contexts") as seen:
        model(task.clean)
    return [seen[layer].context for layer in range(30)]


def z_in_transformer_lens(bridge: Any, task: Task) -> Any:
    _, cache = bridge.run_with_cache(task.clean, names_filter=lambda name: name.endswith("hook_z"))
    return [cache["z", layer].transpose(1, 2) for layer in range(30)]


def z_in_nnsight(model: Any, task: Task) -> Any:
    with model.trace(task.clean):
        found = nnsight.save([])
        for layer in model.model.layers:
            found.append(layer.self_attn.o_proj.input)
    return [each.unflatten(2, (9, WIDTH)).transpose(1, 2) for each in found]


def patched_here(model: Any, task: Task) -> Any:
    found = ch.effects(
        model, task.clean, task.corrupt, metric=task.metric, layers=[*LAYERS], progress=False
    )
    return found["metric"].view(len(LAYERS), 9)


def patched_in_transformer_lens(bridge: Any, task: Task) -> Any:
    patching, pandas = (importlib.import_module(n) for n in ("transformer_lens.patching", "pandas"))
    _, cache = bridge.run_with_cache(task.clean, names_filter=lambda name: name.endswith("hook_z"))
    frame = pandas.DataFrame([{"layer": layer, "head": h} for layer in LAYERS for h in range(9)])
    setter, metric = patching.layer_head_vector_patch_setter, task.metric
    return patching.generic_activation_patch(
        bridge, task.corrupt, cache, metric, setter, "z", index_df=frame
    ).view(len(LAYERS), 9)


def patched_in_nnsight(model: Any, task: Task) -> Any:
    with model.trace(task.clean):
        clean = nnsight.save([])
        for layer in model.model.layers:
            clean.append(layer.self_attn.o_proj.input)
    found = torch.zeros(len(LAYERS), 9)
    for row, layer in enumerate(LAYERS):
        for head in range(9):
            at = slice(head * WIDTH, (head + 1) * WIDTH)
            with model.trace(task.corrupt):
                model.model.layers[layer].self_attn.o_proj.input[..., at] = clean[layer][..., at]
                logits = model.lm_head.output.save()
            found[row, head] = task.metric(logits)
    return found


def attributed_here(model: Any, task: Task) -> Any:
    shares = ch.reading.logits_of(model, task.clean, task.right, against=task.wrong)
    return shares.heads["logit"].view(30, 9)


def attributed_in_transformer_lens(bridge: Any, task: Task) -> Any:
    _, cache = bridge.run_with_cache(task.clean)
    results = cache.stack_head_results(layer=-1, pos_slice=-1)
    found = cache.logit_attrs(results, tokens=task.right, incorrect_tokens=task.wrong, pos_slice=-1)
    return found.mean(dim=1).view(30, 9)


def attributed_in_nnsight(model: Any, task: Task) -> Any:
    with model.trace(task.clean):
        contexts = nnsight.save([])
        for layer in model.model.layers:
            contexts.append(layer.self_attn.o_proj.input)
        stream = model.model.norm.input.save()
    norm, weight = model.model.norm, model.lm_head.weight
    scale = (stream[:, -1].square().mean(dim=-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    direction = (weight[task.right] - weight[task.wrong]) * norm.weight * scale
    found = torch.zeros(30, 9)
    for layer, context in enumerate(contexts):
        output = model.model.layers[layer].self_attn.o_proj.weight.unflatten(1, (9, WIDTH))
        results = torch.einsum("bhw,ohw->bho", context[:, -1].unflatten(1, (9, WIDTH)), output)
        found[layer] = (results * direction[:, None]).sum(dim=-1).mean(dim=0)
    return found


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(
        [each.float() for each in ours], [each.float() for each in theirs], rtol=1e-3, atol=1e-3
    )


WAYS: dict[
    str,
    tuple[str, Callable[[Any, Task], Any], Callable[[Any, Task], Any], Callable[[Any, Task], Any]],
] = {
    "z": ("z of all 270 heads", z_here, z_in_transformer_lens, z_in_nnsight),
    "patching": (
        "the metric with each of 36 heads patched from the clean texts",
        patched_here,
        patched_in_transformer_lens,
        patched_in_nnsight,
    ),
    "attribution": (
        "the share of each of 270 heads in the difference of two logits",
        attributed_here,
        attributed_in_transformer_lens,
        attributed_in_nnsight,
    ),
}


def lines(function: Callable[..., Any]) -> int:
    """The lines of code of a body."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    body: Any = tree
    return len(ast.unparse(body).splitlines()) - 1


def build(name: str) -> Sides:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from clearhead.samples import models

    torch.set_num_threads(1)
    where = str(models.folder_of("smollm2"))
    tokenizer: Any = AutoTokenizer.from_pretrained(where)
    texts = [
        TEXT.format(one=one, other=other, place=place, giver=giver, thing=thing)
        for at in (1, 0)
        for one, other, place, thing in SCENES
        for giver in [(one, other)[at]]
    ]
    names = [[tokenizer(f" {each}")["input_ids"][0] for each in scene[:2]] for scene in SCENES]
    ids = tokenizer(texts, return_tensors="pt")["input_ids"]
    task = Task(*ids.chunk(2), *torch.tensor(names).unbind(dim=1))

    def load(implementation: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            where, attn_implementation=implementation
        ).eval()

    lens: Any = importlib.import_module("transformer_lens")
    bridge = lens.TransformerBridge.boot_transformers(where, hf_model=load("eager"), device="cpu")
    if name == "attribution":  # the gain of the last norm is folded into the unembedding
        bridge.enable_compatibility_mode()
    made = load("sdpa"), bridge, nnsight.NNsight(load("sdpa"))

    def side(model: Any, function: Callable[[Any, Task], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return function(model, task)

        return run

    _, *ways = WAYS[name]
    return dict(zip(SIDES, map(side, made, ways), strict=True))


SIDES = "clearhead", "TransformerLens", "nnsight"

if HERE:
    for _name, (_work, *_ways) in WAYS.items():
        _lines = ", ".join(f"{each} {lines(way)}" for each, way in zip(SIDES, _ways, strict=True))
        case(
            f"heads-{_name}",
            work=f"SmolLM2, four texts of 14 tokens: {_work}; CPU time of one thread; lines: {_lines}",
            compare=close,
            memory=False,  # the weights come from the file when they are first used
            rounds=3,
            clock=time.process_time,
        )(lambda name=_name: build(name))
