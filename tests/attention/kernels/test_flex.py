"""Calls of FlexAttention: their blocks, and by it the definition, forward and backward.

It is compiled for CUDA. Here PyTorch's own uncompiled form of it runs on the CPU instead, for all
but the last tests.
"""

import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

import clearhead as ch
from clearhead.attention.kernels import flex
from clearhead.attention.problem import make_problem
from clearhead.errors import UnsupportedError
from clearhead.masks.spans import Extent
from tests.attention.kernels.definition import assert_agrees, close, context, draw
from tests.attention.kernels.test_agreement import MASKS, minus_infinity_at_random
from tests.attention.kernels.test_hidden import LONG, assert_stays_hidden
from tests.attention.kernels.test_hidden import MASKS as HIDING
from tests.turns import in_turn

BATCH, HEADS = 3, 6

no_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="FlexAttention compiles for CUDA"
)


def cuda(test: Any) -> Any:
    """A test that needs a device, which `make gpu` runs."""
    return pytest.mark.gpu(no_cuda(test))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention in plain operations, which PyTorch itself keeps from training on the CPU."""

    def others(problem: Any) -> list[str]:
        own = ("narrow heads", "float64")
        return [reason for reason in flex.limits(problem) if not reason.startswith(own)]

    monkeypatch.setattr(flex, "refusals", others)
    monkeypatch.setattr(flex, "_compiled", lambda kind: torch_flex.flex_attention)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)


def plain(test: Any) -> Any:
    """A test whose FlexAttention is not compiled, of which PyTorch warns."""
    test = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")(test)
    test = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")(test)
    return pytest.mark.usefixtures("uncompiled")(test)


# By its runs of keys a mask is any other: these have one run or several, for all samples or for each, that begin
# or end anywhere, and queries that see nothing. Some meet a single query, all what lies across the blocks of 128.
RUNS = [
    "full",
    "causal, offset per row",
    "causal, offset below 0",
    "window, itself",
    "window, offset per row",
    "prefix per row",
    "prefix of a language model",
    "padding on the left",
    "padding, all",
    "causal and padding",
    "not padding",
]
SHORT = ["full", "causal", "causal, offset per row", "prefix per row"]


# A tensor of each of its axes alone, and of all; what hides; and what goes by the distance.
ADDED: dict[str, Callable[[int, int], ch.Bias | Tensor]] = {
    "per key": lambda n, m: torch.randn(1, m),
    "per query": lambda n, m: torch.randn(n, 1),
    "per head, one number": lambda n, m: torch.randn(1, HEADS, 1, 1),
    "per sample": lambda n, m: torch.randn(BATCH, 1, 1, m),
    "per sample and head": lambda n, m: torch.randn(BATCH, HEADS, n, m),
    "minus infinity": lambda n, m: minus_infinity_at_random(1, HEADS, n, m),
    "alibi": lambda n, m: ch.alibi(HEADS),
    "relative": lambda n, m: ch.relative(torch.randn(HEADS, 9)),
}
GROUPS = [(1, (5, 3)), (2, (3, 11)), (3, (1, 1)), (6, (3, 11)), (2, (5, 5))]
# PyTorch traces the backward pass of each anew, which takes a second: each mask meets one bias and one size of heads.
EACH = [
    *in_turn(RUNS, [(131, 257)], [*ADDED], GROUPS),
    *((name, (1, 13), "", (2, (5, 5))) for name in SHORT),
]


@plain
@pytest.mark.parametrize(("name", "sizes", "added", "heads"), EACH, ids=str)
def test_masks_biases_and_heads(
    name: str, sizes: tuple[int, int], added: str, heads: tuple[int, tuple[int, int]]
) -> None:
    """With a cap, sinks and a scale beside a bias."""
    num_kv_heads, widths = heads
    tensors, options = draw(BATCH, HEADS, num_kv_heads, *sizes, *widths), {}
    if added:
        tensors["sinks"] = torch.randn(HEADS)
        options = {"bias": ADDED[added](*sizes), "softcap": 1.3, "scale": -0.7}
    assert_agrees("flex", tensors, mask=MASKS[name](*sizes), **options)


@plain
@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        *(("value", name) for name in ("window", "padding on the left, causal", "documents")),
        ("query", "causal"),
        ("key", "padding"),
        ("key", "prefix"),
    ],
)
def test_what_is_not_finite_stays_hidden(tensor: str, name: str) -> None:
    tensors = draw(3, 4, 2, 19, 19, 5, 3)
    tensors[tensor][:, 1, 9, 1] = torch.nan
    tensors[tensor][:, 0, 3, 0] = torch.inf
    if tensor != "value":
        tensors[tensor][:, 1, 14, 2] = LONG
    assert_stays_hidden("flex", tensors, HIDING[name]())


@plain
def test_a_key_that_a_bias_hides_shows_nothing() -> None:
    tensors = draw(2, 2, 1, 5, 7)
    tensors["value"][:, :, 3] = torch.nan
    bias = torch.zeros(5, 7)
    bias[:4, 3] = -torch.inf
    result = ch.attend(**tensors, bias=bias, kernel="flex")
    assert result.isnan().all(-1).all(0).all(0).tolist() == [False] * 4 + [True]
    assert result[:, :, :4].isfinite().all()


@given(
    query_len=st.integers(1, 700),
    kv_len=st.integers(1, 700),
    left=st.integers(0, 300),
    kept=st.integers(0, 3),
    lengths=st.lists(st.integers(0, 700), min_size=2, max_size=2),
)
def test_blocks_are_those_that_asking_every_pair_finds(
    query_len: int, kv_len: int, left: int, kept: int, lengths: list[int]
) -> None:
    mask = ch.causal(offset=kv_len - query_len) & ch.sliding_window(left=left)
    if kept:
        mask = (mask | ch.prefix(kept)) & ch.padding([min(each, kv_len) for each in lengths])
    query, key = torch.zeros(2, 1, query_len, 16), torch.zeros(2, 1, kv_len, 16)
    spans = mask.spans(mask.extent(query_len, kv_len))
    assert spans is not None
    ours = flex.block_mask(make_problem(query, key, key, mask=mask), spans)
    dense = mask.to_dense(query_len, kv_len).view(-1, query_len, kv_len)

    def asked(row: Any, head: Any, query: Any, key: Any) -> Any:
        return dense[row, query, key]

    theirs = torch_flex.create_block_mask(asked, len(dense), 1, query_len, kv_len, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for number, which in (("kv_num_blocks", "kv_indices"), ("q_num_blocks", "q_indices")):
        for kind in ("", "full_"):
            counts = getattr(theirs, kind + number)[..., None]
            mine, other = getattr(ours, kind + which), getattr(theirs, kind + which)
            listed = torch.arange(other.shape[-1]) < counts
            assert torch.equal(mine[listed], other[listed])
    rows = torch.arange(query_len)[:, None]
    columns = torch.arange(kv_len)
    for sample in range(len(dense)):
        place = torch.tensor(sample), torch.tensor(0), rows, columns
        assert torch.equal(ours.mask_mod(*place), dense[sample])


class OfPlaces(ch.Bias):
    """A bias that only its class can work out."""

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return 0.0 * query_index * key_index

    def describe(self) -> str:
        return "of places"


# PyTorch loads rules of its own for forward mode, in a way that it has itself deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_refusals() -> None:
    stripes = ch.sliding_window(left=0, right=0)
    for far in (2, 4):
        nearer = ch.sliding_window(left=far - 1, right=far - 1)
        stripes |= ch.sliding_window(left=far, right=far) & ~nearer
    query, key, value = draw(1, 2, 2, 5, 7, 5, 16).values()
    cases = {
        "float64": {"query": query.double(), "key": key.double(), "value": value.double()},
        "dropout: FlexAttention has none": {"dropout": 0.1},
        "head_dim=5, value_head_dim=16": {},
        "an empty axis": {"query": query[:, :, :0]},
        "bias that is trained": {"bias": torch.zeros(5, 7, requires_grad=True)},
        "mask that is no short list of runs": {"mask": ch.dense(torch.rand(5, 7) < 0.5)},
        "up to 4 runs of keys a query; got 5": {
            "mask": stripes,
            "query": torch.zeros(1, 2, 11, 16),
            "key": torch.zeros(1, 2, 11, 16),
            "value": torch.zeros(1, 2, 11, 16),
        },
        "bias of one's own class": {"bias": OfPlaces()},
        "tensors that cannot be read": {
            name: each.to("meta")
            for name, each in (("query", query), ("key", key), ("value", value))
        },
    }
    for text, changed in cases.items():
        problem = make_problem(**({"query": query, "key": key, "value": value} | changed))
        assert any(text in reason for reason in flex.limits(problem)), text
    with forward_ad.dual_level():
        moving = forward_ad.make_dual(query, torch.ones_like(query))
        reasons = flex.limits(make_problem(moving, key, value))
    assert any(reason.startswith("forward-mode derivatives") for reason in reasons)


def test_it_is_taken_by_name_only() -> None:
    query = torch.zeros(1, 2, 5, 16)
    assert "asked for by name" in flex.defers(make_problem(query, query, query))[0]
    with pytest.raises(ch.errors.UnsupportedError, match="compiled for CUDA"):
        ch.attend(query, query, query, kernel="flex")


def test_how() -> None:
    query = torch.zeros(1, 1, 1000, 16)
    told = flex.how(
        make_problem(query, query, query, mask=ch.causal() & ch.sliding_window(left=100))
    )
    assert told == "one compiled call; of 64 blocks of 128 × 128 pairs 49 are skipped and 15 masked"
    assert flex.how(make_problem(query, query, query)) == "one compiled call, without a mask"


@pytest.mark.skipif(" " in torch.__path__[0], reason="inductor links by paths without quotes")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_compiled_on_the_cpu() -> None:
    """The one way that PyTorch can compile without a GPU: forward, without the logsumexp."""
    from torch._inductor import config as inductor  # a second of every start otherwise

    tensors = draw(2, 4, 2, 300, 331, 16, 16)
    options = {
        "mask": ch.causal() & ch.sliding_window(left=40) & ch.padding([331, 17]),
        "bias": ch.alibi(4),
        "softcap": 3.0,
    }
    # Headers that are compiled beforehand, and trying whether the compiler knows a kind of CPU, take longer than what
    # is compiled; on x86 FlexAttention asks for AVX2 itself.
    cheaply: dict[str, Any] = {"cpp_cache_precompile_headers": False}
    if platform.machine() in ("x86_64", "AMD64"):
        cheaply |= {"cpp.vec_isa_ok": True, "cpp.simdlen": 256}
    with inductor.patch(cheaply):
        problem = make_problem(**tensors, **options)
        actual = flex.attend_by(flex._compiled(flex._kind(problem)), problem)
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    close(actual, context(**doubled, **options), context(**tensors, **options), "the context")


@cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_compiled_on_cuda(dtype: torch.dtype, with_sinks: bool) -> None:
    mask = ch.causal() & ch.sliding_window(left=40) & ch.padding([331, 17])
    tensors = {name: each.cuda() for name, each in draw(2, 4, 2, 300, 331, 32, 16, dtype).items()}
    if with_sinks:
        tensors["sinks"] = torch.randn(4, device="cuda")
    assert_agrees("flex", tensors, mask=mask, softcap=3.0)


@plain
@pytest.mark.filterwarnings("ignore:torch._dynamo hit config.recompile_limit")
def test_one_kind_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch itself would go on uncompiled; here it records what it compiles, and runs it as it is."""
    torch.compiler.reset()
    compiled = torch.compile(torch_flex.flex_attention, backend="eager")
    monkeypatch.setattr(flex, "_compiled", lambda kind: compiled)
    tensors = draw(query_len=130, head_dim=16)
    with torch._dynamo.config.patch(recompile_limit=1):
        ch.attend(**tensors, mask=ch.causal(), kernel="flex")
        ch.attend(**tensors, mask=ch.causal(), kernel="flex")
        with pytest.raises(UnsupportedError) as caught:
            ch.attend(**tensors, softcap=2.0, kernel="flex")
    torch.compiler.reset()
    assert str(caught.value) == (
        '[kernel.compilations] kernel="flex" compiles each kind of call; PyTorch compiles one function up to '
        "1 times and then runs it uncompiled, with queries × keys numbers. Raise "
        "torch._dynamo.config.recompile_limit, or call torch.compiler.reset() and ask for fewer kinds."
    )


