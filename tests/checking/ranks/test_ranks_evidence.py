"""Ranks in one process: the whole is computed at once, and each rank is handed its part of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.attempts import CallSizes, drawn
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.hypotheses.recipe import RIGHT, Recipe, Setting
from clearhead.checking.ranks import on_ranks, rank_merging, rank_mutants
from clearhead.checking.ranks.rank_calls import Failure, RankCall, RankResult
from clearhead.checking.subject.subject import Subject

Attend = Callable[..., Tensor]


class OneProcess:
    """Ranks whose subject attends from all tokens to all: rows and gradients are cut into their parts."""

    own = True

    def __init__(self, subject: Subject, world: int) -> None:
        self.world = world

    def close(self) -> None:
        pass

    def run(self, subject: Subject, call: RankCall) -> list[RankResult]:
        """Each rank attends whole by itself where it has a seed of its own."""
        whole = [self._whole(subject, call, seed) for seed in call.seeds or (0,)]
        return [
            self._part(whole[rank % len(whole)], here) for rank, here in enumerate(call.positions)
        ]

    def _whole(self, subject: Subject, call: RankCall, seed: int) -> RankResult:
        leaves = [each.to(subject.dtype) for each in call.inputs[:3]]
        leaves = [each.requires_grad_(call.grad is not None) for each in leaves]
        options = {name: call.options[name] for name in ("dropout",) if name in call.options}
        torch.manual_seed(seed)
        try:
            outputs = [
                subject.run(*leaves, *call.inputs[3:], **options) for _ in range(call.repeats)
            ]
        except RuntimeError as error:
            return RankResult(failure=Failure(str(error)))
        grads: tuple[Tensor, ...] = ()
        if call.grad is not None:
            grads = torch.autograd.grad(outputs[0], leaves, call.grad.to(outputs[0]))
        return RankResult(tuple(outputs), grads)

    def _part(self, whole: RankResult, here: Tensor) -> RankResult:
        def part(tensor: Tensor) -> Tensor:
            return tensor.detach().double()[:, :, here]

        return replace(
            whole,
            outputs=tuple(map(self.rows, map(part, whole.outputs))),
            grads=tuple(part(each) for each in whole.grads if each is not None),
        )

    def rows(self, context: Tensor) -> Tensor:
        return context


class TwoShort(OneProcess):
    def rows(self, context: Tensor) -> Tensor:
        return context[:, :, :-2]


def checked(
    attend: Attend, world: int = 2, ranks: type[OneProcess] = OneProcess, **declared: Any
) -> Any:
    with mock.patch.object(on_ranks, "StartedRanks", ranks):
        return ch.check(attend, **{"takes": "qkv", "world": world, **declared})


def causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ch.attend(query, key, value, mask=ch.causal())


def only_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.dtype != torch.float32:
        raise RuntimeError("float32 alone")
    return causally(query, key, value)


def with_gradient(changed: Callable[[Tensor], Tensor]) -> Attend:
    """Causal attention whose keys get another gradient."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key = key * 1.0
        key.register_hook(changed)
        return causally(query, key, value)

    return attend


@pytest.mark.parametrize("attend", [causally, only_float32])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_definition_is_right(attend: Attend, world: int) -> None:
    """In the one precision in which it works as well."""
    report = checked(attend, world, causal=True)
    assert report.ok
    assert set(report.passed) >= {"gradients", "large scores", "the same at every run"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda grad: grad.bfloat16().to(grad.dtype), "the gradient of key is rounded to 16 bits"),
        (lambda grad: grad.sin() + 1, "the gradient of key is not the sum of what the ranks give"),
    ],
)
def test_gradients_of_no_known_mistake(changed: Callable[[Tensor], Tensor], sentence: str) -> None:
    (found,) = checked(with_gradient(changed), causal=True).findings
    assert found.code == "grad.wrong"
    assert found.sentence.startswith(sentence)
    assert "that of the key is off by" in found.measured


def test_rows_that_are_missing() -> None:
    (found,) = checked(causally, ranks=TwoShort, causal=True).findings
    assert found.sentence.startswith("rank 0 has 10 queries and gives 8")
    assert found.measured == "at 20 tokens"


