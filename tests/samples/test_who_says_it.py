"""Who says it: the figures of its page, against plain hooks and dense eager weights."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import clearhead as ch
from clearhead.samples import models
from tests.examples.loading import example as module
from tests.samples.needing import smollm2

example = module("who_says_it")
LAYER, HEAD, WIDTH = 23, 3, 64
AT = slice(HEAD * WIDTH, (HEAD + 1) * WIDTH)


@torch.no_grad()
def test_the_mover_says_the_name_that_it_looks_at() -> None:
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
    mover = found.top(1, by="restored")[0]
    assert mover.head == HEAD
    assert mover.metric == pytest.approx(after, abs=1e-3)
    assert found.clean == pytest.approx(before, abs=1e-3)
    assert (mover.restored or 0.0) > 0.4
    shares = ch.logits_of(model, clean, right, wrong)
    assert shares.heads.top(1)[0][:2] == (mover.layer, HEAD)
    assert float(shares["logit"].sum()) == pytest.approx(before, abs=1e-3)

    eager = transformers.AutoModelForCausalLM.from_pretrained(
        models.folder_of("smollm2"), attn_implementation="eager"
    )
    weights = eager(clean[:1], output_attentions=True).attentions[LAYER][0, HEAD, -1]
    want, keys = weights.topk(3)
    got = example.looks_at(model, clean, mover, sample.tokenizer)
    tokens = [sample.tokenizer.decode([int(clean[0, key])]) for key in keys]
    assert [token for token, _ in got] == tokens
    assert [weight for _, weight in got] == pytest.approx(want.tolist(), abs=1e-3)
