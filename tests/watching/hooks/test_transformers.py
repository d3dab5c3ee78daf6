"""Models of transformers under watch: as they ran, and with the weights that they give themselves."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.modules import module as torch_module
from transformers import modeling_flash_attention_utils as flash_utils
from transformers.integrations import flex_attention as flex_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.t5 import modeling_t5

import clearhead as ch
from clearhead.attention.problem import Problem
from clearhead.errors import UnsupportedError, WatchError
from clearhead.watching.hooks import tap
from clearhead.watching.hooks import transformers as route
from clearhead.watching.hooks.transformers import Described, read_call
from tests.integrations.models import (
    KINDS,
    SOURCE_LEN,
    TOKENS,
    VOCABULARY,
    attentions,
    inputs,
    make,
    same,
)
from tests.tolerances import assert_no_worse
from tests.watching.hooks.recording import weights_of

ALL = [(name, each) for name, kind in KINDS.items() for each in kind.implementations]
CACHED = [(name, each) for name, each in ALL if KINDS[name].causal]
NEW = 5
INTERFACE: Any = transformers.AttentionInterface
ORIGINAL = (INTERFACE.get_interface,)


def hooks() -> tuple[int, int, int]:
    return (
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
        len(tap.listeners),
    )


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    before = hooks()
    yield
    assert hooks() == before
    assert INTERFACE.get_interface is ORIGINAL[0]


def result(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def counted(name: str, weights: Tensor, real: Tensor) -> Tensor:
    """Weights without the queries that are padding: they may see something in eager."""
    if KINDS[name].reads_twice:
        return weights
    return weights.where(real.bool()[:, None, :, None], 0.0)


def assert_are_those_of_eager(
    name: str,
    found: Sequence[Tensor],
    exact: Sequence[Tensor],
    theirs: Sequence[Tensor],
    real: Tensor,
) -> None:
    """Weights are no farther from those in float64 than what eager gives itself.

    Eager in float64 is no reference where there is padding: its softmax is in float32, where what
    it adds to hidden scores is −∞, and a row of them NaN. So the reference is read as well, and
    eager's own weights must be near it.
    """
    assert [each.shape for each in found] == [each.shape for each in theirs]
    actual, reference, plain = (
        torch.cat([counted(name, each, real).flatten() for each in matrices])
        for matrices in (found, exact, theirs)
    )
    # A mask that is read wrongly moves weights by a tenth and more.
    assert float((plain - reference).abs().max()) < 1e-3
    assert_no_worse(actual, reference.double(), plain)


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize(("name", "implementation"), ALL)
@torch.no_grad()
def test_what_is_seen_are_the_weights_of_eager(name: str, implementation: str, side: str) -> None:
    given = inputs(name, side)
    eager = make(name)
    model = same(name, eager, implementation)
    with ch.watch(model) as seen:
        watched = model(**given)
    assert torch.equal(result(watched), result(model(**given)))
    modules = dict(model.named_modules())
    assert all("Attention" in type(modules[path]).__name__ for path in seen)
    exact_model = same(name, eager, implementation).double()
    with ch.watch(exact_model) as exactly:
        exact_model(**given)
    theirs = attentions(eager(**given, output_attentions=True))
    found, exact = ([each[path].dense() for path in each] for each in (seen, exactly))
    assert_are_those_of_eager(name, found, exact, theirs, given["attention_mask"])


def test_names_are_paths_in_the_order_of_the_calls() -> None:
    model = make("llama", "sdpa")
    with ch.watch(model) as seen, torch.no_grad():
        model(**inputs("llama"))
    assert seen.layers == ("model.layers.0.self_attn", "model.layers.1.self_attn")


def test_cross_attention_has_two_lengths() -> None:
    model = make("bart", "sdpa")
    with ch.watch(model) as seen, torch.no_grad():
        model(**inputs("bart"))
    lengths = {path: tuple(seen[path].shape[2:]) for path in seen}
    assert lengths == {
        "model.encoder.layers.0.self_attn": (SOURCE_LEN, SOURCE_LEN),
        "model.encoder.layers.1.self_attn": (SOURCE_LEN, SOURCE_LEN),
        "model.decoder.layers.0.self_attn": (TOKENS, TOKENS),
        "model.decoder.layers.0.encoder_attn": (TOKENS, SOURCE_LEN),
        "model.decoder.layers.1.self_attn": (TOKENS, TOKENS),
        "model.decoder.layers.1.encoder_attn": (TOKENS, SOURCE_LEN),
    }


@torch.no_grad()
def test_a_query_that_sees_nothing_has_no_weights() -> None:
    """Eager gives it the same of every key."""
    model, given = make("llama"), inputs("llama", "left")
    with ch.watch(model) as seen:
        theirs = model(**given, output_attentions=True).attentions
    padding = given["attention_mask"] == 0
    assert padding.any()
    for path, weights in zip(seen, theirs, strict=True):
        found = seen[path].dense().transpose(1, 2)
        assert (found[padding] == 0).all()
        torch.testing.assert_close(found[~padding].sum(-1), torch.ones(14, 4))
        assert (weights.transpose(1, 2)[padding] > 0).all()


def stitched(calls: Sequence[ch.AttentionMatrix], kv_len: int, grows: bool) -> Tensor:
    """The rows of all calls as one matrix, 0 for the keys that a call did not have any more."""
    rows, last = [], 0
    for matrix in calls:
        query_len, keys = matrix.shape[2:]
        last += query_len
        stop = last if grows else kv_len
        row = matrix.dense().new_zeros(*matrix.shape[:3], kv_len)
        row[..., stop - keys : stop] = matrix.dense()
        rows.append(row)
    return torch.cat(rows, dim=2)


def text_of(name: str, given: dict[str, Tensor], made: Tensor) -> dict[str, Tensor]:
    """What a model reads to see at once what it read step by step."""
    if KINDS[name].reads_twice:
        return given | {"decoder_input_ids": made[:, :-1]}
    real = F.pad(given["attention_mask"], (0, NEW - 1), value=1)
    places = (real.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": made[:, :-1], "attention_mask": real, "position_ids": places}


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize(("name", "implementation"), CACHED)
@torch.no_grad()
def test_generation_with_a_cache(name: str, implementation: str, side: str) -> None:
    """The rows of all steps are the matrix that eager has of the whole text at once."""
    given = inputs(name, side)
    if KINDS[name].reads_twice:
        del given["decoder_input_ids"]
    eager = make(name)
    model = same(name, eager, implementation)
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    with ch.watch(model) as seen:
        made = model.generate(**given, **options)
    assert torch.equal(made, model.generate(**given, **options))
    whole = text_of(name, given, made)
    exact_model = same(name, eager, implementation).double()
    with ch.watch(exact_model) as exactly:
        exact_model(**whole)
    theirs = attentions(eager(**whole, output_attentions=True))
    found = [
        stitched(seen.calls(path), weights.shape[-1], weights.shape[-2] == weights.shape[-1])
        for path, weights in zip(seen, theirs, strict=True)
    ]
    exact = [exactly[path].dense() for path in exactly]
    assert_are_those_of_eager(name, found, exact, theirs, whole["attention_mask"])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_a_text_in_portions(implementation: str) -> None:
    """Several tokens go on from a cache: the last query sits on the last key."""
    eager = make("qwen3")
    model = same("qwen3", eager, implementation)
    ids = torch.randint(2, VOCABULARY, (3, 13))

    def portions(each: Any) -> tuple[list[Tensor], Tensor]:
        past, outputs = None, []
        with ch.watch(each) as seen:
            for part in ids.split([7, 1, 3, 2], dim=1):
                output = each(part, past_key_values=past, use_cache=True)
                past = output.past_key_values
                outputs.append(output.logits)
        assert {len(seen.calls(path)) for path in seen} == {4}
        return [seen[path].dense() for path in seen], torch.cat(outputs, dim=1)

    found, logits = portions(model)
    past, alone = None, []
    for part in ids.split([7, 1, 3, 2], dim=1):
        output = model(part, past_key_values=past, use_cache=True)
        past = output.past_key_values
        alone.append(output.logits)
    assert torch.equal(logits, torch.cat(alone, dim=1))
    exact, _ = portions(same("qwen3", eager, implementation).double())
    theirs = attentions(eager(ids, output_attentions=True))
    assert_are_those_of_eager("qwen3", found, exact, theirs, torch.ones_like(ids))


@torch.no_grad()
def test_a_generation_is_one_matrix() -> None:
    model = make("llama", "sdpa")
    with ch.watch(model) as seen:
        made = model.generate(**inputs("llama", "left"), max_new_tokens=5, do_sample=False)
    tokens = made.shape[1] - 1
    assert {tuple(seen[path].shape) for path in seen} == {(3, 4, tokens, tokens)}


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_attentions_may_be_asked_for_as_well(name: str) -> None:
    model, given = make(name), inputs(name)
    alone = model(**given, output_attentions=True)
    with ch.watch(model) as seen:
        watched = model(**given, output_attentions=True)
    for mine, theirs in zip(attentions(watched), attentions(alone), strict=True):
        assert torch.equal(mine, theirs)
    assert len(seen) == len(attentions(watched))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_summaries_of_a_model(implementation: str) -> None:
    model, given = make("qwen3", implementation), inputs("qwen3", "right")
    alone = model(**given).logits
    with ch.watch(model) as seen, ch.watch(model, keep="summary") as summed:
        watched = model(**given).logits
    assert torch.equal(watched, alone)
    assert summed.layers == seen.layers
    for path in seen:
        torch.testing.assert_close(summed[path].entropy, seen[path].entropy())
        torch.testing.assert_close(summed[path].received, seen[path].received())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_training_with_dropout_is_as_it_was(implementation: str) -> None:
    """The weights are those before dropout, the random numbers and the gradients the same."""
    model, given = make("gpt2", implementation).train(), inputs("gpt2")

    def step() -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(7)
        model.zero_grad()
        logits = model(**given).logits
        logits.square().mean().backward()
        return logits.detach(), [each.grad for each in model.parameters() if each.grad is not None]

    expected, gradients = step()
    with ch.watch(model) as seen:
        actual, watched = step()
    assert torch.equal(actual, expected)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(watched, gradients, strict=True))
    assert not seen[0].problem.query.requires_grad
    sums = seen[0].dense().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("way", ["bfloat16", "autocast"])
@torch.no_grad()
def test_a_model_in_few_bits(way: str, implementation: str) -> None:
    given = inputs("llama")
    eager = make("llama")
    if way == "bfloat16":
        eager.bfloat16()
    model = same("llama", eager, implementation)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        alone = model(**given).logits
        with ch.watch(model) as seen:
            watched = model(**given).logits
        theirs = eager(**given, output_attentions=True).attentions
    assert torch.equal(watched, alone)
    assert {seen[path].problem.query.dtype for path in seen} == {torch.bfloat16}
    exact = same("llama", eager, "eager").double()
    reference = torch.stack(exact(**given, output_attentions=True).attentions).double()
    plain = torch.stack(theirs).float()
    # A mask that is read wrongly moves weights by more.
    assert float((plain - reference).abs().max()) < 0.1
    assert_no_worse(torch.stack([seen[path].dense() for path in seen]), reference, plain)


def tensors(query_len: int, kv_len: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Heads are wider than there are keys: flash attention takes no wider values."""
    return torch.randn(batch, 4, query_len, 13), torch.randn(batch, 2, kv_len, 13)