def dropping(alike: str) -> Attend:
    """Attention with dropout: drawn for all queries, for those of one of two ranks, or by a seed for all of them."""

    def attend(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        if not dropout:
            return weights @ value
        rows = weights.unflatten(2, (2, -1))[:, :, 0] if alike else weights
        generator = torch.Generator().manual_seed(3 if alike == "always" else torch.initial_seed())
        stays = torch.rand(rows.shape, generator=generator) >= dropout
        stays = torch.cat([stays, stays], 2) if alike else stays
        return weights * stays / (1 - dropout) @ value

    return attend


def test_dropout_of_one_rank_is_like_that_of_none() -> None:
    report = checked(dropping(""), 1, causal=False, dropout=0.4)
    assert report.ok
    assert "dropout" in report.passed


@pytest.mark.parametrize("alike", ["", "always", "by seed"])
def test_dropout_of_ranks_with_seeds_of_their_own(alike: str) -> None:
    report = checked(dropping(alike), causal=False, dropout=0.4)
    assert [each.code for each in report.findings] == ["ranks.dropout-alike"] * (alike == "always")
    assert ("dropout" in report.passed) is (alike != "always")
    told = any(each.startswith("with the same seed on every rank") for each in report.told)
    assert told is (alike == "by seed")


CONTRACTS: tuple[dict[str, Any], ...] = (
    {"causal": True},
    {"causal": False},
    {"causal": True, "window": (4, 0)},
    {"causal": True, "num_heads": 12, "num_kv_heads": 3},
    {"causal": True, "rope": {"base": 10000.0, "layout": "half"}},
)
WORLDS = ((2, "contiguous"), (3, "zigzag"), (2, "balanced"), (4, "zigzag"))


def following(recipe: Recipe, contract: Contract) -> Attend:
    """Attention by a recipe, on all tokens."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, heads, tokens, width = query.shape
        at = Setting(
            contract, batch, heads, key.shape[1], tokens, tokens, width, value.shape[-1], mask
        )
        return recipe.end(recipe.heads(query, key, value, at), at)

    return attend


@settings(max_examples=15)
@given(
    st.sampled_from(rank_mutants.RANKS),
    st.sampled_from(CONTRACTS),
    st.sampled_from(WORLDS),
    st.booleans(),
)
def test_every_mistake_is_named_where_it_is_one(
    mutant: Any, declared: dict[str, Any], world: tuple[int, str], masked: bool
) -> None:
    contract = Contract(
        **{name: each for name, each in declared.items() if not name.startswith("num")},
        world=world[0],
        layout=world[1],
    )
    if not mutant.needs(contract) or (mutant.way == "given" and not masked):
        return
    attend = following(mutant.applied(RIGHT).styled("zero"), contract)
    right = following(RIGHT.styled("zero"), contract)
    h, kv = declared.get("num_heads", 4), declared.get("num_kv_heads", 4)
    calls = [
        drawn(CallSizes("", 2, h, kv, tokens, tokens, 6, 6), masked, 0)
        for tokens in (10 * world[0], 23)
    ]
    try:
        same = all(distance(attend(*each), right(*each)) < 1e-9 for each in calls)
    except RuntimeError as error:
        assert "no key is left" in str(error)  # noqa: PT017 — of a rank that has less than a block
        return
    takes = "qkv,mask" if masked else "qkv"
    report = checked(attend, world[0], layout=world[1], takes=takes, **declared)
    assert report.ok is same
    codes = [code for each in report.findings for code in (each.code, *each.also)]
    assert same or mutant.code in codes


def text(here: rank_mutants.Placement) -> Tensor:
    return torch.arange(len(here.row))


def every_key(here: rank_mutants.Placement) -> Tensor:
    return here.row >= 0


# The same functions as those of the mistakes, of places that are right.
NONE: dict[str, dict[str, Any]] = {
    "places": {"visible": rank_mutants._by(text, text)},
    "given": {"visible": rank_mutants._given(text, text)},
    "kept": {"visible": rank_mutants._dropped(every_key)},
    "rotated": {"rotate": rank_mutants._rotated_at(text, text)},
    "merged": {"around": rank_merging._partial_in(torch.float64)},
    "sent": {"around": rank_merging._sent_in(torch.float64)},
    "rounded": {"arrange": rank_merging._all_in(torch.float64)},
}


@pytest.mark.parametrize("changes", NONE.values(), ids=NONE)
@given(st.sampled_from(CONTRACTS), st.sampled_from(WORLDS), st.booleans())
@settings(max_examples=10)
def test_a_mistake_that_changes_nothing_is_the_definition(
    changes: dict[str, Any], declared: dict[str, Any], world: tuple[int, str], masked: bool
) -> None:
    named = {name: each for name, each in declared.items() if not name.startswith("num")}
    contract = Contract(**named, world=world[0], layout=world[1])
    if "rotate" in changes and contract.rope is None:
        return
    sizes = CallSizes("", 2, 4, 2, 13, 13, 6, 6)
    query, key, value, mask = drawn(sizes, True, 0)
    at = sizes.setting(contract, mask if masked or changes is NONE["given"] else None)
    recipe = replace(RIGHT, **changes)
    expected = RIGHT.heads(query, key, value, at)
    assert distance(recipe.heads(query, key, value, at), expected) < 1e-12
