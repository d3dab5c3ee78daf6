"""What watching takes, before it is watched."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import WatchError
from clearhead.watching.estimate import AttentionSizes, Estimate, estimated, sizes_of


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
    chosen = sizes_of(WithConfig(**CONFIG), lambda path: path == "layers.1.inner")
    assert [size.path for size in chosen] == ["layers.1.inner"]


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 3),
        WithConfig(),
        WithConfig(num_hidden_layers=2, num_attention_heads=4),
        WithConfig(**CONFIG, is_encoder_decoder=True),
    ],
    ids=["none", "empty", "no width", "two stacks"],
)
def test_sizes_that_cannot_be_read(model: nn.Module) -> None:
    text = (
        f"[watch.sizes] the sizes of {type(model).__name__} cannot be read: none of the modules in "
        "question is an nn.MultiheadAttention or a layer of clearhead, and there is no config with "
        "num_hidden_layers, num_attention_heads and hidden_size for them."
    )
    with pytest.raises(WatchError, match=f"^{re.escape(text)}$"):
        sizes_of(model)


def test_paths_that_cannot_be_told() -> None:
    three = WithConfig(**CONFIG | {"num_hidden_layers": 3})
    assert len(sizes_of(three)) == 3
    for model in (three, WithConfig(**CONFIG)):
        with pytest.raises(WatchError, match=r"^\[watch.sizes\]"):
            sizes_of(model, lambda path: path.startswith("encoder"))


@pytest.mark.parametrize("keep", ["matrix", "summary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("heads", [None, (0,), (0, 1, 4)])
@pytest.mark.parametrize("lengths", [(3, 5, 7), (1, 71, 71), (1, 1, 1)])
def test_an_estimate_is_what_is_kept(
    keep: Any, dtype: torch.dtype, heads: tuple[int, ...] | None, lengths: tuple[int, int, int]
) -> None:
    batch, query_len, kv_len = lengths
    layer = ch.MultiHeadAttention(8, num_heads=6, num_kv_heads=2, head_dim=5).to(dtype)
    x, context = torch.randn(batch, query_len, 8).to(dtype), torch.randn(batch, kv_len, 8).to(dtype)
    watching: Any = ch.watch(layer, heads=heads, keep=keep)
    with watching as seen:
        layer(x, context)
    if keep == "matrix":
        problem = seen[0].problem
        tensors = [problem.query, problem.key]
    else:
        found = seen[0]
        names = ("logsumexp", "entropy", "max", "max_score", "distance", "first", "previous")
        measured = ("first", "uniform", "previous", "local")[: 2 if found.cross else 4]
        both = found.roles, found.roles.counts
        roles = (getattr(each, name) for each in both for name in measured)
        tensors = [getattr(found, name) for name in (*names, "received")] + [
            *found.top_k,
            found.pooled,
            *roles,
        ]
    estimate = watching.estimate(batch, query_len, kv_len)
    assert estimate.nbytes == sum(tensor.nbytes for tensor in tensors)
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