class Layer(nn.Module):
    """What a function of transformers asks of the module that attends."""

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
    """What is read of a call has the weights that the function works out, which are its output
    where the values are the unit vectors.

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
    """How many tokens a key lies behind its query; the last query sits on the last key."""
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
    """What flash attention is documented to compute of one sample, (len, num_heads, head_dim).

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
    "between": [[1, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 1]],
}


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("room", [0, 4])
@pytest.mark.parametrize("window", [None, 2, 3])
@pytest.mark.parametrize("side", VALID)
def test_flash_attention(side: str, window: int | None, room: int) -> None:
    """Its mask says which keys are real, and the last query sits on the last of them."""
    valid = torch.tensor(VALID[side])
    for query_len in (1, 3, 7):
        for is_causal in (True, False):
            query, key = tensors(query_len, 7 + room, batch=2)
            # A single query is taken for real.
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
    """Where padding moves no real token away from another, no matrix is made of the mask."""
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


@pytest.mark.usefixtures("flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
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


def test_eager_with_sinks() -> None:
    query, key = tensors(3, 7)
    hidden = torch.zeros(1, 1, 3, 7).masked_fill(steps(3, 7) < 0, -torch.inf)
    eager = modeling_gpt_oss.eager_attention_forward
    sinks = torch.linspace(-1, 1, 4)
    assert_read_as_computed("eager", eager, query, key, hidden, scaling=0.7, s_aux=sinks)


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


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2"])
def test_these_drop_what_they_are_told_to(implementation: str) -> None:
    query, key = tensors(3, 3)
    assert read(implementation, query, key, dropout=0.3).dropout == 0.3


@pytest.mark.parametrize("implementation", ["eager", "clearhead"])
def test_these_drop_while_the_module_trains(implementation: str) -> None:
    query, key = tensors(3, 3)
    assert read(implementation, query, key, dropout=0.3).dropout is None
    training = Layer().train()
    assert read_call(implementation, training, query, key, key, dropout=0.3).dropout == 0.3


def test_softcap_and_sinks_are_not_those_of_pytorch() -> None:
    problem = read("sdpa", *tensors(3, 3), softcap=0.8, s_aux=torch.ones(4))
    assert (problem.softcap, problem.sinks) == (None, None)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: read("my_attention", *tensors(3, 3)),
            '[transformers.implementation] attn_implementation must be "eager", "sdpa", '
            '"flex_attention", "clearhead" or one of the flash attentions; how "my_attention" reads '
            "its arguments is not known.",
        ),
        (
            lambda: read("sdpa", *tensors(3, 3), alibi=torch.zeros(4)),
            "[transformers.argument] what alibi=<float32 (4,)> means to the attention of Layer is "
            "not known. Known are scaling, dropout, is_causal, sliding_window, softcap, s_aux, "
            "position_bias, cu_seq_lens_q, cu_seq_lens_k; and, as they change no weight, "
            + ", ".join(route.HARMLESS)
            + ".",
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
            "[transformers.argument] cu_seq_lens_q must be cu_seq_lens_k, of sequences that attend "
            "to themselves; got <int64 (2,)> and <int64 (2,)> for query_len=3, kv_len=3.",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(call: Callable[[], object], text: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        call()
    assert str(refusal.value) == text


@torch.no_grad()
def test_what_is_not_known_is_an_error_of_the_watch() -> None:
    """The model runs as it would; what it did is said not to be known when the block ends."""
    model = make("llama", "sdpa")
    alone = model(**inputs("llama"), slopes=3).logits
    with pytest.raises(WatchError) as refusal, ch.watch(model):  # noqa: PT012
        watched = model(**inputs("llama"), slopes=3).logits
        assert torch.equal(watched, alone)
    assert refusal.value.code == "watch.unreadable"
    beginning = (
        "[watch.unreadable] a call of attention could not be read: [transformers.argument] what "
        "slopes=3 means to the attention of LlamaAttention is not known."
    )
    assert str(refusal.value).startswith(beginning)
    assert isinstance(refusal.value.__cause__, UnsupportedError)


def by_pytorch(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
) -> Any:
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return output.transpose(1, 2), None


def by_itself(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
) -> Any:
    return query.transpose(1, 2), None


def of_somebody(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> Any:
    """A model with an implementation of attention that is not one of transformers."""
    monkeypatch.setitem(INTERFACE._global_mapping, "of_somebody", function)
    model = make("llama")
    model.config._attn_implementation = "of_somebody"
    return model.model


@torch.no_grad()
def test_another_implementation_is_seen_by_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = of_somebody(monkeypatch, by_pytorch)
    ids = torch.randint(2, VOCABULARY, (1, TOKENS))
    alone = model(ids).last_hidden_state
    with ch.watch(model) as seen:
        watched = model(ids).last_hidden_state
    assert torch.equal(watched, alone)
    assert seen.layers == ("layers.0.self_attn", "layers.1.self_attn")
    theirs = make("llama").model(ids, output_attentions=True).attentions
    for path, weights in zip(seen, theirs, strict=True):
        torch.testing.assert_close(seen[path].dense(), weights)


@torch.no_grad()
def test_another_implementation_that_calls_nothing_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = of_somebody(monkeypatch, by_itself)
    with pytest.raises(WatchError) as refusal, ch.watch(model):
        model(torch.randint(2, VOCABULARY, (1, TOKENS)))
    assert refusal.value.code == "watch.nothing-seen"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_exception_ends_the_watch(implementation: str) -> None:
    """Whether the block raises or the model does in the middle of its attention."""
    model = make("llama", implementation)
    stopped = pytest.raises(ZeroDivisionError)
    with stopped, ch.watch(model):
        assert INTERFACE.get_interface is not ORIGINAL[0]
        raise ZeroDivisionError
    assert INTERFACE.get_interface is ORIGINAL[0]

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(fails)
    with pytest.raises(ZeroDivisionError), ch.watch(model), torch.no_grad():
        model(**inputs("llama"))
    hook.remove()
    assert INTERFACE.get_interface is ORIGINAL[0]
    with ch.watch(model) as seen, torch.no_grad():
        model(**inputs("llama"))
    assert seen.layers == ("model.layers.0.self_attn", "model.layers.1.self_attn")


def test_a_function_that_fails_is_not_running_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **more: object) -> None:
        raise ZeroDivisionError

    model = of_somebody(monkeypatch, fails)
    monkeypatch.setitem(INTERFACE._global_mapping, "sdpa", fails)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ZeroDivisionError), ch.watch(model), torch.no_grad():
        model(torch.randint(2, VOCABULARY, (1, TOKENS)))
    assert not tap.is_inside()


@torch.no_grad()
def test_a_patch_of_somebody_else_stays() -> None:
    """It lies on top of what tells, which is silent from then on."""

    def theirs(self: object, attn_implementation: str | None, default: Any) -> Any:
        calls.append(attn_implementation)
        return below(self, attn_implementation, default)

    calls: list[str | None] = []
    model, given = make("llama", "sdpa"), inputs("llama")
    alone = model(**given).logits
    with ch.watch(model) as seen:
        below = INTERFACE.get_interface
        INTERFACE.get_interface = theirs
        model(**given)
    try:
        assert INTERFACE.get_interface is theirs
        assert len(seen) == 2
        assert calls == ["sdpa", "sdpa"]
        assert torch.equal(model(**given).logits, alone)
        assert {len(seen.calls(path)) for path in seen} == {1}
    finally:
        INTERFACE.get_interface = ORIGINAL[0]


def test_a_table_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers before 5 has it: models look into a table, or have a function of their own."""

    class Functions(dict[str, Any]):
        pass

    def sdpa(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> str:
        return "sdpa"

    def eager_attention_forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any
    ) -> str:
        return "eager"

    class Module:
        ALL_ATTENTION_FUNCTIONS = Functions(sdpa=sdpa, mystery=eager_attention_forward)

    model: Any = type(sys)("a_model_of_theirs")
    model.eager_attention_forward = eager_attention_forward
    monkeypatch.setitem(sys.modules, "a_model_of_theirs", model)
    found: list[Problem] = []
    route.tap.listeners.append(lambda told, child: found.append(told()))
    table = Module.ALL_ATTENTION_FUNCTIONS
    end = route._replace(Module)
    try:
        query, key = tensors(3, 3)
        assert table["sdpa"](Layer(), query, key, key, None) == "sdpa"
        assert model.eager_attention_forward(Layer(), query, key, key, None) == "eager"
        assert table["mystery"](Layer(), query, key, key, None) == "eager"
    finally:
        end()
        route.tap.listeners.pop()
    # What is not known is not read; the other two are causal by themselves, and not.
    assert [problem.mask is None for problem in found] == [False, True]
    assert table == {"sdpa": sdpa, "mystery": eager_attention_forward}
    assert model.eager_attention_forward is eager_attention_forward


def test_transformers_may_come_later() -> None:
    code = f"""
import torch, clearhead as ch
class Later(torch.nn.Module):
    def forward(self):
        import transformers
        sizes = dict(vocab_size={VOCABULARY}, hidden_size=16, intermediate_size=16)
        config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        self.model = transformers.LlamaModel(config)
        return self.model(torch.arange(5)[None])
later = Later()
with ch.watch(later) as seen, torch.no_grad():
    later()
print(tuple(seen[0].shape))
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert run.stdout.strip() == "(1, 2, 5, 5)", run.stderr
