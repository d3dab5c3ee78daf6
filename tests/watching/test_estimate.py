"""The memory that a watch takes, estimated before it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import clearhead as ch
from clearhead.errors import WatchError
from clearhead.watching.estimate import AttentionSizes, Estimate, estimated, sizes_of
from tests.refusals import refusals


class WithConfig(nn.Module):
    """Two layers of attention, of a kind that is known by its config only."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.layers = nn.ModuleList(OuterAttention() for _ in range(2))


class SelfAttention(nn.Linear):
    pass


class OuterAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = SelfAttention(3, 3).half()


CONFIG: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 20}


def test_layers_of_clearhead() -> None:
    layer = ch.MultiHeadAttention(12, num_heads=6, num_kv_heads=2, head_dim=5).double()
    assert sizes_of(nn.Sequential(nn.Linear(3, 3), layer)) == [
        AttentionSizes("1", 6, 2, 5, 0, torch.float64)
    ]
    layer.add_module("query_projection", nn.Sequential(layer.query_projection))
    assert sizes_of(layer) == [AttentionSizes("", 6, 2, 5, 0, torch.float64)]


def test_layers_of_pytorch() -> None:
    layer = nn.MultiheadAttention(12, 3, add_bias_kv=True, add_zero_attn=True)
    assert sizes_of(layer) == [AttentionSizes("", 3, 3, 4, 2, torch.float32)]
    decoder = nn.TransformerDecoderLayer(12, 3)
    assert [size.path for size in sizes_of(decoder)] == ["self_attn", "multihead_attn"]


def test_a_config() -> None:
    assert sizes_of(WithConfig(**CONFIG)) == [AttentionSizes(None, 4, 4, 5, 0, torch.float16)] * 2
    more = CONFIG | {"num_key_value_heads": 2, "head_dim": 7}
    assert sizes_of(WithConfig(**more)) == [AttentionSizes(None, 4, 2, 7, 0, torch.float16)] * 2


def test_paths_beside_a_config() -> None:
    chosen = sizes_of(
        WithConfig(**CONFIG),
        lambda path, place, count: (path, place, count) == ("layers.1.inner", 1, 2),
    )
    assert [size.path for size in chosen] == ["layers.1.inner"]


test_sizes_that_cannot_be_read = refusals(
    sizes_of,
    (nn.Linear(3, 3), "watch.sizes", "Linear"),
    (WithConfig(), "watch.sizes", "WithConfig"),
    (WithConfig(num_hidden_layers=2, num_attention_heads=4), "watch.sizes", "WithConfig"),
    (WithConfig(is_encoder_decoder=True), "watch.sizes", "WithConfig"),
)


def test_paths_that_cannot_be_told() -> None:
    three = WithConfig(**CONFIG | {"num_hidden_layers": 3})
    assert len(sizes_of(three)) == 3
    assert ch.watch(three).estimate(1, 5).layers == 3
    for model in (three, WithConfig(**CONFIG)):
        with pytest.raises(WatchError, match=r"^\[watch.sizes\]"):
            sizes_of(model, lambda path, place, count: path.startswith("encoder"))


DTYPES = (torch.float32, torch.float64, torch.bfloat16)
HEADS = (None, (0,), (0, 1, 4))
LENGTHS = ((3, 5, 7), (1, 71, 71), (1, 1, 1))


