"""A smoke of every verb, its numbers held against the definition in float64, so that a version of a
library that makes them silently wrong fails.

`python -m tests.smoke` prints a line for each and a count. `make bounds` runs it on the oldest and
on the newest versions that pyproject.toml admits.
"""

import contextlib
import copy
import io
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch
from clearhead import cli, ladder, layers, stages, testing
from clearhead.integrations import attention, huggingface
from tests import tiny_models
from tests.attention.kernels.definition import Tensors, assert_agrees, close, defined, draw
from tests.environment import SEED, prepare

Smoke = Callable[[], None]
SMOKES: dict[str, Smoke] = {}
SLOW: set[str] = set()
"""Those that start a process, or a compiler."""

LIBRARIES = [
    *["torch", "transformers", "tokenizers", "safetensors", "typer", "click", "rich", "matplotlib"],
    *["anywidget", "jaxtyping", "lazy-loader", "numpy", "onnx", "onnxscript", "pytest"],
]


def smoke(name: str, *, slow: bool = False) -> Callable[[Smoke], Smoke]:
    def add(run: Smoke) -> Smoke:
        assert name not in SMOKES, name
        SMOKES[name] = run
        SLOW.update([name] * slow)
        return run

    return add


@contextlib.contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def python(*arguments: str, cwd: Path | None = None) -> str:
    """Return what a process of this interpreter prints."""
    run = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def doubled(tensors: Tensors) -> Tensors:
    return {name: tensor.double() for name, tensor in tensors.items()}


# attend: every kernel with every option, forward and backward. 211 tokens are several of the blocks
# of PyTorch's kernel, 5 are less than one.

MASKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "no mask": lambda tokens: {},
    "causal": lambda tokens: {"mask": ch.causal()},
    "window and padding": lambda tokens: {
        "mask": ch.causal() & ch.sliding_window(left=3) & ch.padding([tokens, tokens - 2])
    },
    "documents": lambda tokens: {"mask": ch.documents(lengths=[2, tokens - 3, 1])},
    "mask as a tensor": lambda tokens: {"mask": torch.rand(2, 6, tokens, tokens) > 0.5},
    "alibi": lambda tokens: {"mask": ch.causal(), "bias": ch.alibi(6)},
    "bias as a tensor": lambda tokens: {"bias": torch.randn(1, 6, tokens, tokens)},
    "scale": lambda tokens: {"scale": 0.2},
}


def attends(kernel: str, options: Callable[[int], dict[str, Any]]) -> None:
    for tokens in (5, 67, 211):
        tensors = draw(2, 6, 2, tokens, head_dim=16, value_head_dim=11)
        assert_agrees(kernel, tensors, **options(tokens))


for kernel in ("fused", "blockwise", "eager"):
    for name, options in MASKS.items():
        SMOKES[f"attend, {kernel}: {name}"] = partial(attends, kernel, options)
for kernel in ("blockwise", "eager"):
    SMOKES[f"attend, {kernel}: softcap"] = partial(attends, kernel, lambda _: {"softcap": 2.0})


def sinks(kernel: str, mask: ch.Mask | None) -> None:
    """A sink has a gradient as well."""
    for tokens in (5, 67, 211):
        tensors = draw(2, 6, 2, tokens, head_dim=16) | {"sinks": torch.randn(6)}
        assert_agrees(kernel, tensors, mask=mask)


for kernel in ("fused", "blockwise", "eager"):
    SMOKES[f"attend, {kernel}: sinks"] = partial(sinks, kernel, None)
    SMOKES[f"attend, {kernel}: sinks, causal"] = partial(sinks, kernel, ch.causal())


@smoke("attend: heads that are not grouped, cross-attention, one query")
def _() -> None:
    for query_len, kv_len in ((17, 41), (1, 67), (41, 17)):
        assert_agrees("auto", draw(2, 3, 3, query_len, kv_len, head_dim=8))


@smoke("attend: 16 bits")
def _() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert_agrees("auto", draw(2, 6, 2, 67, head_dim=16, dtype=dtype), mask=ch.causal())


