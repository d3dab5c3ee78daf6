"""The rows of `benchmarks.gpu`, in the order in which they are run."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import clearhead as ch
from benchmarks.harness import Side, Sides

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class Scale:
    """The device and the sizes of the rows.

    Attributes:
        device: of all tensors.
        dtype: of all tensors.
        shrink: what numbers of tokens are divided by.
        most_heads: heads, at most.
    """

    device: torch.device
    dtype: torch.dtype
    shrink: int = 1
    most_heads: int = 1 << 10

    @classmethod
    def full(cls) -> "Scale":
        return cls(torch.device("cuda"), torch.bfloat16)

    @classmethod
    def tiny(cls) -> "Scale":
        return cls(torch.device("cpu"), torch.float32, 512, 2)

    def tokens(self, count: int) -> int:
        return max(4, count // self.shrink)

    def draw(
        self, heads: int, tokens: int, *, width: int = 128, trained: bool = False
    ) -> list[Tensor]:
        """Query, key and value of one sample."""
        shape = (1, min(heads, self.most_heads), self.tokens(tokens), width)
        return [
            torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=trained)
            for _ in range(3)
        ]


def near(ours: Any, theirs: Any) -> None:
    """Hold two results to four steps of their dtype at the size of the largest number: in 16 bits each was rounded
    once, and its weights were, where a kernel rounds them. In float32 three digits tell that it is the same work; tests
    hold the others."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for one, other in pairs:
        step = max(torch.finfo(other.dtype).eps, 2**-12)
        allowed = 4 * step * other.abs().amax().clamp(min=1.0)
        worst = (one.double() - other.double()).abs().amax()
        assert worst <= allowed, f"apart by {worst:.3g}, allowed is {allowed:.3g}"


@dataclass(frozen=True)
class Row:
    """A question about cost on a device."""

    name: str
    work: str
    build: Callable[[Scale], Sides]
    reach: tuple[str, ...] = ()
    compare: Callable[[Any, Any], None] = near
    rounds: int = 5


ROWS: list[Row] = []


def row(name: str, work: str, *reach: str, **options: Any) -> Callable[[Any], Any]:
    """Register the function, which builds the inputs and returns the sides, ours first."""

    def register(build: Callable[[Scale], Sides]) -> Callable[[Scale], Sides]:
        ROWS.append(Row(name, work, build, reach, **options))
        return build

    return register


def with_gradients(call: Callable[[], Tensor], inputs: list[Tensor]) -> Side:
    """The context and the gradients of its sum."""

    def run() -> tuple[Tensor, ...]:
        context = call()
        return context.detach(), *torch.autograd.grad(context.sum(), inputs)

    return run


def backends(query: Tensor, key: Tensor, value: Tensor) -> Sides:
    """PyTorch's own causal attention, by each of its backends, and those of others where they are installed."""

    def by(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def flash_attn() -> Tensor:
        library: Any = importlib.import_module("flash_attn")
        return library.flash_attn_func(*tokens_first(query, key, value), causal=True).transpose(
            1, 2
        )

    def xformers() -> Tensor:
        ops: Any = importlib.import_module("xformers.ops")
        given = tokens_first(query, key, value)
        hidden = ops.LowerTriangularMask()
        return ops.memory_efficient_attention(*given, attn_bias=hidden).transpose(1, 2)

    return {name: functools.partial(by, backend) for name, backend in BACKENDS.items()} | {
        "PyTorch's choice": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ),
        "flash-attn": flash_attn,
        "xFormers": xformers,
    }


def tokens_first(*tensors: Tensor) -> list[Tensor]:
    """The tensors as (batch, tokens, heads, width), in the same memory."""
    return [each.transpose(1, 2) for each in tensors]


def _causal(tokens: int, trained: bool, scale: Scale) -> Sides:
    tensors = scale.draw(32, tokens, trained=trained)
    sides: Sides = {"attend": lambda: ch.attend(*tensors, mask=ch.causal()), **backends(*tensors)}
    if not trained:
        return sides
    return {name: with_gradients(side, tensors) for name, side in sides.items()}


for _tokens, _trained, _reach in (
    (4096, False, "<= 1.10x"),
    (32_768, False, "<= 1.03x"),
    (4096, True, "<= 1.05x"),
    (32_768, True, "<= 1.05x"),
):
    _also = ", forward and backward" if _trained else ", forward"
    row(
        f"gpu-causal-{_tokens}{'-trained' if _trained else ''}",
        f"causal, (1, 32, {_tokens}, 128){_also}",
        _reach,
    )(functools.partial(_causal, _tokens, _trained))