def blocks_of(mask: ch.Mask, query_len: int = 300, **changes: Any) -> torch_flex.BlockMask:
    problem = make_problem(**draw(2, query_len=query_len, kv_len=300), mask=mask, **changes)
    assert problem.spans is not None
    return flex._kept_block_mask(problem, problem.spans)


def test_blocks_are_kept_with_their_mask() -> None:
    mask = ch.causal() & ch.documents(torch.arange(300) // 70) & ch.padding([300, 200])
    kept = blocks_of(mask)
    assert blocks_of(mask) is kept
    assert blocks_of(mask, query_len=200) is not kept
    with torch.inference_mode():  # a tensor made here cannot be kept for a backward pass
        assert blocks_of(mask) is not kept


def test_blocks_of_a_mask_whose_ids_are_written_to_stay() -> None:
    ids = torch.zeros(300, dtype=torch.int64)
    mask = ch.documents(ids)
    kept = blocks_of(mask)
    ids[:256] = 1
    assert blocks_of(mask) is kept
    with torch.inference_mode():
        unseen = ch.documents(torch.zeros(300, dtype=torch.int64))
        assert blocks_of(unseen) is not blocks_of(unseen)


def test_blocks_of_ones_own_mask_are_made_anew() -> None:
    """Nothing says when it changes."""
    from clearhead.layers.caches.fixed import Held

    mask = ch.causal() & Held(torch.tensor(300))
    assert blocks_of(mask) is not blocks_of(mask)
