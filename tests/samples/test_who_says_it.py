"""Who says it: the figures of its page, against plain hooks and dense eager weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from tests.examples.loading import example as module
from tests.samples.needing import eager_smollm2, smollm2

example = module("who_says_it")
LAYER, HEAD, WIDTH = 23, 3, 64
AT = slice(HEAD * WIDTH, (HEAD + 1) * WIDTH)


@torch.no_grad()
def test_the_strongest_head_takes_the_name_off_that_it_looks_at() -> None:
    sample = smollm2()
    model: Any = sample.model
    clean, corrupt, right, wrong = example.prompts(sample.tokenizer)
    metric = example.Difference(right, wrong)
    projection, read = model.model.layers[LAYER].self_attn.o_proj, []

    def keep(_: object, args: tuple[Tensor]) -> None:
        read.append(args[0])

    def patch(_: object, args: tuple[Tensor]) -> Tensor:
        other = args[0].clone()
        other[..., AT] = read[0][..., AT]
        return other

    hook = projection.register_forward_pre_hook(keep)
    before = float(metric(model(clean)))
    hook.remove()
    hook = projection.register_forward_pre_hook(patch)
    after = float(metric(model(corrupt)))
    hook.remove()
    found = ch.effects(model, clean, corrupt, metric=metric, layers=[LAYER], progress=False)
    best = found.top(1, by="restored")[0]
    assert best.head == HEAD
    assert best.metric == pytest.approx(after, abs=1e-3)
    assert found.clean == pytest.approx(before, abs=1e-3)
    assert (best.restored or 0.0) > 0.4
    # What it writes takes the name off that it looks at, in dense eager weights.
    to_right, to_wrong = (ch.reading.logits_of(model, clean, name).heads for name in (right, wrong))
    assert abs(_of_head(to_right)) < 0.2
    assert _of_head(to_wrong) < -2
    tokens = ch.reading.writes(model, clean[:1])
    assert tokens.of(LAYER, HEAD).lowered[0].token == wrong[0]
    assert tokens.of(29, 1).raised[0].token == right[0]
    weights = eager_smollm2()(clean[:1], output_attentions=True).attentions[LAYER][0, HEAD, -1]
    key = int(weights.argmax())
    assert clean[0, key] == wrong[0]
    token = sample.tokenizer.decode([int(wrong[0])])
    said, weight = example.looks_at(model, clean, (LAYER, HEAD), sample.tokenizer).split(", ")
    assert said == f"{token} at {key}"
    assert float(weight) == pytest.approx(float(weights[key]), abs=0.006)


def _of_head(shares: ch.types.LogitShares) -> float:
    name = f"model.layers.{LAYER}.self_attn"
    return sum(row.logit for row in shares if row[:2] == (name, HEAD))
