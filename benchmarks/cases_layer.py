"""The cost of the layer: against one with a fused projection around PyTorch's kernel, and against the one that
tutorials build."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from benchmarks.harness import Sides, case

WIDTH, HEADS = 768, 12
SHAPES = {"8x128": (8, 128), "2x1024": (2, 1024), "1x4096": (1, 4096)}


class SplitWeights(nn.Module):
    """Causal attention as tutorials write it: scores, a saved mask, softmax, all in memory."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width)
        self.register_buffer("future", torch.ones(longest, longest).triu(1))
        self.future: Tensor

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        query = self.query(x).view(shape).transpose(1, 2)
        key = self.key(x).view(shape).transpose(1, 2)
        value = self.value(x).view(shape).transpose(1, 2)
        scores = query @ key.transpose(2, 3)
        scores.masked_fill_(self.future.bool()[:tokens, :tokens], -torch.inf)
        weights = torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1)
        context = (weights @ value).transpose(1, 2).contiguous().view(batch, tokens, width)
        return self.output(context)


class FusedProjection(nn.Module):
    """Causal attention as fast code writes it: one product for query, key and value, and PyTorch's kernel."""

    def __init__(self, ours: ch.MultiHeadAttention) -> None:
        super().__init__()
        names = ("query", "key", "value")
        weights = [getattr(ours, f"{name}_projection").weight for name in names]
        self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection.load_state_dict({"weight": torch.cat(weights)})
        self.output = nn.Linear(WIDTH, WIDTH)
        self.output.load_state_dict(ours.output_projection.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for each in self.projection(x).split(WIDTH, dim=2)
        )
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(context.transpose(1, 2).flatten(2))


def _layers() -> dict[str, nn.Module]:
    ours = ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal())
    return {"MultiHeadAttention": ours, "a fused projection by hand": FusedProjection(ours)}


def _forward(shape: tuple[int, int]) -> Sides:
    layers, x = _layers(), torch.randn(*shape, WIDTH)
    return {name: partial(layer, x) for name, layer in layers.items()}


def _inference(shape: tuple[int, int]) -> Sides:
    layers, x = _layers(), torch.randn(*shape, WIDTH)
    return {name: torch.no_grad()(partial(layer.eval(), x)) for name, layer in layers.items()}


def _training(shape: tuple[int, int]) -> Sides:
    x = torch.randn(*shape, WIDTH, requires_grad=True)
    toward = torch.randn_like(x)

    def step(layer: nn.Module) -> Tensor:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(toward)
        assert x.grad is not None
        return x.grad

    return {name: partial(step, layer) for name, layer in _layers().items()}


def _register(name: str, build: Callable[[tuple[int, int]], Sides], reach: str, work: str) -> None:
    for label, shape in SHAPES.items():
        case(f"{name}-{label}", reach=reach, work=f"{work}, {shape}, width 768, 12 heads")(
            lambda shape=shape: build(shape)
        )


_register("layer-forward", _forward, "<= 1.02x", "causal, forward in training")
_register("layer-inference", _inference, "<= 1.02x", "causal, forward in eval, without gradients")
_register("layer-training", _training, "<= 1.02x", "causal, forward and backward")


@case(
    "layer-forward-4096-against-split-weights",
    reach="<= 0.2x",
    work="causal forward, (1, 4096), width 768, 12 heads",
)
def against_split_weights() -> Sides:
    theirs = SplitWeights(WIDTH, HEADS, 4096)
    ours = ch.MultiHeadAttention(WIDTH, num_heads=HEADS, mask=ch.causal())
    for name in ("query", "key", "value", "output"):
        getattr(ours, f"{name}_projection").load_state_dict(getattr(theirs, name).state_dict())
    x = torch.randn(1, 4096, WIDTH)
    return {"MultiHeadAttention": lambda: ours(x), "split weights": lambda: theirs(x)}
