"""A head's two circuits: the figures of its page, against raw weights, plain hooks and dense eager weights."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.examples.loading import example as module
from tests.samples.needing import eager_smollm2, smollm2

example = module("two_circuits")
WIDTH = 64


@cache
def circuits() -> Any:
    return example.circuits_of(smollm2().model)


def weights(layer: int, head: int) -> dict[str, Tensor]:
    """The projections of a head as the model has them, behind the gain of its norm, float64."""
    model: Any = smollm2().model
    block = model.model.layers[layer]
    own, gain = block.self_attn, block.input_layernorm.weight.double()
    rows, shared = (slice(each * WIDTH, (each + 1) * WIDTH) for each in (head, head // 3))
    return {
        "query": own.q_proj.weight.double()[rows] * gain,
        "key": own.k_proj.weight.double()[shared] * gain,
        "value": own.v_proj.weight.double()[shared] * gain,
        "output": own.o_proj.weight.double()[:, rows],
    }


@torch.no_grad()
def test_the_head_that_looks_back_writes_into_the_keys_of_the_induction_head() -> None:
    first, later = weights(16, 0), weights(17, 3)
    ov, qk = first["output"] @ first["value"], later["query"].mT @ later["key"]
    want = float((qk @ ov).norm() / qk.norm() / ov.norm())
    found = example.composed(circuits(), (17, 3), "key")
    assert float(found[16, 0]) == pytest.approx(want, abs=1e-4)
    assert example.best(found, 1)[0][0] == (16, 0)
    assert want > 3 * float(found.mean())
    assert float(example.composed(circuits(), (17, 3), "query").max()) < 0.1


@torch.no_grad()
def test_the_copying_score_is_that_of_the_whole_product() -> None:
    model: Any = smollm2().model
    embedding = model.get_input_embeddings().weight.double()
    unembedding = model.get_output_embeddings().weight.double() * model.model.norm.weight.double()
    own = weights(17, 3)
    product = (embedding.mT @ unembedding) @ own["output"] @ own["value"]
    values = torch.linalg.eigvals(product)
    values = values[values.abs().argsort(descending=True)[:WIDTH]]
    want = float(values.sum().real / values.abs().sum())
    found = circuits()[17].copying(embedding.float(), unembedding.float())[3]
    assert float(found) == pytest.approx(want, abs=1e-3)


@torch.no_grad()
def test_the_induction_head_is_none_without_the_head_that_looks_back() -> None:
    model: Any = smollm2().model
    ids = example.repeated(model.config.vocab_size)
    eager = eager_smollm2()
    scores = []
    for layer, head in ((16, 0), (11, 1)):

        def ablate(_: object, args: tuple[Tensor], head: int = head) -> Tensor:
            other = args[0].clone()
            other[..., head * WIDTH : (head + 1) * WIDTH] = 0
            return other

        hook = eager.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(ablate)
        attended = eager(ids, output_attentions=True).attentions[17][:, 3]
        hook.remove()
        want = float(attended.diagonal(1 - example.HALF, dim1=1, dim2=2)[:, 1:].mean())
        found = example.roles_of(model, ids, (layer, head))["induction"][17, 3]
        assert float(found) == pytest.approx(want, abs=1e-3)
        scores.append(want)
    assert scores[0] < 0.05
    assert scores[1] > 0.7
