"""Shares of a logit, held against the stream taken apart by hand with plain hooks, in float64."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import UnsupportedError
from tests.drawing.page.test_photo import READERS, Reader
from tests.refusals import assert_refused, refusals, wrong

HEADS, WIDTH, LEN = 4, 4, 6
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": WIDTH,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GPT2: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": HEADS, "vocab_size": 50}
IDS = torch.tensor([[3, 9, 4, 30, 8, 2], [7, 7, 12, 40, 5, 11]])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.RMSNorm(16), nn.LayerNorm(16)
        self.attention = ch.MultiHeadAttention(16, num_heads=HEADS, mask=ch.causal())
        self.mlp = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.other(x))


class Ours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(50, 16), nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


LLAMA = "self_attn.o_proj", "model.norm", "lm_head"
# The model, the end of the paths of its output projections, of its last norm and its unembedding.
MODELS: dict[str, tuple[Callable[[], nn.Module], str, str, str]] = {
    "llama": (lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES)), *LLAMA),
    "llama, tied": (lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, tie_word_embeddings=True)), *LLAMA),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES)), *LLAMA),
    "gemma": (lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**SIZES)), *LLAMA),
    "gemma3": (lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**SIZES)), *LLAMA),
    "olmo2": (lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**SIZES)), *LLAMA),
    "gpt2": (
        lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2, bos_token_id=0, eos_token_id=1)),
        "attn.c_proj", "transformer.ln_f", "lm_head",
    ),
    "neox": (
        lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**SIZES)),
        "attention.dense", "gpt_neox.final_layer_norm", "lm_head",
    ),
    "ours": (Ours, "attention.output_projection", "norm", "head"),
}  # fmt: skip
NORM_AFTER = {"gemma3": "post_attention_layernorm", "olmo2": "post_attention_layernorm"}
"""The end of the path of a norm of the attention's output."""
EXACT = "gpt2", "neox", "ours"
"""Those whose norms are worked out in float64."""


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = make().double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def frozen(name: str, norm: Any, x: Tensor, part: Tensor) -> Tensor:
    """The norm of a part of x, with the statistics of x."""
    gain = norm.weight + 1 if name.startswith("gemma") else norm.weight
    if isinstance(norm, nn.LayerNorm):
        part = part - part.mean(dim=-1, keepdim=True)
        size = (x.var(dim=-1, correction=0) + norm.eps).sqrt()
    else:
        eps: Any = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        size = (x.square().mean(dim=-1) + eps).sqrt()
    return part / size[..., None] * gain


