"""Losses on attention: the numbers of a watched model, with gradients into it, against eager attention."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clearhead as ch
from clearhead.matrix import parts

HERE, BACK = [12, 5, 12], [3, 5, 11]
SETS = torch.arange(13) % 3 - 1


def _entropy(weights: Tensor) -> Tensor:
    return torch.where(weights > 0, -weights * weights.clamp_min(1e-300).log(), 0.0).sum(dim=-1)


def _distance(weights: Tensor) -> Tensor:
    place = torch.arange(13)
    return (weights * (place[:, None] - place).abs()).sum(dim=-1)


def _received(weights: Tensor) -> Tensor:
    # Of some heads, each has a key head of its own.
    return (
        weights.sum(dim=2) if weights.shape[1] < 4 else weights.unflatten(1, (2, 2)).sum(dim=(2, 3))
    )


def _kl(weights: Tensor, other: Tensor) -> Tensor:
    ratio = weights.clamp_min(1e-300).log() - other.clamp_min(1e-300).log()
    return (weights * ratio).sum(dim=-1)


def _js(weights: Tensor, other: Tensor) -> Tensor:
    mean = (weights + other) / 2
    return (_kl(weights, mean) + _kl(other, mean)) / 2


Case = tuple[Callable[..., Any], Callable[..., Tensor]]
"""The number of a matrix and of one of another run, and the same of their weights."""

NUMBERS: dict[str, Case] = {
    "rows": (lambda a, _: a[..., 3:8, :5], lambda a, _: a[..., 3:8, :5]),
    "at": (lambda a, _: a.at(HERE, BACK), lambda a, _: a[..., HERE, BACK]),
    "entropy": (lambda a, _: a.entropy(), lambda a, _: _entropy(a)),
    "max": (lambda a, _: a.max(), lambda a, _: a.amax(dim=-1)),
    "distance": (lambda a, _: a.distance(), lambda a, _: _distance(a)),
    "received": (lambda a, _: a.received(), lambda a, _: _received(a)),
    "one set": (lambda a, _: a.mass(SETS == 1), lambda a, _: a[..., SETS == 1].sum(dim=-1)),
    "sets": (
        lambda a, _: a.mass(SETS),
        lambda a, _: torch.stack([a[..., SETS == 0].sum(-1), a[..., SETS == 1].sum(-1)], -1),
    ),
    "kl": (lambda a, b: a.divergence(b), _kl),
    "js": (lambda a, b: a.divergence(b, kind="js"), _js),
}


class Model(nn.Module):
    """Attention with grouped heads, with a trained bias and sinks, and the weights of the same as a tensor."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.query, self.key = nn.Linear(8, 12), nn.Linear(12, 6)
        self.bias = nn.Parameter(torch.randn(1, 4, 13, 13))
        self.sinks = nn.Parameter(torch.randn(4))
        self.checkpointed = checkpointed

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query = self.query(self.before(x).tanh()).unflatten(-1, (4, 3)).transpose(1, 2)
        # Of the query, whose gradient must not count that of the key twice.
        key = self.key(query.transpose(1, 2).flatten(2)).unflatten(-1, (2, 3))
        return query, key.transpose(1, 2)

    def attended(self, x: Tensor) -> Tensor:
        query, key = self.projected(x)
        return ch.attend(query, key, key, mask=MASK, bias=self.bias, sinks=self.sinks)

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return cast(Tensor, checkpoint(self.attended, x, use_reentrant=False))
        return self.attended(x)

    def weights(self, x: Tensor) -> Tensor:
        query, key = self.projected(x)
        scores = query @ key.repeat_interleave(2, dim=1).mT * 3**-0.5 + self.bias
        scores = scores.masked_fill(~SEEN, -torch.inf)
        sinks = self.sinks.view(1, 4, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


MASK = ch.causal() & ch.padding([13, 11])
SEEN = (
    torch.ones(13, 13).tril().bool()
    & (torch.arange(13) < torch.tensor([[13], [11]]))[:, None, None]
)


KEPT = ["gradients", "checkpointed", "heads", "function", "function, checkpointed"]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_loss_on_attention_trains_as_on_eager_weights(
    name: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PORTION", 13 * 8 * 5)
    torch.manual_seed(0)
    number, of_weights = NUMBERS[name]
    model = Model(checkpointed="checkpointed" in kept).double()
    model.bias.requires_grad_(name in ("sets", "js"))
    x, y = torch.randn(2, 2, 13, 8, dtype=torch.float64)
    heads = [1, 2] if kept == "heads" else None
    with ch.watch(model, keep="gradients", heads=heads) as others:
        model(y)
    keep: Any = lambda path, matrix: number(matrix, others[path])  # noqa: E731
    is_function = "function" in kept
    with_graph: Any = torch.enable_grad()(keep) if is_function else "gradients"
    watches: list[Any] = [ch.watch(model, keep=each, heads=heads) for each in (with_graph, keep)]
    with watches[0] as seen, watches[1] as without:
        output = model(x)
    assert not without[0].requires_grad
    found = seen[0] if is_function else number(seen[0], others[0])
    weights = [model.weights(each)[:, heads or slice(None)] for each in (x, y)]
    expected = of_weights(*weights)
    torch.testing.assert_close(found, expected)
    pull = torch.randn_like(expected)
    parameters = [each for each in model.parameters() if each.requires_grad]
    plain = model.attended(x).square().mean()
    wanted = torch.autograd.grad((expected * pull).sum() + plain, parameters)
    given = torch.autograd.grad((found * pull).sum() + output.square().mean(), parameters)
    for one, other in zip(given, wanted, strict=True):
        assert bool(other.any())
        torch.testing.assert_close(one, other)


def test_a_loss_under_autocast_has_finite_gradients() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
    with torch.autocast("cpu", torch.bfloat16), ch.watch(layer, keep="gradients") as seen:
        output = layer(torch.randn(2, 13, 8))
        (seen[0].entropy().mean() + output.float().mean()).backward()
    assert all(bool(p.grad is None or p.grad.isfinite().all()) for p in layer.parameters())
    assert layer.query_projection.weight.grad is not None


@pytest.mark.parametrize("name", ["kl", "js"])
def test_a_divergence_of_weights_that_are_0_in_float32(name: str) -> None:
    """Held to float64, in which a weight of e⁻³⁰⁰ is a number."""
    number, of_weights = NUMBERS[name]
    scores = (70 * torch.randn(2, 5, 7)).requires_grad_()
    assert bool((scores.softmax(dim=-1) == 0).any())
    one, other = (ch.AttentionMatrix(each, torch.eye(7), scale=1.0) for each in scores)
    found, expected = number(one, other), of_weights(*scores.double().softmax(dim=-1)).float()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(a.sum(), scores) for a in (found, expected)))
    assert bool((number(one, one) == 0).all())


def test_a_divergence_from_hidden_keys_is_infinite_and_sends_no_gradient() -> None:
    query, key = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    whole, part = ch.AttentionMatrix(query, key), ch.AttentionMatrix(query, -key, mask=ch.causal())
    found = whole.divergence(part)
    assert found.isinf().tolist() == [True, True, True, True, False]
    [pulled] = torch.autograd.grad(found.sum(), query)
    assert pulled.any(dim=-1).tolist() == [False, False, False, False, True]


def test_a_key_that_was_written_to_has_no_gradients() -> None:
    query, key = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in "qk")
    made = key * 1.0
    entropy = ch.AttentionMatrix(query, made).entropy().sum()
    made.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        entropy.backward()