@smoke("attend: dropout")
def _() -> None:
    tensors: Tensors = draw(1, 4, 2, 67, head_dim=8)
    tensors["value"] = torch.eye(67).expand(1, 2, 67, 67)
    weights = defined(**doubled(tensors)).weights
    for kernel in ("blockwise", "eager"):
        found = ch.attend(**tensors, dropout=0.25, kernel=kernel)
        kept = found != 0
        assert 0.2 < 1 - kept.double().mean() < 0.3
        close(found[kept], weights[kept] / 0.75, weights[kept].float() / 0.75, kernel)


@smoke("attend: a query that sees nothing, a NaN behind the mask")
def _() -> None:
    tensors = draw(2, 6, 2, 37, head_dim=8)
    expected = ch.attend(**doubled(tensors), mask=ch.padding([30, 0]), kernel="eager")
    tensors["key"][0, :, 30:], tensors["value"][1] = torch.nan, torch.nan
    for kernel in ("fused", "blockwise", "eager"):
        found = ch.attend(**tensors, mask=ch.padding([30, 0]), kernel=kernel)
        assert not found[1].any()
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@smoke("plan, and a kernel that refuses in words")
def _() -> None:
    tensors = draw(1, 6, 2, 7)
    assert ch.plan(**tensors, sinks=torch.zeros(6)).kernel == "fused"
    with pytest.raises(ch.UnsupportedError, match="CUDA"):
        ch.attend(**tensors, kernel="flex")


