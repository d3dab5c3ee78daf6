"""The cost of the layer: against PyTorch's, and against the one that tutorials build."""

from collections.abc import Callable

import torch
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


def _both(shape: tuple[int, int]) -> tuple[ch.MultiHeadAttention, nn.MultiheadAttention, Tensor]:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    return ch.convert(theirs).layer, theirs, torch.randn(*shape, WIDTH)


def _forward(shape: tuple[int, int]) -> Sides:
    ours, theirs, x = _both(shape)
    return {
        "MultiHeadAttention": lambda: ours(x),
        "nn.MultiheadAttention(need_weights=False)": lambda: theirs(x, x, x, need_weights=False)[0],
    }


def _inference(shape: tuple[int, int]) -> Sides:
    ours, theirs, x = _both(shape)
    ours.eval()
    theirs.eval()

    def without_gradients(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return torch.no_grad()(run)

    return {
        "MultiHeadAttention": without_gradients(lambda: ours(x)),
        "nn.MultiheadAttention(need_weights=False)": without_gradients(
            lambda: theirs(x, x, x, need_weights=False)[0]
        ),
    }


def _training(shape: tuple[int, int]) -> Sides:
    ours, theirs, x = _both(shape)
    x.requires_grad_()
    toward = torch.randn_like(x)

    def gradient(run: Callable[[Tensor], Tensor], layer: nn.Module) -> Callable[[], Tensor]:
        def step() -> Tensor:
            layer.zero_grad()
            x.grad = None
            run(x).backward(toward)
            assert x.grad is not None
            return x.grad

        return step

    return {
        "MultiHeadAttention": gradient(ours, ours),
        "nn.MultiheadAttention(need_weights=False)": gradient(
            lambda x: theirs(x, x, x, need_weights=False)[0], theirs
        ),
    }


def _register(name: str, build: Callable[[tuple[int, int]], Sides], reach: str, work: str) -> None:
    for label, shape in SHAPES.items():
        case(f"{name}-{label}", reach=reach, work=f"{work}, {shape}, width 768, 12 heads")(
            lambda shape=shape: build(shape)
        )


_register("layer-forward", _forward, "<= 0.97x", "forward in training")
_register("layer-inference", _inference, "<= 0.97x", "forward in eval, without gradients")
_register("layer-training", _training, "<= 1.0x", "forward and backward")


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


@case(
    "rows-8-of-4096",
    reach="<= 60MB",
    work="weights of 8 chosen queries, 4096 tokens, width 512, 8 heads, mean over the heads",
)
def few_rows() -> Sides:
    theirs = nn.MultiheadAttention(512, 8, batch_first=True).eval()
    ours = ch.convert(theirs).layer
    x = torch.randn(1, 4096, 512)
    rows = [0, 1, 77, 1024, 2047, 3000, 4000, 4095]

    def chosen() -> Tensor:
        return ours.weights(x)[:, :, rows].mean(1)

    def every() -> Tensor:
        return theirs(x, x, x, need_weights=True)[1][:, rows]

    return {"MultiHeadAttention.weights": chosen, "nn.MultiheadAttention(need_weights=True)": every}
