"""Models of transformers on the kernels of this package, against their own eager code."""

import copy
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import MissingExtraError, ModelError, UnsupportedError
from clearhead.integrations import attention
from clearhead.integrations.transformers_internals import masking_utils
from clearhead.watching.hooks.described import Described
from tests.integrations.models import KINDS, TOKENS, VOCABULARY, attentions, inputs, make, same
from tests.memory import LargestTensor
from tests.refusals import assert_refused
from tests.tolerances import assert_no_worse

CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
}
CACHED = [name for name, kind in KINDS.items() if kind.causal and not kind.reads_twice]


@pytest.fixture(autouse=True)
def registered() -> None:
    attention.register()


def result(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def real(name: str, given: dict[str, Tensor]) -> Tensor:
    """The positions of the result that are no padding, (batch, tokens)."""
    if KINDS[name].reads_twice:
        return torch.ones_like(given["decoder_input_ids"], dtype=torch.bool)
    return given["attention_mask"].bool()


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_agrees_with_eager(name: str) -> None:
    """Logits and weights in float32 are no farther from those in float64 than eager's are.

    Eager itself gives no reference for padding: its softmax is in float32, where what it adds to
    hidden scores in float64 is −∞, and a row of them NaN.
    """
    eager = make(name)
    ours = same(eager, "clearhead")
    exact = copy.deepcopy(ours).double()
    for side in ("none", "left", "right"):
        agree(name, inputs(name, side), eager, ours, exact)


def agree(name: str, given: dict[str, Tensor], eager: Any, ours: Any, exact: Any) -> None:
    plain, actual, truth = (
        model(**given, output_attentions=True) for model in (eager, ours, exact)
    )
    place = real(name, given)
    reference = result(truth)[place].double()
    # A mask that is read wrongly moves logits by a tenth of their size and more.
    error = (result(plain)[place] - reference).abs().max()
    assert float(error) < 1e-3 * float(reference.abs().max())
    assert_no_worse(result(actual)[place], reference, result(plain)[place])
    shown = attentions(actual)
    assert all(isinstance(each, ch.AttentionMatrix) for each in shown)
    everywhere = KINDS[name].reads_twice
    weights = [
        # A query that is padding sees something in eager, and nothing here.
        each if everywhere else each.where(place[:, None, :, None], 0.0)
        for matrices in (
            [matrix.dense() for matrix in shown],
            [matrix.dense() for matrix in attentions(truth)],
            attentions(plain),
        )
        for each in matrices
    ]
    count = len(shown)
    assert len(weights) == 3 * count
    found, exactly, theirs = (
        torch.cat([each.flatten() for each in weights[start : start + count]])
        for start in (0, count, 2 * count)
    )
    assert float((theirs - exactly).abs().max()) < 1e-3
    assert_no_worse(found, exactly.double(), theirs)


@pytest.mark.parametrize("name", CACHED)
def test_generates_what_eager_generates(name: str) -> None:
    """Longer than the windows, which are of three tokens; each cache with padding and without among the models."""
    eager = make(name)
    ours = same(eager, "clearhead")
    start = CACHED.index(name) % 2
    for side, cache in zip(("none", "left"), islice(cycle(CACHES), start, None), strict=False):
        given = inputs(name, side)
        options: dict[str, Any] = {
            "max_new_tokens": 4,
            "do_sample": False,
            "output_logits": True,
            "return_dict_in_generate": True,
            "pad_token_id": 0,
            "disable_compile": True,
        } | CACHES[cache]
        expected, actual = eager.generate(**given, **options), ours.generate(**given, **options)
        assert torch.equal(actual.sequences, expected.sequences), (side, cache)
        for found, wanted in zip(actual.logits, expected.logits, strict=True):
            bound = 1e-4 * float(wanted.abs().max())
            torch.testing.assert_close(found, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5"])
def test_trains_as_eager_does(name: str) -> None:
    given = inputs(name)
    labels = given.get("decoder_input_ids", given["input_ids"])
    eager = make(name, attn_pdrop=0.0).double()
    ours = same(eager, "clearhead")
    for model in (eager, ours):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model(**given, labels=labels).loss.backward()
    for (path, theirs), mine in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if theirs.grad is None:
            assert mine.grad is None
            continue
        # Softmax and rotary positions are in float32 in some of them.
        bound = 1e-4 * float(theirs.grad.abs().max()) + 1e-7
        torch.testing.assert_close(
            mine.grad,
            theirs.grad,
            rtol=0,
            atol=bound,
            msg=lambda text, path=path: f"{path}: {text}",
        )


def test_weights_are_dropped_while_it_trains() -> None:
    ours = make("gpt2", "clearhead", resid_pdrop=0.0, embd_pdrop=0.0).train()
    given = inputs("gpt2")
    with torch.no_grad():
        assert not torch.equal(ours(**given).logits, ours(**given).logits)
        matrix = ours(**given, output_attentions=True).attentions[0]
    # What is shown are the weights before dropout.
    torch.testing.assert_close(matrix.dense().sum(dim=-1), torch.ones(3, 4, TOKENS))


def test_no_matrix_is_made_unasked() -> None:
    ours = make("llama", "clearhead")
    made: list[object] = []
    matrix = attention.matrix_of
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(attention, "matrix_of", lambda problem: made.append(1) or matrix(problem))
        assert not ours(**inputs("llama")).attentions
        assert made == []
        assert len(ours(**inputs("llama"), output_attentions=True).attentions) == 2
        assert len(made) == 2


def test_the_matrices_of_a_generation() -> None:
    ours = make("llama", "clearhead")
    out = ours.generate(
        **inputs("llama"),
        max_new_tokens=3,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    shapes = [tuple(layers[0].shape) for layers in out.attentions]
    assert shapes == [(3, 4, TOKENS, TOKENS), (3, 4, 1, TOKENS + 1), (3, 4, 1, TOKENS + 2)]
    with torch.no_grad():
        whole = ours(out.sequences[:, :-1], output_attentions=True).attentions[0].dense()
    for layers in out.attentions:
        rows, keys = layers[0].shape[2:]
        torch.testing.assert_close(
            layers[0].dense(), whole[:, :, keys - rows : keys, :keys], rtol=1e-4, atol=1e-5
        )


def test_the_mask_is_described_and_never_made() -> None:
    """Half of what one mask of bools would take is never asked for at once."""
    tokens = 5000
    ours = make("llama", "clearhead", max_position_embeddings=8192, num_hidden_layers=1)
    ids = torch.randint(2, VOCABULARY, (2, tokens))
    valid = torch.ones_like(ids)
    valid[1, :7] = 0
    with LargestTensor() as memory, torch.no_grad():
        ours.model(ids, attention_mask=valid)
    assert memory.largest < tokens**2 / 2


def test_what_a_mask_says() -> None:
    seen: list[object] = []

    def keep(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(named["attention_mask"])

    ours = make("mistral", "clearhead")
    hook = ours.model.layers[0].self_attn.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        ours(**inputs("mistral", "left"))
    hook.remove()
    (mask,) = seen
    assert isinstance(mask, Described)
    assert mask.shape == (3, 1, TOKENS, TOKENS)
    assert mask.dtype == torch.bool
    words = mask.description.describe()
    assert words == "sliding_window(left=2, right=None) & causal() & padding(<valid 3 × 7>)"


MASKING: Any = masking_utils()
WINDOW = MASKING.sliding_window_overlay(3)
AROUND = MASKING.sliding_window_bidirectional_overlay(2)
REACH = "sliding_window(left=2, right=2)"


def of_row(sample: Any, head: Any, query: Any, key: Any) -> Any:
    """A mask function that nobody knows."""
    return key >= query - 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (None, "causal()"),
        (MASKING.bidirectional_mask_function, "full()"),
        (WINDOW, "sliding_window(left=2, right=None)"),
        (AROUND, REACH),
        (MASKING.or_masks(AROUND, MASKING.causal_mask_function), f"{REACH} | causal()"),
        (MASKING.or_masks(MASKING.bidirectional_mask_function, AROUND), "full()"),
        (MASKING.and_masks(AROUND, MASKING.bidirectional_mask_function), REACH),
        (of_row, None),
        (MASKING.or_masks(AROUND, of_row), None),
        (MASKING.and_masks(AROUND, of_row), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lengths", [(7, 7), (3, 7)])
def test_each_mask_function(function: Any, words: str | None, lengths: tuple[int, int]) -> None:
    """A described mask says what transformers works out; any other is its tensor."""
    asked: dict[str, Any] = {
        "batch_size": 2, "kv_length": 7, "mask_function": function, "allow_is_causal_skip": False,
    }  # fmt: skip
    places: dict[str, Any] = {"q_length": lengths[0], "q_offset": 7 - lengths[0], "device": "cpu"}
    mask = attention._mask(**asked, **places)
    assert isinstance(mask, Described) == (words is not None)
    expected = MASKING.sdpa_mask(
        **asked | {"mask_function": function or MASKING.causal_mask_function}, **places
    )
    if isinstance(mask, Described):
        assert mask.description.describe() == words
        # As transformers before 5.4 says where the queries are.
        older = attention._mask(**asked, cache_position=torch.arange(7)[7 - lengths[0] :])
        assert isinstance(older, Described)
        assert (older.shape, older.description.describe()) == (mask.shape, words)
        mask = mask.description.to_dense(*lengths)
    assert torch.equal(mask.expand(expected.shape), expected)


def test_a_step_that_may_be_compiled_has_a_tensor() -> None:
    step: dict[str, Any] = {"batch_size": 1, "kv_length": 7, "q_length": 1, "q_offset": 6}
    assert isinstance(attention._mask(**step, device="cpu"), Described)
    plain = attention._mask(**step, device="cpu", allow_is_causal_skip=False)
    assert type(plain) is Tensor
    # A mask begins at the first token where nothing else is said.
    mask = attention._mask(batch_size=1, kv_length=3, q_length=3)
    assert isinstance(mask, Described)
    assert torch.equal(mask.description.to_dense(3, 3), ch.causal().to_dense(3, 3))


def test_sequences_packed_into_a_row() -> None:
    """Positions that begin anew keep them apart, as they do in eager."""
    eager = make("llama")
    ours = same(eager, "clearhead")
    ids = torch.randint(2, VOCABULARY, (1, 11))
    places = torch.cat([torch.arange(4), torch.arange(7)])[None]
    with torch.no_grad():
        expected = eager(ids, position_ids=places, use_cache=False).logits
        alone = eager(ids[:, 4:]).logits
        actual = ours(ids, position_ids=places, use_cache=False).logits
    bound = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(expected[:, 4:], alone, rtol=0, atol=bound)
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


PADDED = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
BEGINNINGS: dict[str, list[list[int]]] = {
    "from 0": [[0, 1, 2, 3, 4]],
    "from 1": [[1, 2, 3, 4, 5]],
    "packed": [[0, 1, 0, 1, 2]],
    "padded, 0": [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],
    "padded, 1": [[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]],
    "padding alone": [[1, 1, 1, 1, 1], [0, 1, 2, 3, 4]],
    "with a gap": [[0, 1, 2, 9, 10]],
}
MIDDLES: dict[str, tuple[list[list[int]], int]] = {
    "contiguous": ([[5, 6, 7, 8, 9]], 5),
    "every other": ([[1, 3, 5, 7, 9]], 1),
    "zigzag": ([[3, 4, 5, 20, 21]], 3),
    "one row": ([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]], 4),
    "one token": ([[7]], 7),
}


@pytest.fixture
def of_ranks() -> Iterator[None]:
    """A process group; of two ranks, for whoever asks."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_world_size", lambda group=None: 2)
        yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("of_ranks")
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gpt2"])
@torch.no_grad()
def test_the_middle_of_a_text_on_a_rank_is_refused(name: str) -> None:
    ours = make(name, "clearhead")
    for given, first in MIDDLES.values():
        places = torch.tensor(given)
        assert_refused(
            lambda places=places: ours(
                torch.full_like(places, 5), position_ids=places, use_cache=False
            ),
            "model.positions",
            f"0 // {first}",
        )


@pytest.mark.usefixtures("of_ranks")
@torch.no_grad()
def test_whole_texts_on_each_rank_are_not() -> None:
    ours = make("llama", "clearhead")
    for given in BEGINNINGS.values():
        places = torch.tensor(given)
        valid = PADDED if len(places) == 2 else None
        ours(torch.full_like(places, 5), position_ids=places, attention_mask=valid, use_cache=False)
    ids = torch.randint(2, VOCABULARY, (2, 9))
    whole = ours(ids).logits
    cache = ours(ids[:, :5]).past_key_values
    places = torch.arange(5, 9)[None]
    later = ours(ids[:, 5:], position_ids=places, past_key_values=cache).logits
    torch.testing.assert_close(later, whole[:, 5:], rtol=0, atol=1e-4 * float(whole.abs().max()))
    ours.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)


@torch.no_grad()
def test_alone_a_text_may_begin_anywhere() -> None:
    ours, eager, ids = make("llama", "clearhead"), make("llama"), torch.full((1, 5), 5)
    places = torch.arange(3, 8)[None]
    expected = eager(ids, position_ids=places).logits
    bound = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(ours(ids, position_ids=places).logits, expected, rtol=0, atol=bound)


def test_a_mask_of_four_dimensions() -> None:
    eager = make("llama")
    ours = same(eager, "clearhead")
    ids = torch.randint(2, VOCABULARY, (1, TOKENS))
    visible = (torch.rand(1, 1, TOKENS, TOKENS) < 0.5) | torch.eye(TOKENS, dtype=torch.bool)
    added = torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~visible, torch.finfo().min)
    with torch.no_grad():
        expected = eager(ids, attention_mask=added).logits
        for mask in (visible, added):
            actual = ours(ids, attention_mask=mask).logits
            bound = 1e-4 * float(expected.abs().max())
            torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


# The compiler makes an instance of an autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled() -> None:
    ours = make("llama", "clearhead", num_hidden_layers=1)
    given = inputs("llama", "left")
    with torch.no_grad():
        expected = ours(**given).logits
        torch._dynamo.reset()
        compiled = torch.compile(ours, backend="eager")(**given).logits
    place = given["attention_mask"].bool()
    torch.testing.assert_close(compiled[place], expected[place], rtol=1e-4, atol=1e-4)


def test_an_argument_that_is_not_known_is_refused_by_name() -> None:
    ours = make("llama", "clearhead")
    with pytest.raises(
        UnsupportedError, match="what slopes=3 means to the attention of"
    ) as refusal:
        ours(**inputs("llama"), slopes=3)
    assert refusal.value.code == "transformers.argument"


def test_transformers_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[models\]'"):
        attention.register()


SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2}
OWN: list[tuple[str, dict[str, Any]]] = [
    ("Mpt", {"d_model": 16, "n_layers": 1, "n_heads": 2}),
    ("Longformer", {"num_hidden_layers": 1, "intermediate_size": 16, "attention_window": 4}),
    ("Falcon", {"num_hidden_layers": 1}),
    ("GPTJ", {"n_embd": 16, "n_layer": 1, "n_head": 2, "rotary_dim": 4}),
    ("GPTNeo", {"attention_types": [[["global"], 1]], "num_layers": 1, "num_heads": 2}),
    ("Git", {"num_hidden_layers": 1, "intermediate_size": 16}),
    ("Bloom", {"n_layer": 1}),
]


@pytest.mark.parametrize(("name", "sizes"), OWN)
def test_a_type_with_code_of_its_own_is_refused_when_it_is_made(
    name: str, sizes: dict[str, Any]
) -> None:
    config = getattr(transformers, f"{name}Config")(**SMALL | sizes)
    config._attn_implementation = "clearhead"
    with pytest.raises(ModelError, match=f"{name}Model cannot be made") as caught:
        getattr(transformers, f"{name}Model")(config)
    assert caught.value.code == "model.ignores-interface"


@pytest.mark.parametrize(
    "use",
    [
        lambda mask: torch.zeros(1, 1, 2, 3).masked_fill(mask, -1.0),
        lambda mask: mask < 0,
        lambda mask: ~mask,
        lambda mask: 1 - mask.float(),
        lambda mask: torch.where(mask, 0.0, 1.0),
        lambda mask: mask * 2,
        lambda mask: torch.add(torch.zeros(1, 2, 2, 3), mask),
    ],
)
def test_a_mask_refuses_every_use_that_it_does_not_know(use: Callable[[Tensor], object]) -> None:
    mask = Described(ch.causal(), (1, 1, 2, 3), torch.device("cpu"))
    with pytest.raises(ModelError, match=r"it works on the mask itself \(\w+\), so it keeps to"):
        use(mask)
    assert mask[..., :2].shape == (1, 1, 2, 2)
    assert torch.equal(mask[0, 0, 0], torch.tensor([True, True, False]))
    assert torch.equal(
        mask & torch.ones(1, dtype=torch.bool), ch.causal().to_dense(2, 3)[None, None]
    )
