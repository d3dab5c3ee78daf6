"""Edits of models of transformers, held against the same edit written by hand in eager attention."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

import clearhead as ch
from clearhead.editing.layer_edit import LayerEdit
from clearhead.integrations import attention as ours
from tests.editing.by_hand import by_hand, changing, edited
from tests.integrations.models import KINDS, inputs, make, same
from tests.tolerances import assert_no_worse

HEAD, QUERY, KEY, FACTOR = 1, slice(3, 5), [0, 2], 0.4


def hidden(scores: Tensor, queries: Any = slice(None), heads: Any = HEAD) -> Tensor:
    scores = scores.clone()
    for key in KEY:
        scores[:, heads, queries, key] = torch.finfo(scores.dtype).min
    return scores


def scaled(scores: Tensor) -> Tensor:
    added = torch.zeros_like(scores)
    added[:, HEAD, :, KEY] = torch.tensor(FACTOR, dtype=scores.dtype).log()
    return scores + added


def ablated(context: Tensor) -> Tensor:
    keep = torch.ones(context.shape[1], dtype=context.dtype)
    keep[HEAD] = 0
    return context * keep[:, None, None]


class Case(NamedTuple):
    """An edit, and the same by hand."""

    edit: Callable[[LayerEdit], None]
    hand: dict[str, Callable[[Tensor], Tensor]]


CASES: dict[str, Case] = {
    "ablate": Case(lambda layer: layer.heads[HEAD].ablate(), {"context": ablated}),
    "hide from some": Case(
        lambda layer: layer.heads[HEAD].hide(query=QUERY, key=KEY),
        {"scores": lambda scores: hidden(scores, QUERY)},
    ),
    "hide from all heads": Case(
        lambda layer: layer.hide(query=[3, 4], key=torch.tensor([True, False, True])),
        {"scores": lambda scores: hidden(scores, QUERY, slice(None))},
    ),
    "scale": Case(lambda layer: layer.heads[HEAD].scale(key=KEY, by=FACTOR), {"scores": scaled}),
}


def result(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def run(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The output, and the gradients of all parameters in one row."""
    output = result(model(**given, use_cache=False))
    model.zero_grad()
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    grads = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return output.detach(), torch.cat(grads)


@pytest.mark.parametrize("name", KINDS)
def test_an_edit_is_that_by_hand(name: str) -> None:
    """Every edit of every model, every implementation of it, and every pair of the two among the models."""
    ours.register()
    eager = make(name).double()
    models = {each: same(eager, each) for each in (*KINDS[name].implementations, "clearhead")}
    theirs, given, layer = by_hand(eager), inputs(name), 1
    plain = run(theirs, given)
    before = {implementation: run(model, given) for implementation, model in models.items()}
    start = list(KINDS).index(name)
    for case, implementation in zip(CASES, islice(cycle(models), start, None), strict=False):
        # As near as the model and our kernels come without the edit: some take the softmax in float32.
        others = before[implementation], before["clearhead"]
        with edited(changing(layer, **CASES[case].hand)):
            expected = run(theirs, given)
        with ch.edit(models[implementation]) as edit:
            CASES[case].edit(edit[layer])
            found = run(models[implementation], given)
        for each in range(2):
            off = max((other[each] - plain[each] for other in others), key=lambda x: x.abs().max())
            assert_no_worse(found[each], expected[each], expected[each] + off)
            assert float((expected[each] - plain[each]).abs().max()) > 1e-4, (case, implementation)
    for implementation, model in models.items():
        assert all(map(torch.equal, run(model, given), before[implementation])), implementation


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padded_queries_keep_what_the_model_gives_them(implementation: str, side: str) -> None:
    model = make("llama", implementation)
    given = inputs("llama", side)
    empty = given["attention_mask"] == 0
    before = model.model(**given).last_hidden_state
    with ch.edit(model) as edit:
        edit[1].scale(key=[0, 1], by=0.5)
        found = model.model(**given).last_hidden_state
    assert not found.isnan().any()
    if side == "left":
        assert torch.equal(found[empty], before[empty])
    assert not torch.equal(found[~empty], before[~empty])


