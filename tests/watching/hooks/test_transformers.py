"""Models of transformers under watch: as they ran, and with the weights that they give themselves."""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import clearhead as ch
from clearhead.errors import UnsupportedError, WatchError
from clearhead.watching.hooks import tap
from tests.integrations.models import (
    KINDS,
    TOKENS,
    VOCABULARY,
    attentions,
    inputs,
    make,
    same,
)
from tests.tolerances import assert_no_worse

SIDES = ("none", "left", "right")
NEW = 4
INTERFACE: Any = transformers.AttentionInterface


def looks_up() -> Any:
    """The method by which models look their function up."""
    return vars(INTERFACE)["get_interface"]


ORIGINAL = (looks_up(),)


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    yield
    assert looks_up() is ORIGINAL[0]


def dealt(name: str) -> Iterator[str]:
    """The implementations of a model over and over, from the next one on with each model."""
    start = list(KINDS).index(name)
    return islice(cycle(KINDS[name].implementations), start % 2, None)


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


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_what_is_seen_are_the_weights_of_eager(name: str) -> None:
    """Every side of every model, every implementation of it, and every pair of the two among the models."""
    eager = make(name)
    exact_model = copy.deepcopy(eager).double()
    models = {each: same(eager, each) for each in KINDS[name].implementations}
    for side, implementation in zip(SIDES, dealt(name), strict=False):
        given, model = inputs(name, side), models[implementation]
        with ch.watch(model) as seen:
            watched = model(**given)
        assert torch.equal(result(watched), result(model(**given))), (side, implementation)
        modules = dict(model.named_modules())
        assert all("Attention" in type(modules[path]).__name__ for path in seen)
        with ch.watch(exact_model) as exactly:
            exact_model(**given)
        theirs = attentions(eager(**given, output_attentions=True))
        found, exact = ([each[path].dense() for path in each] for each in (seen, exactly))
        assert_are_those_of_eager(name, found, exact, theirs, given["attention_mask"])


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
    """The text with which a model sees at once what it read step by step."""
    if KINDS[name].reads_twice:
        return given | {"decoder_input_ids": made[:, :-1]}
    real = F.pad(given["attention_mask"], (0, NEW - 1), value=1)
    places = (real.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": made[:, :-1], "attention_mask": real, "position_ids": places}


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.causal])
@torch.no_grad()
def test_generation_with_a_cache(name: str) -> None:
    """The rows of all steps are the matrix that eager has of the whole text at once."""
    eager = make(name)
    exact_model = copy.deepcopy(eager).double()
    for side, implementation in zip(("left", "none"), dealt(name), strict=False):
        given = inputs(name, side)
        if KINDS[name].reads_twice:
            del given["decoder_input_ids"]
        model = same(eager, implementation)
        options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        with ch.watch(model) as seen:
            made = model.generate(**given, **options)
        assert torch.equal(made, model.generate(**given, **options)), (side, implementation)
        whole = text_of(name, given, made)
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
    model = same(eager, implementation)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        alone = model(**given).logits
        with ch.watch(model) as seen:
            watched = model(**given).logits
        theirs = eager(**given, output_attentions=True).attentions
    assert torch.equal(watched, alone)
    assert {seen[path].problem.query.dtype for path in seen} == {torch.bfloat16}
    exact = same(eager, "eager").double()
    reference = torch.stack(exact(**given, output_attentions=True).attentions).double()
    plain = torch.stack(theirs).float()
    # A mask that is read wrongly moves weights by more.
    assert float((plain - reference).abs().max()) < 0.1
    assert_no_worse(torch.stack([seen[path].dense() for path in seen]), reference, plain)


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


def test_a_function_that_fails_is_not_running_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **more: object) -> None:
        raise ZeroDivisionError

    model = of_somebody(monkeypatch, fails)
    monkeypatch.setitem(INTERFACE._global_mapping, "sdpa", fails)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ZeroDivisionError), ch.watch(model), torch.no_grad():
        model(torch.randint(2, VOCABULARY, (1, TOKENS)))
    assert not tap.is_guarded()


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
        assert looks_up() is theirs
        assert len(seen) == 2
        assert calls == ["sdpa", "sdpa"]
        assert torch.equal(model(**given).logits, alone)
        assert {len(seen.calls(path)) for path in seen} == {1}
    finally:
        INTERFACE.get_interface = ORIGINAL[0]
