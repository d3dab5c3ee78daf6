"""Models of transformers under watch: as they ran, and with the weights that they give themselves."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

import clearhead as ch
from clearhead.errors import UnsupportedError, WatchError
from clearhead.problem import Problem
from clearhead.routes import transformers as route
from clearhead.routes.transformers import read_call
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

ALL = [(name, each) for name, kind in KINDS.items() for each in kind.implementations]
CACHED = [(name, each) for name, each in ALL if KINDS[name].causal]
INTERFACE: Any = transformers.AttentionInterface
ORIGINAL = (INTERFACE.get_interface,)


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Any:
    yield
    assert INTERFACE.get_interface is ORIGINAL[0]


def result(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def counted(name: str, weights: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Weights without the queries that are padding: they may see something in eager."""
    if KINDS[name].reads_twice:
        return weights
    return weights.where(given["attention_mask"].bool()[:, None, :, None], 0.0)


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
    exact = same(name, eager, implementation).double()
    with ch.watch(exact) as exactly:
        exact(**given)
    theirs = attentions(eager(**given, output_attentions=True))
    found = [matrix for path in seen for matrix in seen.calls(path)]
    truth = [matrix for path in exactly for matrix in exactly.calls(path)]
    modules = dict(model.named_modules())
    assert all(path in modules for path in seen)
    assert len(found) == len(theirs)
    columns = []
    for each in ([m.dense() for m in found], [m.dense() for m in truth], theirs):
        # The order of an encoder's and a decoder's layers is that of their outputs.
        columns.append(torch.cat([counted(name, weights, given).flatten() for weights in each]))
    actual, reference, plain = columns
    # A mask that is read wrongly moves weights by a tenth and more.
    assert float((plain - reference).abs().max()) < 1e-3
    assert_no_worse(actual, reference.double(), plain)