@smoke("attend under vmap, func.grad and autocast")
def _() -> None:
    tensors = draw(3, 6, 2, 17, head_dim=8)
    run = partial(ch.attend, mask=ch.causal())

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return run(query, key, value).square().sum()

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    expected = torch.autograd.grad(loss(**leaves), leaves["query"])[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        found = torch.vmap(torch.func.grad(loss))(*tensors.values())
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert run(**tensors).dtype == torch.bfloat16


# Layers: against themselves in float64 on the eager kernel, which is the definition.

EMBED, HEADS, KV_HEADS, DIM = 24, 6, 2, 8
PARTS: dict[str, Callable[[], list[layers.Part]]] = {
    "plain": list,
    "rotary, norm": lambda: [layers.QueryKeyNorm(DIM), layers.Rotary(DIM)],
    "yarn": lambda: [layers.Rotary(DIM, scaling=layers.Yarn(4.0, 16))],
    "sinks, gate": lambda: [layers.Sinks(HEADS), layers.OutputGate(EMBED, HEADS, DIM)],
    "softcap, scale": lambda: [layers.Softcap(2.0), layers.Scale(0.3)],
    "alibi": lambda: [layers.ScoreBias(ch.alibi(HEADS))],
    "relative": lambda: [layers.RelativeBias(HEADS, num_buckets=8, bidirectional=False)],
    "differential": lambda: [layers.Differential(DIM)],
}


def a_layer(parts: str = "rotary, norm", mask: ch.Mask | None = None) -> ch.MultiHeadAttention:
    mask = ch.causal() if mask is None else mask
    return ch.MultiHeadAttention(
        EMBED, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, mask=mask, parts=PARTS[parts]()
    ).eval()


def agrees(layer: Any, x: Tensor, actual: Tensor | None = None) -> None:
    """Hold a layer to itself in float64, computed by the stages."""
    with torch.no_grad():
        truth = copy.deepcopy(layer).double()(x.double(), kernel="eager")
        found = layer(x) if actual is None else actual
        close(found, truth, layer(x, kernel="eager"), "the output")


def a_layer_attends(parts: str) -> None:
    x = torch.randn(2, 67, EMBED)
    layer = a_layer(parts)
    agrees(layer, x)
    outputs = []
    for kernel, dtype in (("auto", x.dtype), ("eager", x.dtype), ("eager", torch.float64)):
        model, given = copy.deepcopy(layer).to(dtype), x.detach().to(dtype).requires_grad_()
        model(given, kernel=kernel).sum().backward()
        grads = [
            each.grad.flatten() for each in (given, *model.parameters()) if each.grad is not None
        ]
        outputs.append(torch.cat(grads))
    actual, plain, truth = outputs
    close(actual, truth, plain, "a gradient")


def a_layer_caches(cache: Callable[[], layers.Cache], parts: str) -> None:
    """Chunk by chunk and token by token it is what it is at once."""
    x = torch.randn(2, 19, EMBED)
    layer, kept = a_layer(parts, ch.causal() & ch.sliding_window(left=7)), cache()
    with torch.no_grad():
        found = torch.cat(
            [layer(each, cache=kept) for each in x.split([5, 1, 3] + [1] * 10, dim=1)], 1
        )
    if isinstance(kept, layers.QuantisedCache):
        torch.testing.assert_close(found, layer(x).detach(), rtol=0.05, atol=0.05)
    else:
        agrees(layer, x, found)


CACHES: dict[str, Callable[[], layers.Cache]] = {
    "growing": layers.GrowingCache,
    "static": lambda: layers.StaticCache(32),
    "sliding": lambda: layers.SlidingCache(8),
    "paged": lambda: layers.PagedCache(4),
    "quantised": layers.QuantisedCache,
}
for name in PARTS:
    SMOKES[f"layer: {name}"] = partial(a_layer_attends, name)
for name, cache in CACHES.items():
    SMOKES[f"layer, {name} cache"] = partial(a_layer_caches, cache, "rotary, norm")
SMOKES["layer, growing cache: sinks"] = partial(a_layer_caches, layers.GrowingCache, "sinks, gate")


@smoke("layer: cross-attention, padding, nested tensors")
def _() -> None:
    layer = ch.MultiHeadAttention(EMBED, num_heads=HEADS, context_dim=13).eval()
    with torch.no_grad():
        x, context = torch.randn(2, 5, EMBED), torch.randn(2, 9, 13)
        padded = layer(x, context, mask=ch.padding([9, 4]))
        torch.testing.assert_close(padded[1], layer(x[1], context[1, :4]))
        each = [torch.randn(5, EMBED), torch.randn(2, EMBED)]
        nested = torch.nested.nested_tensor(each, layout=torch.jagged)
        causal = a_layer()
        for found, alone in zip(causal(nested).unbind(), each, strict=True):
            torch.testing.assert_close(found, causal(alone))


@smoke("layer: latent attention")
def _() -> None:
    layer = layers.LatentAttention(
        EMBED, num_heads=4, head_dim=8, rotary_dim=4, latent_dim=12, mask=ch.causal(),
        parts=[layers.Rotary(4)],
    ).eval()  # fmt: skip
    x, kept = torch.randn(2, 19, EMBED), layers.GrowingCache()
    agrees(layer, x)
    with torch.no_grad():
        agrees(layer, x, torch.cat([layer(each, cache=kept) for each in x.split(1, dim=1)], dim=1))


def a_layer_compiles(parts: str) -> None:
    layer, x = a_layer(parts), torch.randn(2, 17, EMBED)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    agrees(layer, x, compiled(x).detach())
    compiled(x).sum().backward()
    gradient = layer.query_projection.weight.grad
    assert gradient is not None
    layer.zero_grad()
    layer(x).sum().backward()
    torch.testing.assert_close(gradient, layer.query_projection.weight.grad)


def a_layer_exports(parts: str) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("exports of any length need PyTorch 2.13")
    layer, x = a_layer(parts), torch.randn(2, 17, EMBED)
    sizes = {"x": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", max=512)}}
    program = torch.export.export(layer, (x,), dynamic_shapes=sizes)
    longer = torch.randn(3, 29, EMBED)
    agrees(layer, longer, program.module()(longer).detach())


for name in ("rotary, norm", "sinks, gate"):
    SMOKES[f"layer, compiled: {name}"] = partial(a_layer_compiles, name)
    SMOKES[f"layer, exported: {name}"] = partial(a_layer_exports, name)
    SLOW |= {f"layer, compiled: {name}", f"layer, exported: {name}"}


@smoke("layer, compiled step with a static cache", slow=True)
def _() -> None:
    layer, x = a_layer(), torch.randn(1, 9, EMBED)
    cache = layers.StaticCache(16)
    torch.compiler.reset()
    step = torch.compile(lambda token: layer(token, cache=cache), backend="aot_eager")
    with torch.no_grad():
        agrees(layer, x, torch.cat([step(token) for token in x.split(1, dim=1)], dim=1))


@smoke("layer, as a file of ONNX", slow=True)
def _() -> None:
    layer, x = a_layer("plain"), torch.randn(2, 5, EMBED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        from onnx.reference import ReferenceEvaluator

        program: Any = torch.onnx.export(layer, (x,), dynamo=True, opset_version=23, verbose=False)
    (found,) = ReferenceEvaluator(program.model_proto).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(x).detach(), rtol=1e-4, atol=1e-5)


@smoke("convert: PyTorch's layer, and back")
def _() -> None:
    theirs = nn.MultiheadAttention(EMBED, 4, batch_first=True).eval()
    ours, x = ch.MultiHeadAttention.from_torch(theirs), torch.randn(2, 7, EMBED)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])
    torch.testing.assert_close(ours.to_torch()(x, x, x)[0], theirs(x, x, x)[0])