STEPPED = [
    *(("gpt2", "sdpa", each) for each in ("dynamic", "static")),
    *(("llama", "eager", each) for each in ("dynamic", "static")),
    *(("mistral", "sdpa", each) for each in ("dynamic", "static")),
    *(("gemma3", "eager", each) for each in ("dynamic", "static")),
    ("gpt_oss", "eager", "dynamic"),
    ("deepseek_v3", "sdpa", "dynamic"),
    ("bart", "sdpa", "dynamic"),
    ("llama", "clearhead", "dynamic"),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "implementation", "cache"), STEPPED)
def test_positions_go_on_through_a_cache(name: str, implementation: str, cache: str) -> None:
    """A text token by token is the text at once: of a window only the last keys are there. Two of three
    edits for each, and each of them with every cache."""
    ours.register()
    model = make(name, implementation).double()
    given = inputs(name)
    text = "decoder_input_ids" if KINDS[name].reads_twice else "input_ids"
    ids = given.pop(text)
    given.pop("attention_mask")

    def by_steps() -> Tensor:
        past: Any = None
        if cache == "static":
            past = transformers.StaticCache(model.config, max_cache_len=12)
        steps = []
        for piece in ids.split([2, 2, 1, 1, 1], dim=1):
            output = model(**given, **{text: piece}, past_key_values=past, use_cache=True)
            past = output.past_key_values
            steps.append(output.logits)
        return torch.cat(steps, dim=1)

    def at_once() -> Tensor:
        return result(model(**given, **{text: ids}, use_cache=False))

    plain, before = by_steps(), at_once()
    start = STEPPED.index((name, implementation, cache))
    for case in islice(cycle(("ablate", "hide from some", "scale")), start % 3, start % 3 + 2):
        with ch.edit(model) as edit:
            CASES[case].edit(edit[-1])
            steps, whole = by_steps(), at_once()
        assert float((whole - before).abs().max()) > 1e-5, case
        # As near as the cache comes without the edit.
        assert_no_worse(steps, whole, whole + (plain - before))


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "clearhead"])
def test_attentions_that_a_model_returns_are_those_of_the_edit(implementation: str) -> None:
    ours.register()
    model, given = make("llama", implementation), inputs("llama")
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[1].heads[HEAD].hide(key=KEY)
        returned = model(**given, output_attentions=True).attentions[1]
    assert isinstance(returned, Tensor) == (implementation == "eager")
    weights = returned if isinstance(returned, Tensor) else returned.dense()
    torch.testing.assert_close(weights, seen[1].dense())
    assert bool((weights[:, HEAD][..., KEY] == 0).all())


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt_oss", "t5", "gemma2"])
def test_patterns_of_another_run_are_watched(name: str) -> None:
    """Sinks, biases and softcaps are those of the run that the patterns are of, head by head."""
    model, given = make(name, "eager"), inputs(name)
    text = "decoder_input_ids" if KINDS[name].reads_twice else "input_ids"
    with ch.watch(model) as plain:
        model(**given)
    with ch.watch(model) as other:
        model(**given | {text: given[text].flip(1)})
    weights = plain[0].dense()
    own = ch.AttentionMatrix.from_weights(weights / weights.sum(-1, keepdim=True))
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[0].heads[0].patterns_from(own)
        edit[-1].heads[HEAD].patterns_from(other)
        model(**given)
    assert not torch.allclose(plain[-1].dense()[:, HEAD], other[-1].dense()[:, HEAD])
    torch.testing.assert_close(seen[-1].dense()[:, HEAD], other[-1].dense()[:, HEAD])
    torch.testing.assert_close(seen[0].dense()[:, 0], own.dense()[:, 0])
    torch.testing.assert_close(seen[0].dense()[:, 1:], weights[:, 1:])


@torch.no_grad()
def test_the_patterns_of_each_step_are_those_of_the_same_step() -> None:
    """As in prompt-to-prompt: cross-attention that is called again on another source of as many tokens."""
    layer = ch.MultiHeadAttention(12, num_heads=3, context_dim=8)
    x, first, second = torch.randn(1, 6, 12), *torch.randn(2, 1, 5, 8)

    def denoise(source: Tensor) -> Tensor:
        y = x
        for _ in range(3):
            y = y + layer(y, source)
        return y

    with ch.watch(layer) as seen:
        denoise(first)
    with ch.edit(layer) as edit, ch.watch(layer) as found:
        edit[0].patterns_from(seen)
        denoise(second)
    for mine, theirs in zip(found.calls(0), seen.calls(0), strict=True):
        torch.testing.assert_close(mine.dense(), theirs.dense())
