"""Relevance and gradients of weights, held against dense autograd through eager attention."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, WatchError
from clearhead.reading.token_relevance import _calls, _gradients
from tests.refusals import assert_refused

SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 17,
}
CLASSES: dict[str, Any] = {"num_labels": 5}
IDS = torch.tensor([[3, 9, 4, 1, 5, 8, 2], [6, 0, 7, 7, 2, 1, 1]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])


def llama(**options: Any) -> Any:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **options)
    return transformers.LlamaForCausalLM(config).double().eval()


def bert(**options: Any) -> Any:
    config = transformers.BertConfig(**SIZES, **CLASSES, **options)
    return transformers.BertForSequenceClassification(config).double().eval()


def albert(**options: Any) -> Any:
    """Three layers that share one module."""
    config = transformers.AlbertConfig(**SIZES, embedding_size=11, **CLASSES, **options)
    return transformers.AlbertForSequenceClassification(config).double().eval()


MODELS: dict[str, Callable[..., Any]] = {"llama": llama, "bert": bert, "albert": albert}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax of eager attention, which transformers takes in float32."""
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda x, dim=-1, dtype=None: softmax(x, dim=dim))


def by_eager(model: Any, inputs: dict[str, Tensor], target: Any) -> tuple[list[Tensor], Tensor]:
    """The gradients of dense weights, and all rows of the relevance, (batch, tokens, tokens)."""
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    grads = torch.autograd.grad(target(output.logits), output.attentions, allow_unused=True)
    whole = torch.eye(IDS.shape[1], dtype=torch.float64)
    for weights, grad in zip(output.attentions, grads, strict=True):
        whole = whole + (weights * grad).clamp(min=0).mean(dim=1) @ whole
    return list(grads), whole


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_that_of_dense_autograd(name: str, padded: bool) -> None:
    model, rows = MODELS[name](), torch.arange(2)
    inputs = {"input_ids": IDS} | ({"attention_mask": REAL} if padded else {})

    def target(logits: Tensor) -> Tensor:
        return (logits[:, -1] if logits.ndim == 3 else logits)[rows, [4, 2]].sum()

    _, whole = by_eager(model, inputs, target)
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with ch.watch(model, keep="gradients") as seen:
            output = model(**inputs)
        found = ch.reading.relevance(seen, target(output.logits), retain_graph=True)
        real = REAL.bool() if padded else torch.ones(2, 7, dtype=torch.bool)
        # A query that is padding and sees nothing has weights in eager attention, and none here.
        torch.testing.assert_close(found[real], whole[:, -1][real], rtol=0, atol=1e-12)
        several = ch.reading.relevance(
            seen, target(output.logits), output=[-1, 4], retain_graph=True
        )
        assert torch.equal(several[:, 0], found)
        torch.testing.assert_close(several[0, 1], whole[0, 4], rtol=0, atol=1e-12)