def by_hand(model: nn.Module, name: str, d: Tensor) -> tuple[Tensor, Tensor]:
    """What each head adds along the columns of d, (layers · heads, batch, query_len, columns), and the logits of the
    run."""
    _, projection, norm, _ = MODELS[name]
    modules, read = dict(model.named_modules()), {}
    paths = [path for path in modules if path.endswith(projection)]
    after = [path for path in modules if path.endswith(NORM_AFTER.get(name, "none"))]
    hooks = [
        modules[path].register_forward_hook(
            lambda module, args, output, path=path: read.update({path: args[0]})
        )
        for path in [*paths, *after, norm]
    ]
    output = logits(model(IDS))
    for hook in hooks:
        hook.remove()
    found = []
    for layer, path in enumerate(paths):
        weight: Any = modules[path].weight
        weight = weight if "c_proj" in path else weight.mT
        for head in range(HEADS):
            at = slice(head * WIDTH, (head + 1) * WIDTH)
            part = read[path].reshape(2, LEN, -1)[..., at] @ weight[at]
            for each in [*after[layer : layer + 1], norm]:
                part = frozen(name, modules[each], read[each], part)
            found.append(part @ d)
    return torch.stack(found), output


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_each_head_has_the_share_of_plain_hooks_and_all_add_up(name: str) -> None:
    model = made(MODELS[name][0])
    head: Any = dict(model.named_modules())[MODELS[name][3]]
    found, output = by_hand(model, name, (head.weight[3] - head.weight[7])[:, None])
    want = found[..., 0].mean(dim=1)
    difference = (output[..., 3] - output[..., 7]).mean(dim=0)
    shares = ch.reading.logits_of(model, IDS, 3, against=7, query=None)
    # Norms of transformers are worked out in float32 whatever the model is in.
    close = 1e-10 if name in EXACT else 1e-6
    got = shares.heads["logit"].reshape(-1, LEN)
    torch.testing.assert_close(got, want, rtol=close, atol=close)
    together = torch.zeros(LEN, dtype=torch.float64)
    for row in shares:
        together[row.query] += row.logit
    torch.testing.assert_close(together, difference, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(shares.logit, difference, rtol=1e-10, atol=1e-10)
    assert shares.scale.shape == (2, LEN)
    last = ch.reading.logits_of(model, IDS, 3, against=7)
    torch.testing.assert_close(last.heads["logit"], want[:, -1], rtol=close, atol=close)
    assert {row.query for row in last} == {LEN - 1}
    third = ch.reading.logits_of(model, IDS, 3, 7, query=2)
    torch.testing.assert_close(third.heads["logit"], want[:, 2], rtol=close, atol=close)


@torch.no_grad()
def test_a_target_for_each_sample_and_a_bias_of_the_unembedding() -> None:
    model = made(Ours)
    shares = ch.reading.logits_of(model, IDS, torch.tensor([3, 9]))
    output = model(IDS)
    want = float(output[0, -1, 3] + output[1, -1, 9]) / 2
    assert float(shares["logit"].sum()) == pytest.approx(want, abs=1e-10)
    one = [
        float(ch.reading.logits_of(model, IDS[i : i + 1], t)[0].logit) for i, t in ((0, 3), (1, 9))
    ]
    assert shares[0].logit == pytest.approx(sum(one) / 2, abs=1e-10)


@torch.no_grad()
def test_the_rows_are_a_table() -> None:
    shares = ch.reading.logits_of(made(Ours), {"ids": IDS}, 3)
    top = shares.heads.top(2)
    assert abs(top[0].logit) == float(shares.heads["logit"].abs().max())
    assert top.scale is shares.scale
    assert shares.caption == f"logit: {float(shares.logit):.4f}"
    assert repr(shares[:1]).splitlines()[0].split() == ["layer", "head", "query", "logit"]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_other_dtypes_add_up_to_their_rounding(dtype: torch.dtype, name: str) -> None:
    model = made(MODELS[name][0]).to(dtype)
    shares, output = ch.reading.logits_of(model, IDS, 3), logits(model(IDS)).double()
    close = 1e-4 if dtype == torch.float32 else 0.05
    assert float(shares["logit"].sum()) == pytest.approx(float(output[:, -1, 3].mean()), abs=close)


def gemma2(cap: float | None) -> Callable[[], nn.Module]:
    return lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**SIZES, final_logit_softcapping=cap))


class Between(Ours):
    """Something stands between the blocks."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks[0](self.embedding(ids)) * 2
        return self.head(self.norm(self.blocks[1](x)))


class Behind(Ours):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids)) * 2))


class Apart(nn.Module):
    """An attention without a block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ch.MultiHeadAttention(16, num_heads=HEADS)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.attention(x)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).tanh()


def with_tanh() -> nn.Module:
    model = Ours()
    setattr(model, "norm", Scaled())  # noqa: B010
    return model


@pytest.mark.parametrize("reader", READERS, ids=[each.name for each in READERS])
@torch.no_grad()
def test_of_a_model_that_reads_pictures_it_is_the_language_part(reader: Reader) -> None:
    model: Any = made(reader.make)
    given: dict[str, Any] = {
        name: each.double() if each.is_floating_point() else each
        for name, each in reader.call().items()
    }
    output = model(**given, output_hidden_states=True)
    want = output.logits[0, :, 3] - output.logits[0, :, 7]
    shares = ch.reading.logits_of(model, given, target=3, against=7, query=None)
    together = torch.zeros_like(want).index_add_(0, shares["query"], shares["logit"])
    torch.testing.assert_close(together, want, rtol=1e-10, atol=1e-10)
    layers = list(dict.fromkeys(shares.heads["layer"]))
    assert len(layers) == 2
    assert not any("vis" in each for each in layers)
    found = ch.reading.lens(model, given, query=None, top=2)
    assert list(dict.fromkeys(found["layer"])) == layers
    assert found.logits[-1].equal(output.logits)
    part = layers[0].partition(".layers.")[0]
    norm = model.get_submodule(f"{part}.norm")
    first: Any = model.get_output_embeddings()(norm(output.hidden_states[1]))
    torch.testing.assert_close(found.logits[0], first, rtol=1e-10, atol=1e-10)
    row = ch.reading.writes(model, given, top=1)[0]
    share = ch.reading.logits_of(model, given, row.token)[row.head]
    assert (row.layer, row.logit) == (share.layer, pytest.approx(share.logit))