@pytest.mark.parametrize("keep", ["matrix", "summary"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_an_estimate_is_what_is_kept(
    keep: Any, dtype: torch.dtype, heads: tuple[int, ...] | None
) -> None:
    """Each of the lengths with every dtype, and with every choice of heads."""
    lengths = LENGTHS[(DTYPES.index(dtype) + HEADS.index(heads)) % 3]
    batch, query_len, kv_len = lengths
    layer = ch.MultiHeadAttention(8, num_heads=6, num_kv_heads=2, head_dim=5).to(dtype)
    x, context = torch.randn(batch, query_len, 8).to(dtype), torch.randn(batch, kv_len, 8).to(dtype)
    watching: Any = ch.watch(layer, heads=heads, keep=keep)
    with watching as seen:
        layer(x, context) if query_len != kv_len else layer(x)
    if keep == "matrix":
        problem = seen[0].problem
        tensors = [problem.query, problem.key]
    else:
        found = seen[0]
        names = ("logsumexp", "entropy", "max", "max_score", "distance", "first", "previous")
        measured = ("first", "previous")[: 1 if found.cross else 2]
        both = found.roles, found.roles.counts
        roles = (getattr(each, name) for each in both for name in measured)
        tensors = [getattr(found, name) for name in (*names, "received")] + [
            *found.top_k,
            found.pooled,
            *roles,
        ]
    estimate = watching.estimate(batch, query_len, kv_len)
    assert estimate.nbytes == sum(tensor.nbytes for tensor in tensors)
    if keep == "matrix":
        wider: Any = ch.MultiHeadAttention(8, num_heads=6, head_dim=5, value_head_dim=7).to(dtype)
        watching = ch.watch(wider, heads=heads, values=True)
        with watching as seen:
            wider(x, context) if query_len != kv_len else wider(x)
        whole, value = seen[0].problem, seen[0].value
        assert value is not None
        kept = whole.query.nbytes + whole.key.nbytes + value.nbytes
        assert watching.estimate(batch, query_len, kv_len).nbytes == kept
    count = 6 if heads is None else len(heads)
    wide = max(4, dtype.itemsize)
    assert estimate.matrix_nbytes == batch * count * query_len * kv_len * wide


def test_a_head_that_is_not_there() -> None:
    known = [AttentionSizes("attention", 3, 3, 4, 0, torch.float32)]
    with pytest.raises(WatchError, match=r"^\[watch.heads\] heads=\[3\] .* attention has"):
        estimated(known, (3,), "matrix", (1, 5, 5))


def test_in_words() -> None:
    assert str(Estimate("summary", 12, 144, 1, 512, 512, 4_700_000, 151_000_000)) == (
        "12 layers × 12 heads, 512 tokens: 4.7 MB with keep='summary' "
        "(the matrices would take 151.0 MB)"
    )
    assert str(Estimate("matrix", 2, 3, 2, 1, 7, 40, 168)) == (
        "2 layers, 3 heads in all, a batch of 2, 1 query × 7 keys: 40 bytes with keep='matrix' "
        "(the matrices would take 168 bytes)"
    )


SMALL: Any = {
    "vocab_size": 99,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_attention_heads": 4,
}
EXPERTS: Any = {"num_experts_per_tok": 1, "moe_intermediate_size": 8}


def hybrid() -> Any:
    config = transformers.Qwen3NextConfig(
        **SMALL, **EXPERTS, num_hidden_layers=4, num_key_value_heads=2, head_dim=8, num_experts=2,
        shared_expert_intermediate_size=16, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    return transformers.Qwen3NextModel(config)


def latent() -> Any:
    config = transformers.DeepseekV3Config(
        **SMALL, **EXPERTS, num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8,
        v_head_dim=6, qk_rope_head_dim=4, qk_nope_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1,
        first_k_dense_replace=1, n_shared_experts=1,
    )  # fmt: skip
    return transformers.DeepseekV3Model(config)


def bart() -> Any:
    config = transformers.BartConfig(
        vocab_size=99, d_model=24, encoder_layers=2, decoder_layers=1, encoder_ffn_dim=8,
        decoder_ffn_dim=8, encoder_attention_heads=4, decoder_attention_heads=3,
    )  # fmt: skip
    return transformers.BartModel(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=99, d_model=24, d_kv=5, d_ff=8, num_layers=1, num_decoder_layers=2, num_heads=3
    )
    return transformers.T5Model(config)


MODELS: list[tuple[Callable[[], Any], str | None]] = [
    (hybrid, None), (latent, None), (latent, "*.1.*"), (bart, None), (bart, "*layers.1.*"),
    (bart, "decoder.*"), (t5, None), (t5, "decoder.*"),
]  # fmt: skip


def test_each_side_of_a_model_has_its_heads() -> None:
    found = {size.path: size.num_heads for size in sizes_of(bart())}
    assert all(
        heads == (4 if str(path).startswith("encoder") else 3) for path, heads in found.items()
    )
    assert len(found) == 4


@pytest.mark.parametrize(("make", "chosen"), MODELS)
@pytest.mark.filterwarnings("ignore")
def test_an_estimate_of_a_model_is_what_is_kept(
    make: Callable[[], Any], chosen: str | None
) -> None:
    """Of layers that do not attend, of widths of a latent, and of two texts."""
    model = make().eval()
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    watching = ch.watch(model, layers=chosen)
    ids = torch.randint(3, 99, (2, 11))
    with torch.no_grad(), watching as seen:
        model(ids, decoder_input_ids=ids[:, :7]) if two else model(ids)
    problems = [matrix.problem for matrix in seen.values()]
    kept = sum(each.query.nbytes + each.key.nbytes for each in problems)
    estimate = watching.estimate(2, 7 if two else 11, 11)
    assert (estimate.nbytes, estimate.layers) == (kept, len(seen))