def test_cross_attention_has_two_lengths() -> None:
    model = make("bart", "sdpa")
    with ch.watch(model) as seen, torch.no_grad():
        model(**inputs("bart"))
    shapes = {path: tuple(seen[path].shape[2:]) for path in seen}
    assert shapes["model.encoder.layers.0.self_attn"] == (SOURCE_LEN, SOURCE_LEN)
    assert shapes["model.decoder.layers.0.self_attn"] == (TOKENS, TOKENS)
    assert shapes["model.decoder.layers.0.encoder_attn"] == (TOKENS, SOURCE_LEN)


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize(("name", "implementation"), CACHED)
@torch.no_grad()
def test_generation_with_a_cache(name: str, implementation: str, side: str) -> None:
    """Every call of every step has the rows that the whole text has at once."""
    given = inputs(name, side)
    model = make(name, implementation)
    if KINDS[name].reads_twice:
        model.double()  # the scores of T5 are in the hundreds, since nothing scales them
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with ch.watch(model) as seen:
        made = model.generate(**given, **options)
    assert torch.equal(made, model.generate(**given, **options))
    begun = {"attention_mask": given["attention_mask"]}
    if KINDS[name].reads_twice:
        whole = begun | {"input_ids": given["input_ids"], "decoder_input_ids": made[:, :-1]}
    else:
        begun = nn.functional.pad(given["attention_mask"], (0, 4), value=1)
        whole = {"input_ids": made[:, :-1], "attention_mask": begun}
        if side == "left" and name == "gpt2":
            whole["position_ids"] = (begun.cumsum(1) - 1).clamp(min=0)
    with ch.watch(model) as at_once:
        model(**whole)
    for path in seen:
        expected = at_once[path].dense()
        across = "encoder_attn" in path or "EncDecAttention" in path
        last = 0
        for matrix in seen.calls(path):
            rows, keys = matrix.shape[2:]
            first, last = last, last + rows
            # A window keeps the last of the keys only.
            known = expected.shape[-1] if across or "encoder." in path else last
            wanted = expected[:, :, first:last, max(0, known - keys) : known]
            torch.testing.assert_close(matrix.dense(), wanted, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_generation_is_one_matrix() -> None:
    model = make("llama", "sdpa")
    with ch.watch(model) as seen:
        made = model.generate(**inputs("llama", "left"), max_new_tokens=5, do_sample=False)
    tokens = made.shape[1] - 1
    assert {tuple(seen[path].shape) for path in seen} == {(3, 4, tokens, tokens)}


@torch.no_grad()
def test_attentions_may_be_asked_for_as_well() -> None:
    model, given = make("gpt2"), inputs("gpt2")
    with ch.watch(model) as seen:
        output = model(**given, output_attentions=True)
    for path, weights in zip(seen, output.attentions, strict=True):
        torch.testing.assert_close(seen[path].dense(), weights)


@torch.no_grad()
def test_summaries_of_a_model() -> None:
    model, given = make("qwen3", "sdpa"), inputs("qwen3", "right")
    with ch.watch(model) as seen, ch.watch(model, keep="summary") as summed:
        model(**given)
    for path in seen:
        torch.testing.assert_close(summed[path].entropy, seen[path].entropy())
        torch.testing.assert_close(summed[path].received, seen[path].received())


def test_training_with_dropout_is_as_it_was() -> None:
    """The weights are those before dropout, and the random numbers the same."""
    model, given = make("gpt2").train(), inputs("gpt2")
    torch.manual_seed(7)
    expected = model(**given).logits
    torch.manual_seed(7)
    with ch.watch(model) as seen:
        actual = model(**given).logits
    assert torch.equal(actual, expected)
    sums = seen[0].dense().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@torch.no_grad()
def test_a_model_in_bfloat16() -> None:
    eager = make("llama").bfloat16()
    given = inputs("llama")
    with ch.watch(eager) as seen:
        output = eager(**given, output_attentions=True)
    for path, weights in zip(seen, output.attentions, strict=True):
        # Theirs are rounded to 8 bits at the end, and their scores before the softmax as well.
        torch.testing.assert_close(seen[path].dense(), weights.float(), rtol=0, atol=0.05)


def tensors(query_len: int, kv_len: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 4, query_len, 6), torch.randn(batch, 2, kv_len, 6)


class Layer(nn.Module):
    """What is asked for causality when a call does not say."""

    is_causal = True


def read(
    implementation: str | None, query: Tensor, key: Tensor, *given: Any, **more: Any
) -> Problem:
    return read_call(implementation, Layer(), query, key, key, *given, **more)


def shown(problem: Problem) -> Tensor:
    """The mask of a problem, (batch, 1, query_len, kv_len)."""
    visible = problem.visible()
    shape = (problem.batch, 1, problem.query_len, problem.kv_len)
    return torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)


def steps(query_len: int, kv_len: int, offset: int | None = None) -> Tensor:
    """How many tokens a key lies behind its query; the last query sits on the last key."""
    offset = kv_len - query_len if offset is None else offset
    return torch.arange(query_len)[:, None] + offset - torch.arange(kv_len)


@pytest.mark.parametrize("query_len", [1, 3, 7])
def test_flash_attention(query_len: int) -> None:
    """Its mask says which keys are real, and the last query sits on the last of them."""
    query, key = tensors(query_len, 7, batch=2)
    behind = steps(query_len, 7)
    assert torch.equal(shown(read("flash_attention_2", query, key))[0, 0], behind >= 0)
    window = shown(read("flash_attention_3", query, key, sliding_window=2))
    assert torch.equal(window[0, 0], (behind >= 0) & (behind < 2))
    both_ways = shown(read("flash_attention_2", query, key, is_causal=False, sliding_window=2))
    assert torch.equal(both_ways[0, 0], behind.abs() < 2)
    valid = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    padded = shown(read("flash_attention_2", query, key, valid))
    assert torch.equal(padded, (behind >= 0) & valid.bool()[:, None, None])
    # A cache with room for more keys than there are.
    room = shown(read("flash_attention_2", query, torch.randn(2, 2, 11, 6), valid))
    assert torch.equal(room[..., :7], padded)
    assert not room[..., 7:].any()


