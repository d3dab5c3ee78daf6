"""The cost of watching a real model: against the way that models themselves offer, which leaves the
fused kernel and keeps every matrix, and against TransformerLens, where that is installed
(`pip install transformer-lens`), which does the same by hooks of its own."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch

import clearhead as ch
from benchmarks.harness import Sides, case


def _compare(ours: Any, theirs: Any) -> None:
    """The entropies of every layer, head and query, and what each key received."""
    for name, weights in zip(ours, theirs, strict=True):
        entropy = torch.special.entr(weights.double()).sum(dim=-1)
        torch.testing.assert_close(ours[name].entropy.double(), entropy, rtol=1e-4, atol=1e-4)
        # Heads that share a key are one sum.
        shared = ours[name].received.shape[1]
        received = weights.double().sum(dim=-2).unflatten(1, (shared, -1)).sum(dim=2)
        torch.testing.assert_close(ours[name].received.double(), received, rtol=1e-4, atol=1e-4)


@case(
    "watch-minilm-512",
    reach=("<= 1.0x", "<= 0.3x memory"),
    work="the packaged MiniLM over 16 texts of 512 tokens: watch(keep='summary') against eager with output_attentions",
    compare=_compare,
)
def minilm() -> Sides:
    from transformers import AutoModel

    where = str(ch.samples.SAMPLES["minilm"].weights())
    fused = AutoModel.from_pretrained(where, attn_implementation="sdpa").eval()
    eager = AutoModel.from_pretrained(where, attn_implementation="eager").eval()
    return _sides(
        fused,
        eager,
        input_ids=torch.randint(1000, 30_000, (16, 512)),
        attention_mask=torch.ones(16, 512, dtype=torch.int64),
    )


def _smollm2(tokens: int) -> Callable[[], Sides]:
    def build() -> Sides:
        from transformers import AutoModelForCausalLM

        from clearhead.samples import models

        where = str(models.folder_of("smollm2"))
        ids = torch.randint(1000, 40_000, (1, tokens))

        def load(implementation: str) -> Any:
            model = AutoModelForCausalLM.from_pretrained(where, attn_implementation=implementation)
            with torch.no_grad():
                model.eval()(ids[:, :2])  # the weights come from the file when they are first used
            return model

        sides = _sides(load("sdpa"), load("eager"), input_ids=ids, use_cache=False)
        if importlib.util.find_spec("transformer_lens"):
            library: Any = importlib.import_module("transformer_lens")
            bridge = library.TransformerBridge.boot_transformers(
                where, hf_model=load("eager"), device="cpu"
            )

            def patterns() -> list[torch.Tensor]:
                names = [f"blocks.{each}.attn.hook_pattern" for each in range(bridge.cfg.n_layers)]
                with torch.no_grad():
                    _, cache = bridge.run_with_cache(ids, names_filter=names)
                return [cache[name] for name in names]

            sides["TransformerLens"] = patterns
        return sides

    return build


for _tokens in (256, 1024, 2048):
    case(
        f"watch-smollm2-{_tokens}",
        work=f"SmolLM2, 30 layers of 9 heads, over {_tokens} tokens: watch(keep='summary') against eager "
        "with output_attentions",
        compare=_compare,
        rounds=3,
    )(_smollm2(_tokens))


def _sides(fused: Any, eager: Any, **inputs: Any) -> Sides:
    def watched() -> Any:
        with ch.watch(fused, keep="summary") as seen, torch.no_grad():
            fused(**inputs)
        return seen

    def output_attentions() -> Any:
        with torch.no_grad():
            return eager(**inputs, output_attentions=True).attentions

    return {"watch(keep='summary')": watched, "output_attentions=True": output_attentions}


def _same_averages(ours: Any, theirs: Any) -> None:
    """The entropies of every head; a model alone has none."""
    if theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def _against_the_plain_run(tokens: int) -> Sides:
    """A summary of each of 12 layers of 12 heads, against the run alone and eager with its weights."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000, hidden_size=384, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=12,
    )  # fmt: skip
    fused = LlamaModel._from_config(config, attn_implementation="sdpa").eval()
    eager = LlamaModel._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(fused.state_dict())
    inputs = {"input_ids": torch.randint(1, 1000, (1, tokens)), "use_cache": False}

    def alone() -> None:
        with torch.no_grad():
            fused(**inputs)

    ours, theirs = _sides(fused, eager, **inputs).items()
    return dict([ours, ("unwatched", alone), theirs])