@row(
    "gpu-statistics-32768",
    "all statistics, the 8 largest and the context, causal, (1, 32, 32768, 128)",
    rounds=2,
)
def statistics(scale: Scale) -> Sides:
    query, key, value = scale.draw(32, 32_768)
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())

    def summary() -> Tensor:
        context = matrix.summary(value=value, top_k=8).context
        assert context is not None
        return context

    causal = backends(query, key, value)
    peers = {name: causal[name] for name in ("flash", "PyTorch's choice")}
    return {"summary": summary, **peers}


@row(
    "gpu-sweep-8192",
    "the sweep alone, (1, 32, 8192, 128) in float32, against all weights by PyTorch",
    rounds=2,
)
def sweep_alone(scale: Scale) -> Sides:
    query, key, _ = (each.float() for each in scale.draw(32, 8192))
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())
    hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).triu(1)

    def by_hand() -> Tensor:
        found = []
        for head in range(query.shape[1]):
            scores = query[0, head].float() @ key[0, head].float().T * matrix.problem.scale
            weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
            found.append(torch.special.entr(weights).sum(dim=-1))
        return torch.stack(found)[None]

    return {
        "summary by the sweep": lambda: matrix.summary().entropy,
        "by hand": by_hand,
    }


def _masked(
    mask: Callable[[int], ch.Mask],
    lengths: Callable[[int], list[int]],
    window: Callable[[int], int] | None,
    tokens: int,
    trained: bool,
    scale: Scale,
) -> Sides:
    """A mask for so many tokens: of texts of these lengths, each token seeing so many before it, or all."""
    tensors = scale.draw(8, tokens, trained=trained)
    query, key, value = tensors
    length = query.shape[2]
    some = mask(length)
    left = None if window is None else window(length)

    def by(kernel: str) -> Tensor:
        return ch.attend(*tensors, mask=some, kernel=kernel)

    sides: Sides = {
        "attend": functools.partial(by, "auto"),
        "attend by flex": functools.partial(by, "flex"),
        **peer_flex(some, query, key, value),
        **peer_varlen(lengths(length), left, query, key, value),
    }
    if not trained:
        return sides
    return {name: with_gradients(side, tensors) for name, side in sides.items()}


def peer_varlen(
    lengths: list[int], left: int | None, query: Tensor, key: Tensor, value: Tensor
) -> Sides:
    """PyTorch's attention of texts that lie one behind the other, causal, each token with so many before it."""
    ends = torch.tensor([0, *lengths]).cumsum(0).to(query.device, torch.int32)

    def run() -> Tensor:
        if not query.is_cuda:
            raise RuntimeError("it is made for CUDA")
        varlen: Any = importlib.import_module("torch.nn.attention.varlen")
        given = [each[0].transpose(0, 1) for each in (query, key, value)]
        window = (-1 if left is None else left, 0)
        context = varlen.varlen_attn(
            *given, ends, ends, max(lengths), max(lengths), window_size=window
        )
        return context.transpose(0, 1)[None]

    return {"varlen_attn": run}


