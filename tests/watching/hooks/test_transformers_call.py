"""Calls of transformers, read in the conventions of each implementation."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import modeling_flash_attention_utils as flash_utils
from transformers.integrations import flex_attention as flex_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.t5 import modeling_t5

import clearhead as ch
from clearhead.attention.problem import Problem
from clearhead.watching.hooks.described import Described
from clearhead.watching.hooks.transformers_call import HARMLESS, read_call
from tests.refusals import refusals, run
from tests.tolerances import assert_no_worse
from tests.watching.hooks.recording import weights_of


def tensors(query_len: int, kv_len: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Heads are wider than there are keys: flash attention takes no wider values."""
    return torch.randn(batch, 4, query_len, 13), torch.randn(batch, 2, kv_len, 13)


class Layer(nn.Module):
    """The attributes that a function of transformers asks of the module that attends."""

    is_causal = True
    num_key_value_groups = 2
    config = SimpleNamespace(
        _attn_implementation="flash_attention_2", _is_quantized=False, dtype=torch.float32
    )

    def __init__(self, sinks: Tensor | None = None) -> None:
        super().__init__()
        self.sinks = sinks
        self.eval()


def read(
    implementation: str | None, query: Tensor, key: Tensor, *given: Any, **more: Any
) -> Problem:
    return read_call(implementation, Layer(), query, key, key, *given, **more)


def assert_read_as_computed(
    implementation: str,
    function: Callable[..., tuple[Tensor, Any]],
    query: Tensor,
    key: Tensor,
    mask: Any = None,
    *,
    counts: Tensor | None = None,
    **options: Any,
) -> Problem:
    """Read a call, whose weights must be those that the function works out: its output where the
    values are the unit vectors.

    Args:
        counts: which queries are no padding, (batch, query_len); None for all.
    """

    def computed(dtype: torch.dtype) -> Tensor:
        def cast(given: Any) -> Any:
            floats = isinstance(given, Tensor) and given.is_floating_point()
            return given.to(dtype) if floats else given

        unit = torch.eye(key.shape[2], dtype=dtype).expand(*key.shape[:3], -1)
        layer = Layer(cast(options.get("s_aux")))
        wide = {name: cast(each) for name, each in options.items()}
        output, _ = function(layer, cast(query), cast(key), unit, cast(mask), **wide)
        return output

    problem = read_call(implementation, Layer(), query, key, key, mask, **options)
    found = weights_of(problem).transpose(1, 2)
    rows = torch.ones(found.shape[:2], dtype=torch.bool) if counts is None else counts.bool()
    single, double = computed(torch.float32)[rows], computed(torch.float64)[rows]
    # A function that is read wrongly differs by a tenth and more; it is not to measure that.
    assert float((single - double).abs().max()) < 1e-5
    assert_no_worse(found[rows], double, single)
    return problem


def shown(problem: Problem) -> Tensor:
    """The mask of a problem, (batch, 1, query_len, kv_len)."""
    visible = problem.visible()
    shape = (problem.batch, 1, problem.query_len, problem.kv_len)
    return torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)


def steps(query_len: int, kv_len: int, offset: int | None = None) -> Tensor:
    """The number of tokens by which a key lies behind its query; the last query sits on the last key."""
    offset = kv_len - query_len if offset is None else offset
    return torch.arange(query_len)[:, None] + offset - torch.arange(kv_len)