def test_packed_sequences() -> None:
    query, key = tensors(7, 7)
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    expected = (steps(7, 7) >= 0) & (ids[:, None] == ids)
    starts = torch.tensor([0, 3, 5, 7])
    by_lengths = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 3}
    places = torch.tensor([[0, 1, 2, 0, 1, 0, 1]])
    for given in (by_lengths, {"position_ids": places}):
        assert torch.equal(shown(read("flash_attention_2", query, key, **given))[0, 0], expected)
    # Positions that go on are one sequence.
    plain = shown(read("flash_attention_2", query, key, position_ids=torch.arange(7)[None]))
    assert torch.equal(plain[0, 0], steps(7, 7) >= 0)


def test_flex_attention() -> None:
    query, key = tensors(5, 7)

    def nearby(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i + 2 >= j) & (i - j < 1)

    blocks = create_block_mask(nearby, 1, 1, 5, 7, device="cpu")
    behind = steps(5, 7, offset=0)
    assert torch.equal(
        shown(read("flex_attention", query, key, blocks))[0, 0], (behind >= -2) & (behind < 1)
    )
    added = torch.zeros(1, 2, 5, 7).masked_fill(behind < 0, -torch.inf)
    assert torch.equal(shown(read("flex_attention", query, key, added))[0, 0], behind >= 0)


def test_the_function_of_pytorch() -> None:
    query, key = tensors(3, 7)
    sees = shown(read("sdpa", query, key))
    # Without a mask, causality is counted from the first key on.
    assert torch.equal(sees[0, 0], steps(3, 7, offset=0) >= 0)
    assert shown(read("sdpa", *tensors(1, 7))).all()
    assert shown(read("sdpa", query, key, is_causal=False)).all()
    some = torch.rand(1, 1, 3, 7) < 0.5
    assert torch.equal(shown(read("sdpa", query, key, some)), some)
    problem = read("sdpa", query, key, torch.full((1, 1, 3, 7), 0.5), softcap=3.0)
    assert (problem.mask, problem.softcap) == (None, None)
    added = problem.bias_block()
    assert added is not None
    assert (added == 0.5).all()


def test_eager_adds_its_mask() -> None:
    query, key = tensors(3, 7)
    behind = steps(3, 7)
    added = torch.zeros(1, 1, 3, 9).masked_fill(
        nn.functional.pad(behind, (0, 2)) < 0, torch.finfo().min
    )
    problem = read(None, query, key, added, softcap=2.0, s_aux=torch.ones(4), scaling=0.3)
    assert torch.equal(shown(problem)[0, 0], behind >= 0)
    assert (problem.softcap, problem.scale, problem.bias) == (2.0, 0.3, None)
    assert problem.sinks is not None


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


def test_what_is_not_known_is_an_error_of_the_watch() -> None:
    """The model ran; what it did is said not to be known."""
    model = make("llama", "sdpa")
    refused = pytest.raises(WatchError, match="what slopes=3 means to the attention of")
    with refused as refusal, ch.watch(model), torch.no_grad():
        model(**inputs("llama"), slopes=3)
    assert refusal.value.code == "watch.unreadable"


def test_an_exception_ends_the_watch() -> None:
    model = make("llama", "sdpa")
    stopped = pytest.raises(ZeroDivisionError)
    with stopped, ch.watch(model):
        assert INTERFACE.get_interface is not ORIGINAL[0]
        raise ZeroDivisionError


def test_a_patch_of_somebody_else_stays() -> None:
    def theirs(self: object, attn_implementation: str | None, default: Any) -> Any:
        return below(self, attn_implementation, default)

    end = route.install()
    below = INTERFACE.get_interface
    INTERFACE.get_interface = theirs
    end()
    assert INTERFACE.get_interface is theirs
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