@smoke("convert: a model's layer, and back")
def _() -> None:
    model = a_model("llama", "eager")
    theirs = model.model.layers[0].self_attn
    layer = ch.convert(theirs).layer
    x = torch.randn(2, 7, SIZES["hidden_size"])
    positions = model.model.rotary_emb(x, torch.arange(7)[None])
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    expected = theirs(x, position_embeddings=positions, attention_mask=mask)[0]
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    ch.convert(layer, into=theirs)


# AttentionMatrix: every number, against the weights in float64.


TOKENS = 212
INDEX = torch.arange(TOKENS)
AWAY = (INDEX[:, None] - INDEX).abs()
"""The distance of each key from each query, in tokens."""
VALUES = torch.linspace(-1, 1, TOKENS * 3).reshape(TOKENS, 3)
THIRDS = F.one_hot(INDEX % 3, 3)
HALVES = F.one_hot(INDEX * 2 // TOKENS, 2)


def by_group(rows: Tensor) -> Tensor:
    """Summed over the query heads that share a key head."""
    return rows.unflatten(1, (KV_HEADS, -1)).sum(2)


# What a matrix gives, and what it is by its formula.
NUMBERS: dict[str, tuple[Callable[[Any], Tensor], Callable[[Tensor], Tensor]]] = {
    "dense": (lambda a: a.dense(), lambda w: w),
    "rows": (lambda a: a[..., 3:5, :], lambda w: w[..., 3:5, :]),
    "column": (lambda a: a[..., 2], lambda w: w[..., 2]),
    "rectangle": (lambda a: a[:, 1, 1:4, :3], lambda w: w[:, 1, 1:4, :3]),
    "at": (lambda a: a.at([4, 2], [1, 2]), lambda w: w[..., [4, 2], [1, 2]]),
    "diagonal": (lambda a: a.diagonal(-1), lambda w: w.diagonal(-1, -2, -1)),
    "product": (lambda a: a @ VALUES, lambda w: w @ VALUES.to(w.dtype)),
    "transposed": (lambda a: a.mT @ VALUES, lambda w: w.mT @ VALUES.to(w.dtype)),
    "entropy": (lambda a: a.entropy(), lambda w: torch.special.entr(w).sum(-1)),
    "max": (lambda a: a.max(), lambda w: w.amax(-1)),
    "top_k": (lambda a: a.top_k(2).weights, lambda w: w.topk(2, -1).values),
    "received": (lambda a: a.received(), lambda w: by_group(w.sum(-2))),
    "distance": (lambda a: a.distance(), lambda w: (w * AWAY).sum(-1)),
    "near": (lambda a: a.near(2), lambda w: w.masked_fill(AWAY > 2, 0).sum(-1)),
    "mass": (lambda a: a.mass(INDEX % 3), lambda w: w @ THIRDS.to(w.dtype)),
    "pool": (lambda a: a.pool(2, 2), lambda w: HALVES.T.to(w.dtype) @ w @ HALVES.to(w.dtype)),
}


def a_matrix(number: str, with_sinks: bool) -> None:
    tensors = draw(2, HEADS, KV_HEADS, TOKENS, head_dim=16)
    options = {"mask": ch.causal(), "sinks": torch.randn(HEADS) if with_sinks else None}
    matrix = ch.AttentionMatrix(tensors["query"], tensors["key"], **options)
    ours, formula = NUMBERS[number]
    truth, plain = (
        formula(defined(**each, **options).weights) for each in (doubled(tensors), tensors)
    )
    close(ours(matrix), truth, plain, number)


for number in NUMBERS:
    SMOKES[f"matrix: {number}"] = partial(a_matrix, number, False)
    SMOKES[f"matrix, sinks: {number}"] = partial(a_matrix, number, True)


@smoke("matrix: logsumexp")
def _() -> None:
    for tokens in (5, 67, 211):
        tensors = draw(2, HEADS, KV_HEADS, tokens, head_dim=16)
        for mask in (ch.causal(), ch.full(), ch.padding([tokens, tokens - 3])):
            truth, plain = (
                stages.logsumexp(defined(**each, mask=mask).masked_scores)
                for each in (doubled(tensors), tensors)
            )
            found = ch.AttentionMatrix(tensors["query"], tensors["key"], mask=mask).logsumexp
            close(found, truth, plain, f"{mask}")


@smoke("matrix: summary, roles, rollout, gradients")
def _() -> None:
    tensors = draw(2, HEADS, KV_HEADS, 41, head_dim=16)
    query, key = tensors["query"].requires_grad_(), tensors["key"]
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())
    summary = matrix.summary(value=tensors["value"], top_k=2, pool=(2, 2))
    expected = defined(**doubled(tensors), mask=ch.causal())
    assert summary.context is not None
    torch.testing.assert_close(
        summary.context.double(), expected.context.detach(), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        summary.entropy.double(),
        torch.special.entr(expected.weights.detach()).sum(-1),
        atol=1e-5,
        rtol=1e-4,
    )
    previous = expected.weights.detach().diagonal(-1, -2, -1)[..., 1:].mean(-1)
    measured = ch.roles(matrix).previous
    assert measured is not None
    torch.testing.assert_close(measured.double(), previous, atol=0.05, rtol=0.05)
    mixed = (expected.weights.detach().mean(1) + torch.eye(41)) / 2
    torch.testing.assert_close(
        ch.rollout([matrix, matrix]).double(), (mixed @ mixed)[:, -1], atol=1e-5, rtol=1e-4
    )
    (gradient,) = torch.autograd.grad(matrix.logsumexp.sum(), query)
    wide = tensors | {"query": query.detach().double().requires_grad_()}
    scores = defined(**doubled(wide), mask=ch.causal()).masked_scores
    (wanted,) = torch.autograd.grad(scores.logsumexp(-1).sum(), wide["query"])
    torch.testing.assert_close(gradient.double(), wanted, atol=1e-4, rtol=1e-4)


