"""Output projections that are found, and weights × ‖value · W‖ with them, against dense formulas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import SelectionError, UnsupportedError
from clearhead.layers import GrowingCache, LatentAttention, OutputGate, ScoreBias
from clearhead.watching import files, projections
from tests.refusals import assert_refused, wrong

SIZES: Any = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[3, 9, 4, 9, 7, 3, 8], [5, 5, 1, 4, 6, 4, 2]])
X = torch.linspace(-2, 2, 2 * 7 * 12, dtype=torch.float64).sin().view(2, 7, 12)


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SIZES, intermediate_size=32))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2Model(config)


def llama() -> nn.Module:
    sizes: Any = {"num_key_value_heads": 2, "intermediate_size": 32}
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES, **sizes))


def grouped() -> nn.Module:
    return ch.MultiHeadAttention(
        12, num_heads=6, num_kv_heads=2, head_dim=5, value_head_dim=3, mask=ch.causal()
    )


def latent() -> nn.Module:
    sizes: Any = {"head_dim": 8, "rotary_dim": 4, "latent_dim": 6, "value_head_dim": 5}
    return LatentAttention(12, num_heads=4, mask=ch.causal(), **sizes)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), 2)


MODELS: list[tuple[Callable[[], nn.Module], str]] = [
    (bert, "encoder.layer.{}.attention.output.dense.weight"),
    (gpt2, "h.{}.attn.c_proj.weight"),
    (llama, "layers.{}.self_attn.o_proj.weight"),
    (grouped, "output_projection.weight"),
    (latent, "output_projection.weight"),
    (encoder, "layers.{}.self_attn.out_proj.weight"),
]


def dense(matrix: ch.AttentionMatrix, weight: Tensor) -> Tensor:
    assert matrix.value is not None
    value = matrix.value.repeat_interleave(matrix.num_heads // matrix.num_kv_heads, dim=1)
    each = value @ weight.view(len(weight), matrix.num_heads, -1).permute(1, 2, 0)
    return matrix.dense() * each.norm(dim=-1)[:, :, None]


@pytest.mark.parametrize(("make", "name"), MODELS)
def test_norms_of_models(make: Callable[[], nn.Module], name: str) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    given = IDS if name.count(".") > 2 and make is not encoder else X
    parameters = dict(model.named_parameters())
    with torch.no_grad(), ch.watch(model, values=True) as seen:
        model(given)
    for number, path in enumerate(seen):
        norms = seen.norms(path, model)
        weight = parameters[name.format(number)].detach()
        # Conv1D has its weight the other way round.
        expected = dense(seen[path], weight.T if make is gpt2 else weight)
        assert norms.projected
        torch.testing.assert_close(norms.dense(), expected)
        torch.testing.assert_close(
            norms.shares().dense(), expected / expected.sum(dim=-1, keepdim=True)
        )
        plain = seen.norms(number)
        assert not plain.projected
        assert plain.of_values.shape == norms.of_values.shape
    path, some = seen.layers[-1], [3, 1]
    with torch.no_grad(), ch.watch(model, values=True, heads=some) as fewer:
        model(given)
    expected = seen.norms(path, model).dense()[:, some]
    torch.testing.assert_close(fewer.norms(-1, model).dense(), expected)


def test_biases_of_both_kinds_come_back(tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(12, num_heads=4, parts=[ScoreBias(ch.alibi(4))], mask=ch.causal())
    with torch.no_grad(), ch.watch(layer, values=True) as seen:
        layer(X.float())
    taken = seen.norms(0, layer).shares()
    again = files.read(files.write(tmp_path / "a.clearhead", taken))
    torch.testing.assert_close(again.dense(), taken.dense())
    assert taken.problem.bias is not None
    assert taken.problem.bias.describe().endswith(" + <2 × 4 × 1 × 7>")


class Wrapped(nn.Module):
    """An output projection that is more than a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Own(nn.Module):
    def __init__(self, **projections: nn.Module) -> None:
        super().__init__()
        for name, each in projections.items():
            self.add_module(name, each)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 3)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Own(), "Own holds no module, and none by a name of an output projection"),
        (
            Own(mlp=nn.Linear(12, 12)),
            "Own holds mlp, and none by a name of an output projection",
        ),
        (
            Own(o_proj=Wrapped()),
            "o_proj must be a plain torch.nn.Linear, whose weight is a parameter; it is a "
            "tests.watching.test_projections.Wrapped",
        ),
        (
            Own(o_proj=nn.Linear(9, 5)),
            "o_proj reads 9 numbers, and 4 heads of values 3 wide were seen",
        ),
        (
            Own(proj=nn.Linear(15, 5)),
            "proj reads 15 numbers, and 4 heads of values 3 wide were seen",
        ),
    ],
)
def test_a_projection_that_is_not_known(model: nn.Module, reason: str) -> None:
    with torch.no_grad(), ch.watch(model, values=True) as seen:
        model(X)
    assert_refused(lambda: seen.norms(0, model), "norms.projection", f"'' // {reason}")