def flash_of_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Compute what flash attention is documented to give for one sample, (len, num_heads, head_dim).

    The last query sits on the last key, a window counts tokens on each side, and a query that sees
    nothing gets 0 (Dao, 2023, https://arxiv.org/abs/2307.08691, and the notes on its releases).
    """
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    behind = steps(len(query), len(key))
    left, right = (len(query) + len(key) if side < 0 else side for side in window_size)
    hidden = (behind > left) | (behind < (0 if causal else -right))
    scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sinks = s_aux[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num()[..., : len(key)]
    return torch.einsum("hqk,khd->qhd", weights, value)


def flash_of_batch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Samples of one length, as `flash_attn_func` takes them."""
    options = (softmax_scale, causal, window_size, softcap, s_aux)
    return torch.stack([flash_of_one(*each, *options) for each in zip(q, k, v, strict=True)])


def flash_of_lengths(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """Samples one after the other, as `flash_attn_varlen_func` takes them."""
    options = (softmax_scale, causal, window_size, softcap, s_aux)
    queries = q.split(cu_seqlens_q.diff().tolist())
    keys, values = (each.split(cu_seqlens_k.diff().tolist()) for each in (k, v))
    samples = zip(queries, keys, values, strict=True)
    return torch.cat([flash_of_one(*each, *options) for each in samples])


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of flash attention in plain code: what transformers does around them is its own."""
    process = flash_utils._lazy_define_process_function(flash_of_lengths)
    functions = (flash_of_batch, flash_of_lengths, None)
    around = (flash_utils._pad_input, flash_utils._unpad_input)
    loaded = ((*functions, *around), (process, process))
    monkeypatch.setattr(flash_utils, "lazy_import_flash_attention", lambda *_: loaded)


VALID = {
    "none": [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]],
    "left": [[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]],
}


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("window", [None, 2, 3])
@pytest.mark.parametrize("side", VALID)
def test_flash_attention(side: str, window: int | None) -> None:
    """Its mask says which keys are real, and the last query sits on the last of them. There is room for more
    keys in every other case."""
    valid = torch.tensor(VALID[side])
    room = 4 * ((list(VALID).index(side) + (window or 0)) % 2)
    # A single query is taken for real, and padding between real tokens is refused.
    lengths = (3, 7) if window and side == "right" else (1, 3, 7)
    for query_len in lengths:
        for is_causal in (True, False):
            query, key = tensors(query_len, 7 + room, batch=2)
            counts = None if query_len == 1 else valid[:, 7 - query_len :]
            options = {"sliding_window": window, "is_causal": is_causal, "scaling": 0.7}
            assert_read_as_computed(
                "flash_attention_2",
                flash_attention_forward,
                query,
                key,
                valid,
                counts=counts,
                **options,
            )


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("query_len", [1, 3, 7])
def test_flash_attention_without_a_mask(query_len: int) -> None:
    query, key = tensors(query_len, 7, batch=2)
    options: list[dict[str, Any]] = [
        {},
        {"sliding_window": 2},
        {"sliding_window": 7},
        {"is_causal": False},
        {"is_causal": False, "sliding_window": 2},
        {"softcap": 0.8},
        {"s_aux": torch.linspace(-1, 1, 4)},
        {"position_ids": torch.arange(query_len).expand(2, -1)},
    ]
    for each in options:
        assert_read_as_computed("flash_attention_3", flash_attention_forward, query, key, **each)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_a_window_stays_a_description(side: str) -> None:
    """No matrix is made of the mask where padding moves no real token away from another."""
    query, key = tensors(7, 7, batch=2)
    mask = read("flash_attention_2", query, key, torch.tensor(VALID[side]), sliding_window=3).mask
    assert mask is not None
    words = "causal() & padding(<valid 2 × 7>) & sliding_window(left=2, right=None)"
    assert mask.describe() == words


STARTS = torch.tensor([0, 3, 5, 7])
PLACES = torch.tensor([[0, 1, 2, 0, 1, 0, 1]])
LENGTHS: dict[str, Any] = {
    "cu_seq_lens_q": STARTS,
    "cu_seq_lens_k": STARTS,
    "max_length_q": 3,
    "max_length_k": 3,
}
PACKED: dict[str, tuple[dict[str, Any], bool]] = {
    "lengths": (LENGTHS, True),
    "lengths and positions that go on": (LENGTHS | {"position_ids": torch.arange(7)[None]}, True),
    "positions": ({"position_ids": PLACES}, True),
    "positions from 2 on": ({"position_ids": PLACES + 2}, True),
    "positions that go on": ({"position_ids": torch.arange(3, 10)[None]}, False),
    "lengths, but not the longest": (LENGTHS | {"max_length_k": None}, False),
}


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("how", PACKED)
def test_packed_sequences(how: str) -> None:
    given, apart = PACKED[how]
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    together = (ids[:, None] == ids) | (not apart)
    for window in (None, 2):
        query, key = tensors(7, 7)
        problem = assert_read_as_computed(
            "flash_attention_2", flash_attention_forward, query, key, sliding_window=window, **given
        )
        near = steps(7, 7) < (window or 7)
        assert torch.equal(shown(problem)[0, 0], (steps(7, 7) >= 0) & near & together)
    # A mask says which keys are real, and nothing else is asked then.
    real = torch.ones(1, 7, dtype=torch.int64)
    problem = assert_read_as_computed(
        "flash_attention_2", flash_attention_forward, *tensors(7, 7), real, **given
    )
    assert torch.equal(shown(problem)[0, 0], steps(7, 7) >= 0)


def nearby(batch: Tensor, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
    return (query_index + 2 >= key_index) & (query_index - key_index <= batch)


@pytest.fixture
def flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as PyTorch has it, not compiled."""

    def plain(query: Tensor, key: Tensor, value: Tensor, training: bool, **more: Any) -> Any:
        return flex_attention(query, key, value, **more)

    monkeypatch.setattr(flex_utils, "compile_friendly_flex_attention", plain)
    # Else PyTorch traces each call, before it runs the same operations.
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("flex")
def test_flex_attention() -> None:
    agrees = partial(assert_read_as_computed, "flex_attention", flex_utils.flex_attention_forward)
    query, key = tensors(5, 7, batch=2)
    behind = steps(5, 7, offset=0)
    blocks = create_block_mask(nearby, 2, 1, 5, 7, device="cpu")
    problem = agrees(query, key, blocks, scaling=0.7, softcap=0.8)
    assert torch.equal(shown(problem)[1, 0], (behind >= -2) & (behind <= 1))
    # Without a mask everybody sees everybody, whatever the module says of causality.
    assert agrees(query, key).mask is None
    hidden = torch.zeros(2, 1, 5, 11).masked_fill(F.pad(behind, (0, 4)) < 0, -torch.inf)
    assert torch.equal(shown(agrees(query, key, hidden))[0, 0], behind >= 0)
    # The mask of the first head is read for all; what is added to the scores is of each.
    added = torch.linspace(-2, 2, 2 * 4 * 35).view(2, 4, 5, 7)
    agrees(query, key, added, position_bias=added.flip(1), softcap=0.8)


SDPA: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "the module says": lambda query_len, kv_len: {},
    "causal": lambda query_len, kv_len: {"is_causal": True},
    "not causal": lambda query_len, kv_len: {"is_causal": False},
    "scaled": lambda query_len, kv_len: {"scaling": 0.7},
    "bool": lambda query_len, kv_len: {"mask": steps(query_len, kv_len)[None, None] >= 0},
    "bool per sample": lambda query_len, kv_len: {
        "mask": (steps(query_len, kv_len) % torch.tensor([2, 3]).view(2, 1, 1, 1)) == 0
    },
    "float that hides": lambda query_len, kv_len: {
        "mask": torch.zeros(1, 1, query_len, kv_len).masked_fill(
            steps(query_len, kv_len) < 0, torch.finfo(torch.float32).min
        )
    },
    "float per head": lambda query_len, kv_len: {
        "mask": torch.linspace(-2, 2, 4 * query_len * kv_len).view(1, 4, query_len, kv_len)
    },
    "position bias": lambda query_len, kv_len: {
        "position_bias": torch.linspace(-2, 2, 4 * query_len * kv_len).view(1, 4, query_len, kv_len)
    },
    "position bias and bool": lambda query_len, kv_len: {
        "mask": steps(query_len, kv_len)[None, None] >= 0,
        "position_bias": torch.linspace(-2, 2, 4 * query_len * kv_len).view(
            1, 4, query_len, kv_len
        ),
    },
    "a window, of which it takes no notice": lambda query_len, kv_len: {"sliding_window": 2},
}


@pytest.mark.parametrize("query_len", [1, 3, 7])
@pytest.mark.parametrize("how", SDPA)
def test_the_function_of_pytorch(how: str, query_len: int) -> None:
    query, key = tensors(query_len, 7, batch=2)
    options = SDPA[how](query_len, 7)
    problem = assert_read_as_computed("sdpa", sdpa_attention_forward, query, key, **options)
    if how == "causal":
        # It is counted from the first key on, and a single query is the last token.
        sees = steps(query_len, 7, offset=0) >= 0 if query_len > 1 else torch.ones(1, 7) > 0
        assert torch.equal(shown(problem)[0, 0], sees)


def test_learned_queries_are_one_sample_for_all() -> None:
    _, key = tensors(3, 7, batch=2)
    query, _ = tensors(3, 7)
    problem = assert_read_as_computed("sdpa", sdpa_attention_forward, query, key, is_causal=False)
    assert (problem.batch, problem.mask) == (2, None)


@pytest.mark.parametrize("implementation", ["eager", None])
def test_eager_adds_its_mask(implementation: Any) -> None:
    """To what is scaled and capped; beside the mask nothing hides, and causality is no matter."""
    query, key = tensors(3, 7)
    behind = steps(3, 7)
    hidden = torch.zeros(1, 1, 3, 7).masked_fill(behind < 0, torch.finfo(torch.float32).min)
    added = hidden + torch.linspace(-2, 2, 21).view(3, 7) * (behind >= 0)
    eager = modeling_gemma2.eager_attention_forward
    for mask in (None, hidden, added):
        for softcap in (None, 0.8):
            problem = assert_read_as_computed(
                implementation,
                eager,
                query,
                key,
                mask,
                scaling=0.7,
                softcap=softcap,
                sliding_window=2,
            )
            assert (problem.bias is None) == (mask is not added)
            assert torch.equal(shown(problem)[0, 0], behind >= (-7 if mask is None else 0))
    # Whole numbers are added as well: 1 and 0 hide nothing.
    whole = (behind >= 0).long()[None, None]
    problem = assert_read_as_computed(implementation, eager, query, key, whole, scaling=0.7)
    assert problem.mask is None


def test_eager_with_sinks() -> None:
    query, key = tensors(3, 7)
    hidden = torch.zeros(1, 1, 3, 7).masked_fill(steps(3, 7) < 0, -torch.inf)
    eager = modeling_gpt_oss.eager_attention_forward
    sinks = torch.linspace(-1, 1, 4)
    assert_read_as_computed("eager", eager, query, key, hidden, scaling=0.7, s_aux=sinks)

    def of_queries(
        _: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **more: Any
    ) -> Any:
        scores = query @ key.repeat_interleave(2, dim=1).mT * more["scaling"] + mask
        weights = torch.cat([scores + more.get("position_bias", 0), more["sinks"]], dim=-1)
        return (weights.softmax(dim=-1)[..., :-1] @ value.repeat_interleave(2, dim=1)).transpose(
            1, 2
        ), None

    more: dict[str, Any] = {"sinks": torch.linspace(-1, 1, 12).view(1, 4, 3, 1), "scaling": 0.7}
    for bias in ({}, {"position_bias": torch.linspace(-2, 2, 84).view(1, 4, 3, 7)}):
        assert_read_as_computed("eager", of_queries, query, key, hidden, **more, **bias)


def test_eager_with_a_position_bias() -> None:
    query, key = tensors(3, 7)
    key = key.repeat_interleave(2, dim=1)  # T5 has as many key heads
    hidden = torch.zeros(1, 1, 3, 7).masked_fill(steps(3, 7) < 0, torch.finfo(torch.float32).min)
    bias = torch.linspace(-2, 2, 84).view(1, 4, 3, 7)
    eager = modeling_t5.eager_attention_forward
    for mask in (None, hidden):
        assert_read_as_computed("eager", eager, query, key, mask, scaling=0.7, position_bias=bias)


def test_a_mask_that_is_longer_than_the_keys() -> None:
    """As that of a cache with room: the keys are the first of it."""
    query, key = tensors(3, 7)
    behind = steps(3, 7)
    added = torch.zeros(1, 1, 3, 11).masked_fill(F.pad(behind, (0, 4)) < 0, -torch.inf)
    assert torch.equal(shown(read("eager", query, key, added))[0, 0], behind >= 0)


def test_our_own_implementation() -> None:
    """As PyTorch's function, with what that has not."""
    query, key = tensors(3, 7, batch=2)
    behind = steps(3, 7)
    described = Described(ch.sliding_window(left=1, right=0), (2, 1, 3, 7), query.device)
    problem = read("clearhead", query, key, described)
    assert problem.mask is described.description
    sinks = torch.linspace(-1, 1, 4)
    problem = read("clearhead", query, key, behind[None, None] >= 0, softcap=0.8, s_aux=sinks)
    assert torch.equal(shown(problem)[0, 0], behind >= 0)
    assert (problem.softcap, problem.sinks) == (0.8, sinks)
    # Without a mask it counts from the first key on, window included.
    near = shown(read("clearhead", query, key, sliding_window=2))
    first = steps(3, 7, offset=0)
    assert torch.equal(near[0, 0], (first >= 0) & (first < 2))
    last = shown(read("clearhead", *tensors(1, 7), sliding_window=2))
    assert torch.equal(last[0, 0], steps(1, 7) < 2)
    apart = shown(read("clearhead", *tensors(7, 7), **LENGTHS))
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    assert torch.equal(apart[0, 0], (steps(7, 7) >= 0) & (ids[:, None] == ids))


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2", "eager", "clearhead"])
def test_two_drop_what_they_are_told_to_and_two_while_the_module_trains(
    implementation: str,
) -> None:
    query, key = tensors(3, 3)
    always = implementation in ("sdpa", "flash_attention_2")
    assert read(implementation, query, key, dropout=0.3).dropout == (0.3 if always else None)
    training = Layer().train()
    assert read_call(implementation, training, query, key, key, dropout=0.3).dropout == 0.3


def test_softcap_and_sinks_are_not_those_of_pytorch() -> None:
    problem = read("sdpa", *tensors(3, 3), softcap=0.8, s_aux=torch.ones(4))
    assert (problem.softcap, problem.sinks) == (None, None)


test_what_is_not_known_is_refused_by_name = refusals(
    run,
    (lambda: read("my_attention", *tensors(3, 3)), "transformers.implementation", "my_attention"),
    (
        lambda: read("sdpa", *tensors(3, 3), alibi=torch.zeros(4)),
        "transformers.argument",
        "alibi",
        "<float32 (4,)>",
        "Layer",
        "scaling, dropout, is_causal, sliding_window, softcap, s_aux, sinks, position_bias, "
        "cu_seq_lens_q, cu_seq_lens_k",
        ", ".join(HARMLESS),
    ),
    (
        lambda: read(
            "flash_attention_2",
            *tensors(3, 3),
            cu_seq_lens_q=torch.tensor([0, 3]),
            cu_seq_lens_k=torch.tensor([0, 2]),
            max_length_q=3,
            max_length_k=2,
        ),
        "transformers.argument",
        "<int64 (2,)> // <int64 (2,)> // 3 // 3",
    ),
    (
        lambda: read(
            "flash_attention_2", *tensors(4, 4), torch.tensor([[1, 0, 1, 1]]), sliding_window=2
        ),
        "transformers.argument",
    ),
)