# watch: what was seen, against the weights that the model itself gives in its eager way.

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 31,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "eos_token_id": None,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 3}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 24, "n_layer": 2, "n_head": 4}),
    "bert": ("BertModel", "BertConfig", {}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 6, "sliding_window": 3}),
}


def a_model(name: str, implementation: str) -> Any:
    torch.manual_seed(SEED)
    model, config, sizes = MODELS[name]
    made = getattr(transformers, config)(**(SIZES | sizes))
    made._attn_implementation = implementation
    return getattr(transformers, model)(made).eval()


IDS = torch.arange(14).reshape(2, 7) * 5 % 97 + 3


@smoke("watch: PyTorch's layer and function")
def _() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.inner(x).unflatten(-1, (4, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(
                heads, heads[:, :2], heads[:, :2], enable_gqa=True
            )

    x, model = torch.randn(2, 7, 16), Calls().eval()
    for mode in (contextlib.nullcontext, torch.no_grad):
        with mode():
            expected = model(x)
            with ch.watch(model) as seen:
                assert torch.equal(model(x), expected)
        assert len(seen) == 2
        theirs = model.inner.self_attn(x, x, x, average_attn_weights=False)[1]
        torch.testing.assert_close(seen["inner.self_attn"].dense(), theirs, rtol=1e-4, atol=1e-6)
        heads = model.inner(x).unflatten(-1, (4, 4)).transpose(1, 2)
        tensors = {"query": heads, "key": heads[:, :2], "value": heads[:, :2]}
        wanted = defined(**tensors).weights
        torch.testing.assert_close(seen[1].dense(), wanted, rtol=1e-4, atol=1e-6)


def watches(name: str, implementation: str) -> None:
    if implementation == "clearhead":
        attention.register()
    eager, model = a_model(name, "eager"), a_model(name, implementation)
    real = torch.ones_like(IDS)
    real[1, :3] = 0
    with torch.no_grad():
        wanted = eager(IDS, attention_mask=real, output_attentions=True)
        expected = model(IDS, attention_mask=real)[0]
        with ch.watch(model) as seen:
            output = model(IDS, attention_mask=real)[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    torch.testing.assert_close(output[0], wanted[0][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output[1, 3:], wanted[0][1, 3:], rtol=1e-4, atol=1e-4)
    assert len(seen) == 2
    for layer, weights in enumerate(wanted.attentions):
        found = seen[layer].dense()
        torch.testing.assert_close(found[0], weights[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1, :, 3:], weights[1, :, 3:], rtol=1e-4, atol=1e-5)


for name in MODELS:
    for implementation in ("eager", "sdpa", "clearhead"):
        if (name, implementation) != ("gemma2", "sdpa"):  # PyTorch's function has no softcap
            title = f"watch: {name}, {implementation}"
            SMOKES[title] = partial(watches, name, implementation)


@smoke("watch: a generation is one matrix")
def _() -> None:
    for name, implementation in (("llama", "sdpa"), ("gpt2", "eager"), ("llama", "clearhead")):
        attention.register()
        model = a_model(name, implementation)
        given = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        ids = model.generate(IDS[:1], **given)
        with ch.watch(model) as seen:
            assert torch.equal(model.generate(IDS[:1], **given), ids)
        with torch.no_grad():
            whole = a_model(name, "eager")(ids[:, :-1], output_attentions=True).attentions
        for layer, weights in enumerate(whole):
            torch.testing.assert_close(seen[layer].dense(), weights, rtol=1e-4, atol=1e-5)


@smoke("register: trained like eager, and its attentions are matrices")
def _() -> None:
    attention.register()
    eager, model = a_model("llama", "eager"), a_model("llama", "eager")
    model.set_attn_implementation("clearhead")
    attention.check_model(model)
    losses = []
    for each in (eager, model):
        output = each(IDS, labels=IDS)
        output.loss.backward()
        losses.append(output.loss.detach())
    torch.testing.assert_close(*losses)
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    shown = model(IDS, output_attentions=True).attentions[0]
    assert isinstance(shown, ch.AttentionMatrix)


@smoke("watch: summaries, an estimate, a table, a file")
def _() -> None:
    layer, x = a_layer(), torch.randn(2, 9, EMBED)
    model = nn.Sequential(layer)
    with ch.watch(model, keep="summary") as summaries:
        model(x)
    assert "97" in str(ch.watch(model, keep="summary").estimate(batch=1, query_len=97))
    with ch.watch(model) as seen:
        model(x)
    torch.testing.assert_close(summaries[0].entropy, seen[0].entropy())
    assert "previous" in str(seen.table())
    with place() as folder:
        path = seen.save(folder / "run.clearhead", tokens=list("abcdefghi"))
        again = ch.load(path)
        assert again.tokens == tuple("abcdefghi")
        assert torch.equal(again[0].dense(), seen[0].dense())
        summaries.save(folder / "numbers.clearhead")
        assert torch.equal(ch.load(folder / "numbers.clearhead")[0].entropy, summaries[0].entropy)


@smoke("reading with the packaged model")
def _() -> None:
    reading = huggingface.load().read("The animal didn't cross the street.")
    assert reading.tokens[1] == "the"
    for matrix in reading.matrices:
        torch.testing.assert_close(matrix.dense().sum(-1), torch.ones(matrix.shape[:-1]))


@smoke("reading with a saved model")
def _() -> None:
    with place() as folder:
        for save in (tiny_models.save_llama, tiny_models.save_gpt2, tiny_models.save_roberta):
            reading = huggingface.load(str(save(folder / save.__name__))).read(tiny_models.TEXT)
            assert "".join(reading.tokens).strip("</s>").strip().startswith("The")
            assert len(reading.matrices) == 2


# trace, check, profile, testing.


@smoke("trace: a layer and a rung")
def _() -> None:
    layer, x = a_layer("sinks, gate"), torch.randn(2, 9, EMBED)
    steps = ch.trace(layer, x)
    torch.testing.assert_close(steps["output"], layer(x))
    (sinks,) = (part for part in layer.parts if isinstance(part, layers.Sinks))
    wanted = stages.weights(steps["masked_scores"].double(), sinks.scores.double())
    torch.testing.assert_close(steps["weights"].double(), wanted, rtol=1e-4, atol=1e-6)
    rung = ladder.MaskedAttention(3, head_dim=2, value_head_dim=2, mask=ch.causal())
    steps = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    assert "Your" in str(steps)
    with place() as folder:
        assert steps.to_html(folder / "steps.html").stat().st_size > 10_000


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) @ value


class Causal(nn.Module):
    """Right, as people write it."""

    def __init__(self, d_in: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.W_query, self.W_key, self.W_value, self.out_proj = (
            nn.Linear(d_in, d_in) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.W_query, self.W_key, self.W_value)
        )
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return self.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


@smoke("check: right code is right, wrong code is wrong by name")
def _() -> None:
    assert ch.check(unscaled, takes="qkv").findings[0].code == "scale.missing"
    report = ch.check(Causal(12, 3), takes="x", causal=True)
    assert report.ok, str(report)
    assert ch.check(Causal(12, 3), takes="x", causal=True, scale=1.0).findings
    report = ch.check(nn.MultiheadAttention(12, 3, batch_first=True), takes="x")
    assert report.ok, str(report)
    assert ch.check(F.scaled_dot_product_attention, takes="qkv").ok
    assert ch.check(a_model("llama", "sdpa").model.layers[0].self_attn, takes="x", causal=True).ok
    assert "scale.missing" in ch.check(unscaled, takes="qkv").to_html()


@smoke("profile: memory of the plain attention grows with tokens²")
def _() -> None:
    cost = ch.profile(unscaled, takes="qkv", lengths=(64, 128, 256), rounds=1)
    assert cost.growth("memory") == "tokens²"
    assert "_scaled_dot_product_flash_attention_for_cpu" in str(cost)


@smoke("testing: conformance, assert_attention")
def _() -> None:
    def mine(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        return ch.attend(query, key, value, mask=ch.causal() if causal else None)

    features = {"causal", "grouped", "gradients", "empty_axes", "nan_behind_mask"}
    cases = testing.conformance(mine, features=features)
    assert len(cases) > 20
    for case in cases:
        case.run()
    testing.assert_attention(Causal(12, 3), takes="x", causal=True)
    with pytest.raises(AssertionError, match=r"scale\.missing"):
        testing.assert_attention(unscaled, takes="qkv")


# What is drawn.


def seen_by_a_layer() -> ch.Seen[Any]:
    layer = nn.Sequential(a_layer())
    with ch.watch(layer) as seen:
        layer(torch.randn(1, 9, EMBED))
    return seen


@smoke("masks: drawn, counted, combined")
def _() -> None:
    mask = ch.causal() & ~ch.sliding_window(left=1) | ch.prefix(2)
    index = torch.arange(9)
    row, column = index[:, None], index
    wanted = (column <= row) & (column < row - 1) | (column < 2)
    assert torch.equal(mask.to_dense(9, 9).expand(9, 9), wanted)
    assert mask.draw(9, 9).count("●") == wanted.sum()


@smoke("figures")
def _() -> None:
    import matplotlib.pyplot as plt

    seen = seen_by_a_layer()
    matrix = seen[0]
    ax = matrix.plot(head=1, tokens=list("abcdefghi"))
    shown = torch.as_tensor(ax.images[0].get_array().filled(0).copy())
    torch.testing.assert_close(shown.double(), matrix.dense()[0, 1].detach().double())
    with place() as folder:
        for suffix in ("png", "pdf", "svg"):
            ax.figure.savefig(folder / f"head.{suffix}")
        figures = [matrix.plot(), matrix.plot("entropy"), matrix.plot("received", head=0)]
        figures += [seen.plot(), seen.plot("entropy"), ch.causal().plot(6, 6)]
        figures += [
            matrix.summary(pool=(3, 3)).plot(),
            ch.trace(a_layer(), torch.randn(5, EMBED)).plot(),
        ]
        for figure in range(1, len(plt.get_fignums()) + 1):
            plt.figure(figure).savefig(folder / f"{figure}.png")
    plt.close("all")


@smoke("pages, and what draws itself in a notebook")
def _() -> None:
    seen = seen_by_a_layer()
    trace = ch.trace(a_layer(), torch.randn(5, EMBED))
    with place() as folder:
        page = seen.to_html(folder / "page.html", tokens=list("abcdefghi")).read_text("utf-8")
        assert page.lower().startswith("<!doctype html>")
        assert seen[0].to_html(folder / "head.html").stat().st_size > 10_000
    for thing in (ch.causal(), seen[0], seen[0].summary(), seen, trace):
        assert "<" in thing._repr_html_()


@smoke("a widget")
def _() -> None:
    widget = ch.view(seen_by_a_layer(), tokens=list("abcdefghi"))
    assert "anywidget" in str(type(widget).__mro__)
    widget.close()


# The command line, in this process; one of them as it is installed.


def command(*arguments: str, code: int = 0) -> str:
    """Run `clearhead …` in this process, and return what it prints."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["clearhead", *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            ended = cli.run()
    finally:
        sys.argv = before
    assert ended == code, printed.getvalue()
    return printed.getvalue()


@smoke("clearhead --help, --version")
def _() -> None:
    text = command("--help")
    assert all(name in text for name in ("show", "trace", "check", "serve", "kernels"))
    assert "--layer" in command("show", "--help")
    assert command("--version").startswith("clearhead ")


@smoke("clearhead show, --html, --png, --save")
def _() -> None:
    with place() as folder:
        files = {f"--{kind}": str(folder / f"it.{kind}") for kind in ("html", "png", "save")}
        written = [each for pair in files.items() for each in pair]
        printed = command("show", "The animal was tired", "--layer", "5", "--head", "11", *written)
        assert "animal" in printed
        assert all(Path(file).stat().st_size > 1_000 for file in files.values())
        assert len(ch.load(files["--save"])) == 6
    assert "animal" in command("show", "The animal was tired")


@smoke("clearhead trace, figure, kernels")
def _() -> None:
    assert "journey" in command("trace", "--causal")
    assert "blockwise" in command("kernels")
    with place() as folder:
        command("trace", "--html", str(folder / "steps.html"))
        command("figure", str(folder / "figure.html"))


WRONG = """
def mine(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""


@smoke("clearhead check")
def _() -> None:
    with place() as folder:
        (folder / "mine.py").write_text(WRONG.replace("key.mT", "key.mT / query.shape[-1] ** 0.5"))
        assert "✓" in command("check", f"{folder / 'mine.py'}:mine", "--takes", "qkv")
        (folder / "wrong.py").write_text(WRONG)
        assert "scale.missing" in command(
            "check", f"{folder / 'wrong.py'}:mine", "--takes", "qkv", "--json", code=1
        )


@smoke("clearhead, as it is installed", slow=True)
def _() -> None:
    assert "Attention you can see through" in python("-m", "clearhead", "--help")


@smoke("clearhead serve", slow=True)
def _() -> None:
    with place() as folder:
        run = seen_by_a_layer().save(folder / "run.clearhead")
        arguments = [sys.executable, "-m", "clearhead", "serve", str(run), "--no-browser"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(line.strip() for line in lines if line.startswith("http"))
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert b"<script" in answer.read()
        finally:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@smoke("the plugin of pytest", slow=True)
def _() -> None:
    test = f"import clearhead as ch\n{WRONG}\n"
    test += "def test_mine():\n    ch.testing.assert_attention(mine, takes='qkv')\n"
    with place() as folder:
        (folder / "test_it.py").write_text(test)
        arguments = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--clearhead-seed=3",
            "-p",
            "no:cacheprovider",
        ]
        run = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "scale.missing" in run.stdout
    assert "seed 3" in run.stdout


def main(only: str = "") -> int:
    """Run the smokes whose names match, print a line for each; the exit code."""
    prepare()
    names = [name for name in SMOKES if re.search(only, name)]
    failed, skipped = [], []
    for name in names:
        # Printed before it runs: an interpreter that dies in it has said where.
        print(f"  {name:55}", end=" ", flush=True)
        torch.manual_seed(SEED)
        started = time.perf_counter()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                SMOKES[name]()
        except pytest.skip.Exception as skip:
            skipped.append(name)
            print(f"skipped: {skip}", flush=True)
        except Exception:
            failed.append((name, traceback.format_exc()))
            print("FAILED", flush=True)
        else:
            print(f"ok {time.perf_counter() - started:5.1f} s", flush=True)
    for name, text in failed:
        print(f"\n{name}\n{text}")
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    print(f"\nPython {platform.python_version()}, {libraries}")
    print(f"smoke: {len(names) - len(failed) - len(skipped)} of {len(names)} pass", end="")
    print(f", {len(skipped)} skipped" if skipped else "")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