def peer_flex(
    mask: ch.Mask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Callable[..., Tensor] | None = None,
    sinks: Tensor | None = None,
) -> Sides:
    """PyTorch's FlexAttention, compiled, with a block mask that is made once."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    length = query.shape[2]

    @functools.cache
    def made() -> tuple[Any, Any]:
        spans = mask.spans(mask.extent(length, length, query.device))
        assert spans is not None
        start, stop = spans.start[0, :, 0].contiguous(), spans.stop[0, :, 0].contiguous()
        blocks = flex.create_block_mask(
            lambda b, h, q, k: (start[q] <= k) & (k < stop[q]), 1, 1, length, length, query.device
        )
        return torch.compile(flex.flex_attention), blocks

    def run() -> Tensor:
        if not query.is_cuda:
            raise RuntimeError("it is compiled for CUDA")
        attention, blocks = made()
        options = {"score_mod": scores, "block_mask": blocks}
        if sinks is None:
            return attention(query, key, value, **options)
        context, total = attention(query, key, value, return_lse=True, **options)
        return context * torch.sigmoid(total - sinks[:, None])[..., None].to(context.dtype)

    return {"compiled FlexAttention": run}


def _left(tokens: int) -> int:
    return max(1, min(1023, tokens // 4))


def _window(tokens: int) -> ch.Mask:
    return ch.causal() & ch.sliding_window(left=_left(tokens))


def _lengths(tokens: int) -> list[int]:
    each = max(1, tokens // 8)
    return [each] * (tokens // each) + [tokens % each or each][: tokens % each]


def _documents(tokens: int) -> ch.Mask:
    return ch.causal() & ch.documents(lengths=_lengths(tokens))


for _trained in (False, True):
    _also, _name = (", forward and backward", "-trained") if _trained else ("", "")
    row(
        f"gpu-window-65536{_name}",
        f"a window of 1 024, causal, (1, 8, 65536, 128){_also}",
        "<= 1.05x",
        rounds=1,
    )(functools.partial(_masked, _window, lambda tokens: [tokens], _left, 65_536, _trained))
    row(
        f"gpu-documents-32768{_name}",
        f"8 documents, causal, (1, 8, 32768, 128){_also}",
        "<= 1.05x",
        rounds=1,
    )(functools.partial(_masked, _documents, _lengths, None, 32_768, _trained))


def _scored(name: str, scale: Scale) -> Sides:
    query, key, value = scale.draw(16, 8192)
    heads = query.shape[1]
    numbers = torch.linspace(-1, 1, heads, device=scale.device, dtype=scale.dtype)
    slopes = ch.alibi(heads).to_dense(1, 2)[0, :, 0, 0].abs().to(scale.device)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 30.0 * torch.tanh(score / 30.0)

    def sloped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score - slopes[h] * (q - k)

    more: dict[str, Any]
    peer: dict[str, Any]
    more, peer = {
        "alibi": ({"bias": ch.alibi(heads)}, {"scores": sloped}),
        "softcap": ({"softcap": 30.0}, {"scores": capped}),
        "sinks": ({"sinks": numbers}, {"sinks": numbers}),
    }[name]

    def by(kernel: str) -> Tensor:
        return ch.attend(query, key, value, mask=ch.causal(), kernel=kernel, **more)

    return {
        "attend": functools.partial(by, "auto"),
        "attend by flex": functools.partial(by, "flex"),
        "the definition": functools.partial(by, "eager"),
        **peer_flex(ch.causal(), query, key, value, **peer),
    }


for _name in ("sinks", "alibi", "softcap"):
    row(f"gpu-{_name}-8192", f"{_name}, causal, (1, 16, 8192, 128)", "<= 1.1x", rounds=2)(
        functools.partial(_scored, _name)
    )


@row("gpu-received-16384", "what each key receives, causal, (1, 32, 16384, 128)", "<= 10ms")
def received(scale: Scale) -> Sides:
    query, key, _ = scale.draw(32, 16_384)
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())

    def colreduce() -> Tensor:
        library: Any = importlib.import_module("flash_colreduce")
        return library.flash_colreduce(query, key, reduction="sum", is_causal=True).float()

    return {
        "the sweep": lambda: matrix.received(),
        "flash-colreduce": colreduce,
    }


def captured(call: Callable[[], Tensor], scale: Scale) -> Side:
    """The call as a CUDA graph, which is captured when it first runs; on the CPU itself."""
    if scale.device.type != "cuda":
        return call

    @functools.cache
    def graph() -> tuple[torch.cuda.CUDAGraph, Tensor]:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            call()
        torch.cuda.current_stream().wait_stream(beside)
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            found = call()
        return made, found

    def run() -> Tensor:
        made, found = graph()
        made.replay()
        return found

    return run


@row(
    "gpu-step-4096",
    "a token after 4 096, a layer of 32 heads of 128, as a CUDA graph, against the same by hand",
    "<= 1.05x",
)
def step(scale: Scale) -> Sides:
    key, value, _ = scale.draw(32, 4096)
    heads, tokens, width = key.shape[1:]
    layer = ch.MultiHeadAttention(heads * width, num_heads=heads, mask=ch.causal())
    layer = layer.to(scale.device, scale.dtype).eval()
    held = torch.full((), tokens, dtype=torch.int64, device=scale.device)
    store, other = (F.pad(each, (0, 0, 0, 1)) for each in (key, value))
    cache = ch.layers.FixedCache.of(store, other, held)
    keys, values = (F.pad(each, (0, 0, 0, 1)) for each in (key, value))
    token = torch.randn(1, 1, heads * width, device=scale.device, dtype=scale.dtype)

    @torch.no_grad()
    def ours() -> Tensor:
        held.fill_(tokens)
        return layer(token, cache=cache)

    @torch.no_grad()
    def by_hand() -> Tensor:
        query, key, value = (
            layer.get_submodule(f"{name}_projection")(token)
            .view(1, 1, heads, width)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        keys[:, :, tokens:], values[:, :, tokens:] = key, value
        context = F.scaled_dot_product_attention(query, keys, values)
        return layer.get_submodule("output_projection")(context.transpose(1, 2).flatten(2))

    return {"a step with a FixedCache": captured(ours, scale), "by hand": captured(by_hand, scale)}