def test_layers_that_do_more_to_the_context() -> None:
    layer = ch.MultiHeadAttention(12, num_heads=4, parts=[OutputGate(12, 4, 3)])
    with torch.no_grad(), ch.watch(layer, values=True) as seen:
        layer(X.float())
    with pytest.raises(UnsupportedError, match="a part of the layer changes the context"):
        seen.norms(0, layer)
    cached = latent()
    cache = GrowingCache()
    with torch.no_grad():
        cached(X.float()[:, :6], cache=cache)
        with ch.watch(cached, values=True) as seen:
            cached(X.float()[:, 6:], cache=cache)
    with pytest.raises(UnsupportedError, match="its values are the latents of a cache"):
        seen.norms(0, cached)


def test_what_norms_refuse() -> None:
    layer = grouped()
    with torch.no_grad(), ch.watch(layer, keep="summary") as summaries, ch.watch(layer) as bare:
        layer(X.float())
    assert_refused(lambda: summaries.norms(0), "norms.value", "'summary'")
    assert_refused(lambda: bare.norms(0, layer), "norms.value", "… // …")
    with ch.watch(layer, values=True) as seen:
        layer(X.float())
        layer(X.float()[:, :5])
    model = encoder()
    with ch.watch(model, values=True) as other:
        model(X.float())
    assert_refused(lambda: other.norms(0, wrong(3)), "norms.model", "3")
    with pytest.raises(UnsupportedError, match="Linear has no such module"):
        other.norms(0, nn.Linear(2, 2))
    with pytest.raises(SelectionError, match=r"^\[watch.several\]"):
        seen.norms(0)
    assert_refused(lambda: seen.norms(wrong([1])), "watch.layer", "[1] // 0 ('')")


def test_norms_of_a_module_that_attends_several_times() -> None:
    shared = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True).eval()
    model = nn.Sequential(shared, shared)
    with torch.no_grad(), ch.watch(model, values=True) as seen:
        model(torch.randn(1, 5, 8))
    with pytest.raises(ch.errors.SelectionError) as raised:
        seen.norms(0, model)
    assert raised.value.code == "watch.several"
    weight = shared.self_attn.out_proj.weight
    for number in (0, 1, -1):
        expected = seen.calls(0)[number].norms(weight).dense()
        assert seen.step(number).norms(0, model).dense().equal(expected)
    assert_refused(lambda: seen.step(2), "watch.call", "2")


def test_values_of_no_width() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, values=True) as seen:
        layer(torch.randn(1, 3, 8))
    problem = seen[0].problem
    bare = ch.AttentionMatrix(problem.query, problem.key, value=torch.zeros(1, 2, 3, 0))
    with pytest.raises(UnsupportedError, match=r"^\[norms.projection\] .* of values 0 wide"):
        projections.output_projection(layer, "", bare, 0)