def own_by_hand(layer: ch.MultiHeadAttention, x: Tensor, weights: list[Tensor]) -> Tensor:
    """A causal layer of ours with grouped heads, by dense tensors; adds its weights."""
    query, key, value = (
        projection(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        for projection in (layer.query_projection, layer.key_projection, layer.value_projection)
    )
    group = layer.num_heads // layer.num_kv_heads
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    scores = (query @ key.mT / layer.head_dim**0.5).masked_fill(hidden, -torch.inf)
    weights.append(scores.softmax(dim=-1))
    return layer.output_projection((weights[-1] @ value).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Layers of ours behind each other, each beside a residual."""

    def __init__(self, kernel: str = "auto") -> None:
        super().__init__()
        self.kernel = kernel
        self.layers = nn.ModuleList(
            ch.MultiHeadAttention(12, num_heads=6, num_kv_heads=2, mask=ch.causal())
            for _ in range(3)
        ).double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, kernel=self.kernel).tanh()
        return x


@pytest.mark.parametrize("kernel", ["auto", "blockwise", "eager"])
def test_layers_of_ours(kernel: str) -> None:
    model, x = Stack(kernel), torch.randn(2, 11, 12, dtype=torch.float64)
    weights: list[Tensor] = []
    y: Tensor = x
    for layer in model.layers:
        assert isinstance(layer, ch.MultiHeadAttention)
        y = y + own_by_hand(layer, y, weights).tanh()
    grads = torch.autograd.grad(y[:, -1, 5].sum(), weights)
    whole = torch.eye(11, dtype=torch.float64)
    for each, grad in zip(weights, grads, strict=True):
        whole = whole + (each * grad).relu().mean(dim=1) @ whole
    with ch.watch(model, keep="gradients") as seen:
        output = model(x)
    assert torch.equal(output, model(x))
    found = ch.reading.relevance(seen, output[:, -1, 5].sum())
    torch.testing.assert_close(found, whole[:, -1], rtol=0, atol=1e-12)


def test_a_frozen_model_and_layers_that_are_chosen() -> None:
    """If nothing requires a gradient, the graph begins at the first layer that is watched; a layer that is
    not watched passes on what it gets."""
    model, x = Stack(), torch.randn(2, 11, 12, dtype=torch.float64)
    with ch.watch(model, keep="gradients") as seen:
        output = model(x)
    expected = _gradients(_calls(seen), output[0, -1].sum(), False)
    model.requires_grad_(False)
    with ch.watch(model, layers="layers.[12]", keep="gradients") as seen:
        output = model(x)
    assert torch.equal(output, model(x))
    assert seen.layers == ("layers.1", "layers.2")
    target = output[0, -1].sum()
    found = _gradients(_calls(seen), target, True)
    for path, each in found.items():
        torch.testing.assert_close(each.context, expected[path].context, rtol=0, atol=1e-13)
    row = torch.eye(11, dtype=torch.float64)[-1:].expand(2, 1, 11)
    for path in ("layers.2", "layers.1"):
        row = row + found[path].pass_on(row.mT).mT
    assert torch.equal(ch.reading.relevance(seen, target), row[:, 0])
    with ch.watch(model, heads=[4, 1], keep="gradients") as seen:
        output = model(x)
    for path, each in _gradients(_calls(seen), output[0, -1].sum(), False).items():
        chosen = expected[path].context[:, [4, 1]]
        torch.testing.assert_close(each.context, chosen, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("exact")
def test_behind_a_cache_that_was_filled_before() -> None:
    """The share of the last tokens' results that comes from the cache: dense weights, with no rows for the cache."""
    model = llama()
    with torch.no_grad():
        cache = model(IDS[:, :4], use_cache=True).past_key_values
    model.set_attn_implementation("eager")
    output = model(IDS[:, 4:], past_key_values=cache, output_attentions=True)
    grads = torch.autograd.grad(output.logits[:, -1, 8].sum(), output.attentions)
    whole = torch.eye(7, dtype=torch.float64)
    for weights, grad in zip(output.attentions, grads, strict=True):
        passed = (weights * grad).relu().mean(dim=1)
        whole = whole + F.pad(passed, (0, 0, 4, 0)) @ whole
    cache.crop(-3)
    model.set_attn_implementation("sdpa")
    with ch.watch(model, keep="gradients") as seen:
        output = model(IDS[:, 4:], past_key_values=cache)
    found = ch.reading.relevance(seen, output.logits[:, -1, 8].sum())
    torch.testing.assert_close(found, whole[:, -1], rtol=0, atol=1e-12)


def test_inside_an_edit() -> None:
    """A hidden key gets nothing. What is ablated is no product of weights and values, and so refused."""
    model, x = Stack(), torch.randn(1, 11, 12, dtype=torch.float64)
    with ch.edit(model) as edit, ch.watch(model, keep="gradients") as seen:
        edit["*"].hide(key=3)
        found = ch.reading.relevance(seen, model(x)[0, -1].sum())
    assert float(found[0, 3]) == 0 < float(found[0, 4])
    with ch.edit(model) as edit, ch.watch(model, keep="gradients") as seen:
        edit["layers.2"].heads[0].ablate()
        output = model(x)
    assert_refused(
        lambda: ch.reading.relevance(seen, output[0, -1].sum()), "relevance.graph", "'layers.2'"
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_a_context_that_the_model_writes_to(frozen: bool) -> None:
    """The gradient is that of the attention, not of what the model made of it in place."""

    class InPlace(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            query, key, value = (
                super().forward(input).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            )
            context = F.scaled_dot_product_attention(query, key, value)
            context += 1
            context.transpose(1, 2).mul_(3)
            return context

    model = InPlace(8, 24).requires_grad_(not frozen)
    x = torch.randn(1, 5, 8)
    with ch.watch(model, keep="gradients") as seen:
        target = model(x).square().sum()
    found = ch.reading.relevance(seen, target, output=list(range(5)))
    matrix, value = seen[0].dense(), seen[0].value
    assert value is not None
    gradient = 2 * 9 * (matrix @ value + 1) @ value.mT
    expected = torch.eye(5) + (matrix * gradient).relu().mean(dim=1)
    torch.testing.assert_close(found, expected)


def test_what_was_kept_is_not_copied() -> None:
    """The graph has query, key and value anyway, and what is written to them is noticed."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key = torch.randn(1, 2, 5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, self.key, self.key)

    model, x = Written(), torch.randn(1, 2, 5, 4)
    with ch.watch(model, keep="gradients") as seen:
        output = model(x)
    assert seen[0].value is not None
    assert seen[0].value.data_ptr() == model.key.data_ptr()
    model.key[..., 0] = 0.0
    assert_refused(lambda: ch.reading.relevance(seen, output.sum()), "watch.written")


@pytest.mark.parametrize("copy", [deepcopy, pickle.dumps])
def test_a_graph_is_not_copied(copy: Callable[[object], object]) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, keep="gradients") as seen:
        layer(torch.randn(1, 3, 8))
    with pytest.raises((RuntimeError, TypeError)):
        copy(seen)


def test_the_graph_goes_with_one_target_unless_it_is_retained() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, keep="gradients") as seen:
        target = layer(torch.randn(1, 3, 8)).square().sum()
    first = ch.reading.relevance(seen, target, retain_graph=True)
    assert torch.equal(ch.reading.relevance(seen, target), first)
    with pytest.raises(RuntimeError, match="second time"):
        ch.reading.relevance(seen, target)


def test_what_it_cannot_read_is_refused() -> None:
    layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 3, 8)
    with ch.watch(layer) as seen:
        target = layer(x).sum()
    assert_refused(lambda: ch.reading.relevance(seen, target), "relevance.gradients")
    with torch.no_grad(), ch.watch(layer, keep="gradients") as seen:
        layer(x)
    assert_refused(lambda: ch.reading.relevance(seen, target), "relevance.graph", "''")
    with ch.watch(layer, keep="gradients") as seen:
        output = layer(x)
    nothing: Any = None
    for wrong, said in (
        (output, r"shape \(1, 3, 8\)"),
        (output.sum().detach(), "no graph"),
        (output.sum() * 1j, "torch.complex64"),
        (target, "another run"),
    ):
        with pytest.raises(ArgumentError, match=rf"\[relevance.target\] .*{said}"):
            ch.reading.relevance(seen, wrong)
    assert_refused(lambda: ch.reading.relevance(seen, nothing), "relevance.type", "None")
    with pytest.raises(ArgumentTypeError, match=r"\[retain_graph.type\] retain_graph must be True"):
        ch.reading.relevance(seen, output.sum(), retain_graph=nothing)
    assert_refused(lambda: ch.reading.relevance(nothing, output.sum()), "relevance.type", "None")
    places: tuple[Any, ...] = (3, slice(1))
    for wrong in places:
        with pytest.raises(SelectionError, match=r"\[matrix\.(range|index)\]"):
            ch.reading.relevance(seen, output.sum(), output=wrong)


def test_modules_that_it_does_not_follow_are_refused() -> None:
    x, memory = torch.randn(1, 4, 8), torch.randn(1, 6, 8)
    decoder = nn.TransformerDecoderLayer(8, nhead=2, batch_first=True, dropout=0.0)
    with ch.watch(decoder, keep="gradients") as seen:
        output = decoder(x, memory)
    with pytest.raises(WatchError, match=r"\[relevance.cross\] .*'multihead_attn'"):
        ch.reading.relevance(seen, output.sum())
    torch_layer = nn.MultiheadAttention(8, 2, batch_first=True)
    with ch.watch(torch_layer, keep="gradients") as seen:
        output = torch_layer(x, x, x)[0]
    assert_refused(lambda: ch.reading.relevance(seen, output.sum()), "relevance.graph", "''")
    dropping = ch.MultiHeadAttention(8, num_heads=2, dropout=0.5)
    with ch.watch(dropping, keep="gradients") as seen:
        output = dropping(x)
    assert_refused(lambda: ch.reading.relevance(seen, output.sum()), "relevance.dropout", "''")
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with ch.watch(layer, keep="gradients") as seen:
        output = layer(x).sum() + layer(memory).sum()
    with pytest.raises(WatchError, match=r"\[relevance.shape\] .*kv_len=4, ', call 1' .*kv_len=6"):
        ch.reading.relevance(seen, output)


def test_own_layers_of_torch() -> None:
    """PyTorch's layer, by its function of attention, is that of ours."""
    layer = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True, dropout=0.0).double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with ch.watch(layer, keep="gradients") as seen:
        output = layer(x)
    found = ch.reading.relevance(seen, output[:, 0, 3].sum(), output=0, retain_graph=True)
    _, value, context = _gradients(_calls(seen), output[:, 0, 3].sum(), False)["self_attn"]
    passed = (seen[0].dense() * (context @ value.mT)).relu().mean(dim=1)[:, 0]
    passed[:, 0] += 1
    torch.testing.assert_close(found, passed, rtol=0, atol=1e-13)


def test_a_layer_that_was_not_seen_is_not_gone_through() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.mT, dim=-1) @ x

    model = nn.Sequential(ch.MultiHeadAttention(8, num_heads=2), Own())
    x = torch.randn(1, 4, 8)
    with pytest.warns(ch.errors.WatchWarning), ch.watch(model, keep="gradients") as seen:
        output = model(x)
    with pytest.raises(WatchError, match=r"\[relevance.missing\] .*1 \(Own\): it takes .*layers="):
        ch.reading.relevance(seen, output.sum())
    with ch.watch(model, layers="0", keep="gradients") as seen:
        output = model(x)
    assert ch.reading.relevance(seen, output.sum()).shape == (1, 4)
