"""The ids of the tokens, from the embedding of the model or as an argument."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.errors import (
    WatchError,
)
from clearhead.watching.continuing import fingerprints
from clearhead.watching.token_ids import TokenIds
from clearhead.watching.watch import watch
from tests.watching.models import IDS, Language, Stack, inputs


@pytest.mark.parametrize("steps", [[7], [4, 1, 1, 1], [1, 2, 4]])
@pytest.mark.parametrize("given", [False, True])
def test_the_ids_of_the_tokens_are_found(steps: list[int], given: bool) -> None:
    model = Language()
    with torch.no_grad(), watch(model) as matrices, watch(
        model, keep="summary", tokens=IDS if given else None
    ) as seen:  # fmt: skip
        for part in IDS.split(steps, dim=1):
            model(part)
    at = 0
    assert len(seen.calls("attention")) == len(steps)
    for summary, matrix, count in zip(
        seen.calls("attention"), matrices.calls("attention"), steps, strict=True
    ):
        at += count
        expected = ch.roles(matrix, IDS[:, :at])
        assert summary.roles is not None
        assert summary.roles.induction is not None
        assert expected.induction is not None
        torch.testing.assert_close(summary.roles.induction, expected.induction)


def test_ids_behind_a_cache_that_was_filled_before_are_unknown() -> None:
    """From the first question on: those of an earlier question are not taken for it."""
    model = Language()
    with torch.no_grad():
        model(IDS[:, :4])
        prompt = model.past
        with watch(model, keep="summary") as seen:
            for question in (IDS[:, 4:6], IDS[:, 5:7], IDS[:, 3:5]):
                model.past = prompt
                model(question)
    assert [call.roles and call.roles.duplicate for call in seen.calls("attention")] == [None] * 3


@pytest.mark.parametrize(("rows", "keys"), [([1, 1], 5), ([0, 1], 3)])
def test_ids_where_rows_are_taken_anew_or_keys_were_cut_off(rows: list[int], keys: int) -> None:
    """As in a beam search, and as rejected tokens are in speculative decoding."""
    model = Language()
    with torch.no_grad(), watch(model) as matrices, watch(model, keep="summary") as seen:
        model(IDS[:, :5])
        assert model.past is not None
        model.past = model.past[rows, :, :keys]
        model(IDS[:, 5:7])
    read = torch.cat([IDS[rows, :keys], IDS[:, 5:7]], dim=1)
    expected = ch.roles(matrices.calls("attention")[1], read).duplicate
    roles = seen.calls("attention")[1].roles
    assert roles is not None
    assert expected is not None
    torch.testing.assert_close(roles.duplicate, expected)


def test_ids_of_a_run_before_are_not_taken() -> None:
    model = Language()
    with torch.no_grad(), watch(model, keep="summary") as seen:
        model(IDS[:, :3])
        model.past = None
        model(IDS)
        model.past = None
        model.attention(*inputs(2, 1, query_len=7, kv_len=7))
        model.past = torch.zeros(2, 1, 100, 6)  # a cache of ids that nobody saw
        model(IDS[:, :3])
    duplicates = [call.roles and call.roles.duplicate for call in seen.calls("attention")]
    assert [each is None for each in duplicates] == [False, False, True, True]


def test_ids_that_are_not_those_of_the_keys_are_unknown() -> None:
    """A cache that somebody else filled, longer or as long, and a token that is put before the text."""
    model = Language()
    with torch.no_grad(), watch(model, keep="summary") as seen:
        for length in (100, 3):
            model.past = None
            model(IDS[:, :3])
            model.past = torch.zeros(2, 1, length, 6)
            model(IDS[:, 3:5])
    duplicates = [call.roles and call.roles.duplicate for call in seen.calls("attention")]
    assert [each is None for each in duplicates] == [False, True, False, True]
    model.past = None
    model.embeddings.register_forward_hook(lambda *given: torch.cat([given[2][:, :1], given[2]], 1))
    with torch.no_grad(), watch(model, keep="summary") as seen:
        model(IDS)
    [call] = seen.calls("attention")
    assert call.kv_len == IDS.shape[1] + 1
    assert call.roles is not None
    assert call.roles.duplicate is None


@pytest.mark.parametrize(
    "tokens", [torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 7, dtype=torch.int64)]
)
def test_ids_that_do_not_fit_are_refused(tokens: Tensor) -> None:
    x = inputs(2, 1, query_len=7)[0]
    text = (
        "[watch.tokens] tokens has shape (batch, len) = "
        f"{tuple(tokens.shape)}; the attention of first has batch=2 and kv_len=7."
    )
    with pytest.raises(WatchError, match=f"^{re.escape(text)}$"), watch(
        model := Stack(), keep="summary", tokens=tokens
    ):  # fmt: skip
        model(x)


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("more", [{}, {"cache_implementation": "static"}])
def test_rows_that_have_ended_do_not_count(pad: int, more: Any) -> None:
    """Where padding is the token that ends a text, the first of them is a token."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.4, pad_token_id=pad, eos_token_id=[2, 5, 6],
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 12, (6, 5))
    mask = torch.ones_like(ids)
    ids[0, :2], mask[0, :2] = pad, 0
    out, rows = ids, []
    keeps: tuple[Any, ...] = ("matrix", "summary", "total")
    for keep in keeps:
        with torch.no_grad(), watch(model, keep=keep) as seen:
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=7, do_sample=False, **more
            )
        rows.append(seen.table()[0])
    ends = torch.isin(out[:, 5:-1], torch.tensor([2, 5, 6])).int()
    after = ends.cumsum(1) - ends > 0
    assert after.any()
    for row in rows:
        assert row.queries == int(mask.sum()) + int((~after).sum())
        assert row.entropy == pytest.approx(rows[0].entropy, abs=1e-4)


def test_a_prompt_of_one_token_begins_anew() -> None:
    model: Any = Language()
    model.config = SimpleNamespace(eos_token_id=3, pad_token_id=3)
    ended = torch.full((2, 1), 3)
    with torch.no_grad(), watch(model, keep="total") as seen:
        model(ended)
    assert seen[0].queries == 2


def test_the_first_token_is_looked_for_in_a_call_that_goes_on_alone() -> None:
    ids = TokenIds(nn.Identity(), None)
    key = torch.randn(2, 1, 5, 3)
    whole = make_problem(key, key, key, mask=ch.causal())
    assert ids.first_of(whole, "whole", fingerprints(key)) is None
    mask = ch.causal() & ch.padding(torch.tensor([[True] * 5, [False, False, True, True, True]]))
    step = make_problem(key[:, :, -2:], key, key, mask=mask)
    first = ids.first_of(step, "step", fingerprints(key))
    assert first is not None
    assert first.tolist() == [[0], [2]]
