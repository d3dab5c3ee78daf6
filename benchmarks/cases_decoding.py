"""The cost of a token that is decoded with a cache: against the arithmetic written by hand, and against
the cache of transformers."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from benchmarks.harness import Sides, case

TOKENS, WIDTH, HEADS, STEPS = 4096, 768, 12, 32

# What a missed row comes up against.
LIMIT = (
    "A step reads 25 MB of keys and values in each layer. There attention of one token takes 1.2 of the fused call, "
    "0.5 ms more (attend-token-4096), where a step of one layer by hand takes 4.0 to 4.8 ms."
)


def _projections() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))


def _ours(projections: nn.ModuleList) -> ch.MultiHeadAttention:
    layer = ch.MultiHeadAttention(
        WIDTH, num_heads=HEADS, output_bias=False, mask=ch.causal()
    ).eval()
    names = ("query", "key", "value", "output")
    for name, projection in zip(names, projections, strict=True):
        layer.get_submodule(f"{name}_projection").load_state_dict(projection.state_dict())
    return layer


class _ByHand:
    """The same steps on a tensor that was set aside."""

    def __init__(self, projections: nn.ModuleList, key: Tensor, value: Tensor) -> None:
        self.query, self.key, self.value, self.output = projections
        shape = (1, HEADS, TOKENS + STEPS, WIDTH // HEADS)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.keys[:, :, :TOKENS], self.values[:, :, :TOKENS] = key, value
        self.seen = TOKENS

    def step(self, x: Tensor) -> Tensor:
        query, key, value = (
            projection(x).view(1, 1, HEADS, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        self.keys[:, :, self.seen : self.seen + 1] = key
        self.values[:, :, self.seen : self.seen + 1] = value
        self.seen += 1
        context = F.scaled_dot_product_attention(
            query, self.keys[:, :, : self.seen], self.values[:, :, : self.seen]
        )
        return self.output(context.transpose(1, 2).reshape(1, 1, WIDTH))


class _OfTransformers:
    """The same steps with the cache that models of transformers use by default."""

    def __init__(self, projections: nn.ModuleList, key: Tensor, value: Tensor) -> None:
        from transformers import DynamicCache

        self.query, self.key, self.value, self.output = projections
        self.cache: Any = DynamicCache()
        self.cache.update(key, value, 0)

    def step(self, x: Tensor) -> Tensor:
        query, key, value = (
            projection(x).view(1, 1, HEADS, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        keys, values = self.cache.update(key, value, 0)
        context = F.scaled_dot_product_attention(query, keys, values)
        return self.output(context.transpose(1, 2).reshape(1, 1, WIDTH))


def _sides(theirs: type[_ByHand | _OfTransformers], name: str, cache: ch.layers.Cache) -> Sides:
    projections = _projections().requires_grad_(False)
    layer = _ours(projections)
    key, value = torch.randn(2, 1, HEADS, TOKENS, WIDTH // HEADS).unbind()
    tokens = torch.randn(STEPS, 1, 1, WIDTH)
    cache.append(key, value)
    other = theirs(projections, key, value)

    def ours() -> Tensor:
        with torch.inference_mode():
            cache.truncate(TOKENS)
            return torch.cat([layer(token, cache=cache) for token in tokens])

    def by_them() -> Tensor:
        with torch.inference_mode():
            if isinstance(other, _ByHand):
                other.seen = TOKENS
            else:
                # How many tokens to take away, as a number below 0.
                other.cache.crop(TOKENS - other.cache.get_seq_length())
            return torch.cat([other.step(token) for token in tokens])

    return {cache.describe(): ours, name: by_them}


@case(
    "decode-by-hand-4096",
    reach="<= 0.9x",
    work=f"{STEPS} tokens, one by one, after 4096 cached ones; width 768, 12 heads",
    limit=LIMIT,
)
def by_hand() -> Sides:
    return _sides(_ByHand, "written by hand", ch.layers.StaticCache(TOKENS + STEPS))


@case(
    "decode-transformers-4096",
    reach="<= 0.42x",
    work=f"{STEPS} tokens, one by one, after 4096 cached ones; width 768, 12 heads",
    limit=LIMIT,
)
def transformers_cache() -> Sides:
    return _sides(_OfTransformers, "DynamicCache of transformers", ch.layers.GrowingCache())


def _model_step(cache_name: str) -> Sides:
    """Steps of a small Llama after 4 096 cached tokens: converted, and as it is with PyTorch's attention."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        max_position_embeddings=2 * TOKENS,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = copy.deepcopy(theirs)
    ch.convert(ours)
    prompt, tokens = torch.randint(0, 512, (1, TOKENS)), torch.randint(0, 512, (STEPS, 1, 1))

    def steps(model: Any) -> Callable[[], Tensor]:
        static = cache_name == "StaticCache"
        given = {"config": config, "max_cache_len": TOKENS + STEPS} if static else {}
        cache = getattr(transformers, cache_name)(**given)
        with torch.inference_mode():
            model(prompt, past_key_values=cache, logits_to_keep=1)

        def run() -> Tensor:
            with torch.inference_mode():
                if static:
                    for layer in cache.layers:
                        layer.cumulative_length.fill_(TOKENS)
                else:
                    # How many tokens to take away, as a number below 0.
                    cache.crop(TOKENS - cache.get_seq_length())
                return torch.cat([model(token, past_key_values=cache).logits for token in tokens])

        return run

    return {"converted": steps(ours), "sdpa": steps(theirs)}


for _cache in ("DynamicCache", "StaticCache"):
    case(
        f"decode-converted-{_cache.removesuffix('Cache').lower()}",
        reach="<= 1.0x",
        work=f"{STEPS} steps of a Llama of 4 layers, width {WIDTH}, after {TOKENS} tokens in a {_cache}",
        limit=LIMIT,
    )(lambda name=_cache: _model_step(name))