class Stem(nn.Module):
    """A block outside the part that has the last norm, which reads what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = Block(), Ours()

    def forward(self, x: Tensor) -> Tensor:
        return self.body.head(self.body.norm(self.body.blocks(self.stem(x))))


@torch.no_grad()
def test_a_block_elsewhere_that_adds_to_the_stream_has_its_heads() -> None:
    model, x = made(Stem), torch.randn(1, LEN, 16).double()
    shares = ch.reading.logits_of(model, x, target=3)
    layers = ["stem.attention", "body.blocks.0.attention", "body.blocks.1.attention"]
    assert list(dict.fromkeys(shares.heads["layer"])) == layers


test_a_model_whose_logit_is_no_such_sum_is_refused = refusals(
    lambda make: ch.reading.logits_of(made(make), IDS, 3),
    (
        gemma2(30.0),
        "logits.unembedding",
        "Gemma2ForCausalLM // no output of the model is that of the Linear that reads its last norm, 'model.norm'; "
        "its numbers are others",
    ),
    (
        Between,
        "logits.stream",
        "'blocks.1.attention' // its block 'blocks.1' reads something else than 'blocks.0' gives",
    ),
    (
        Behind,
        "logits.stream",
        "the model // the last norm reads something else than 'blocks.1' gives",
    ),
    (with_tanh, "logits.unembedding", "Scaled"),
)


def test_a_block_that_gives_no_such_sum_is_refused() -> None:
    text = (
        r"'model.layers.0.self_attn' adds to a logit is not known: its block gives something else than what it reads, "
        r"its heads' results and the output of at most one of its modules \(input_layernorm, self_attn, .*\)\."
    )
    model = tf.GraniteForCausalLM(tf.GraniteConfig(**SIZES, residual_multiplier=0.5))
    with pytest.raises(UnsupportedError, match=text):
        ch.reading.logits_of(made(lambda: model), IDS, 3)


@torch.no_grad()
def test_what_has_no_block_or_no_unembedding_is_refused() -> None:
    assert_refused(
        lambda: ch.reading.logits_of(made(Apart), torch.randn(1, 5, 16).double(), 3),
        "logits.stream",
        "'attention' // its block 'the model' gives another shape than it reads, (1, 1, 50)",
    )
    text = "is no sum of what its heads add: no linear layer read the output of a norm."
    layer = ch.MultiHeadAttention(16, num_heads=HEADS)
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        ch.reading.logits_of(layer, torch.randn(1, 5, 16), 3)


test_what_does_not_fit_is_refused = refusals(
    lambda given: ch.reading.logits_of(made(Ours), IDS, **given),
    ({"target": "a"}, "logits.target", "target // 'a'"),
    ({"target": None}, "logits.target", "target // None"),
    ({"target": True}, "logits.target", "target // True"),
    ({"target": torch.ones(2)}, "logits.target", "target // tensor([1., 1.])"),
    ({"target": 3, "against": 0.5}, "logits.target", "against // 0.5"),
    ({"target": 3, "against": 50}, "logits.target", "against // 49 // 2 // 50"),
    ({"target": -1}, "logits.target", "target // 49 // 2 // -1"),
    ({"target": torch.tensor([1, 2, 3])}, "logits.target", "target // 49 // 2 // (1, 2, 3)"),
    ({"target": 3, "query": 1.5}, "logits.query", "1.5"),
    ({"target": 3, "query": 6}, "logits.query", "6 // 6"),
)


def test_a_model_must_be_one() -> None:
    assert_refused(lambda: ch.reading.logits_of(wrong(3), IDS, 3), "logits.model", "3")


def test_nothing_stays_on_the_model() -> None:
    model = made(Ours)
    assert_refused(lambda: ch.reading.logits_of(model, IDS, 3, query=9), "logits.query", "6 // 9")
    assert not any(each._forward_hooks for each in model.modules())
