"""Heads that attend anew: the queries that change, and the random numbers that do not."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.editing import rescoring
from clearhead.editing.rescoring import Rescoring, attended_anew, number_of_queries, touched
from tests.integrations.models import inputs, make

LEN = 7


def drawn(*heads: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, each, LEN, 4, dtype=torch.float64) for each in heads)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("bias", [None, ch.alibi(4)])
@pytest.mark.parametrize("mask", [None, ch.causal(), ch.padding([5, 7])])
@pytest.mark.parametrize("portion", [1 << 22, 40])
@pytest.mark.parametrize("first", [0, 2])
def test_queries_that_lose_nothing_keep_their_bits(
    monkeypatch: pytest.MonkeyPatch, mask: ch.Mask | None, bias: object, portion: int, first: int
) -> None:
    monkeypatch.setattr(rescoring, "PORTION", portion)
    call = make_problem(*drawn(4, 2, 2), mask=mask, bias=bias)  # pyright: ignore[reportArgumentType]
    shown = torch.ones(LEN, LEN, dtype=torch.bool)
    shown[first:5, [1, 4]] = False
    visible = torch.ones(LEN, LEN, dtype=torch.bool) if mask is None else mask.to_dense(LEN, LEN)
    gone = (visible & ~shown).expand(2, 4, LEN, LEN)
    changed = touched(call, Rescoring(ch.dense(shown)))
    assert torch.equal(changed.expand(2, 4, LEN), gone.any(-1))
    assert int(number_of_queries(call, changed)) == int(gone.any(-1).sum())
    own = torch.randn(2, 4, LEN, 4, dtype=torch.float64)
    both = ch.dense(shown) if mask is None else mask & ch.dense(shown)
    edited = call.replace(mask=both)
    found = attended_anew(edited, changed, own)
    expected = ch.attend(*(call.query, call.key, call.value), mask=both, bias=call.bias)
    torch.testing.assert_close(found, torch.where(gone.any(-1)[..., None], expected, own))
    assert torch.equal(found[~gone.any(-1)], own[~gone.any(-1)])


def test_a_key_that_the_edit_hides_may_hold_anything() -> None:
    query, key, value = drawn(4, 2, 2)
    shown = torch.arange(LEN) != 1
    call = make_problem(query, key, value, mask=ch.dense(shown.expand(LEN, LEN)))
    rows, own = torch.ones(1, 1, LEN, dtype=torch.bool), torch.zeros_like(query)
    expected = attended_anew(call, rows, own)
    value = value.masked_fill(~shown[:, None], torch.nan)
    torch.testing.assert_close(attended_anew(call.replace(value=value), rows, own), expected)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_dropout_of_what_is_not_edited_is_what_it_was(implementation: str) -> None:
    model = make("llama", implementation).train()
    for each in model.model.layers:
        each.self_attn.attention_dropout = 0.3
    given = inputs("llama")
    contexts: list[Tensor] = []
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
        lambda _, args: contexts.append(args[0].detach())
    )

    def run() -> float:
        torch.manual_seed(3)
        model(**given)
        return float(torch.rand(()))

    after = run()
    for name in ("hide", "scale"):
        for _ in range(2):
            with ch.edit(model) as edit:
                if name == "hide":
                    edit[0].heads[0].hide(key=0)
                else:
                    edit[0].heads[0].scale(key=0, by=0.5)
                assert run() == after
    width = contexts[0].shape[-1] // model.config.num_attention_heads
    for each in contexts[1:]:
        assert torch.equal(each[..., width:], contexts[0][..., width:])
        assert not torch.equal(each[..., :width], contexts[0][..., :width])
    assert torch.equal(contexts[1], contexts[2])