def _compare_if_watched(ours: Any, theirs: Any) -> None:
    if theirs is not None:
        _compare(ours, theirs)


for _tokens, _reach in ((128, 1.3), (512, 1.5)):
    case(
        f"watch-summary-{_tokens}",
        reach=f"<= {_reach}x",
        work=f"a Llama of 12 layers of 12 heads, width 384, over {_tokens} tokens: watch(keep='summary') against the "
        "model alone and against eager with output_attentions",
        compare=_compare_if_watched,
        memory=False,
        rounds=3,
        clock=time.process_time,
        limit="Of the plain run of 128 tokens, to watch and keep the inputs takes 0.2 and the eight largest weights of "
        "each query (topk) 0.25; the sums, entropies, distances and roles take the rest.",
    )(lambda tokens=_tokens: _against_the_plain_run(tokens))


@case(
    "watch-total-short-texts",
    work="64 texts of 8 to 40 tokens in padded batches of 16, a Llama of 12 layers of 9 heads: watch(keep='total') "
    "against the model alone and against eager with output_attentions",
    compare=_same_averages,
    rounds=3,
)
def total_of_short_texts() -> Sides:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000, hidden_size=576, intermediate_size=1536, num_hidden_layers=12,
        num_attention_heads=9, num_key_value_heads=3,
    )  # fmt: skip
    fused = LlamaModel._from_config(config, attn_implementation="sdpa").eval()
    eager = LlamaModel._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(fused.state_dict())
    lengths = torch.randint(8, 41, (4, 16))
    batches = [torch.arange(int(some.max())) < some[:, None] for some in lengths]
    inputs = [
        {"input_ids": torch.randint(1, 1000, real.shape), "attention_mask": real.long()}
        for real in batches
    ]

    def run(model: Any, **options: Any) -> list[Any]:
        with torch.no_grad():
            return [model(**each, use_cache=False, **options) for each in inputs]

    def watched() -> Any:
        with ch.watch(fused, keep="total") as seen:
            run(fused)
        return seen.table()["entropy"]

    def alone() -> None:
        run(fused)

    def by_hand() -> Any:
        total = torch.zeros(12, 9, dtype=torch.float64)
        for output, real in zip(run(eager, output_attentions=True), batches, strict=True):
            entropy = torch.special.entr(torch.stack(output.attentions)).sum(dim=-1)
            total += entropy.where(real[:, None], 0.0).double().sum(dim=(1, 3))
        return (total / sum(int(each.sum()) for each in batches)).flatten()

    return {"watch(keep='total')": watched, "unwatched": alone, "output_attentions=True": by_hand}


@case(
    "watch-loss-2048",
    work="the entropy of a layer of 8 heads over 2048 tokens as a loss, forward and backward: watch(keep=function) "
    "against eager weights",
    compare=_same_averages,
    rounds=3,
)
def loss_on_entropy() -> Sides:
    layer, x = ch.MultiHeadAttention(256, num_heads=8, mask=ch.causal()), torch.randn(1, 2048, 256)
    visible = torch.ones(2048, 2048, dtype=torch.bool).tril()

    def gradient_of(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, layer.query_projection.weight)[0]

    def watched() -> torch.Tensor:
        entropy = torch.enable_grad()(lambda path, weights: weights.entropy().sum())
        with ch.watch(layer, keep=entropy) as seen:
            layer(x)
        return gradient_of(seen[0])

    def eager() -> torch.Tensor:
        layer(x)
        projections = layer.query_projection, layer.key_projection
        query, key = (each(x).view(1, 2048, 8, 32).transpose(1, 2) for each in projections)
        scores = (query @ key.mT * 32**-0.5).masked_fill(~visible, -torch.inf)
        weights = scores.softmax(dim=-1)
        entropy = -(weights * weights.clamp_min(1e-30).log()).sum(dim=-1)
        return gradient_of(entropy.sum())

    return {"watch(keep=function)": watched, "eager": eager}
