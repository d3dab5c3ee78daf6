"""The roles of heads: held against the definitions, and against a model that must have it."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.errors import ArgumentError
from clearhead.matrix.head_numbers import Roles
from clearhead.matrix.roles import evenness, roles
from tests.refusals import assert_refused, refusals
from tests.tolerances import assert_no_worse

BATCH, HEADS, DIM = 2, 4, 3
RECENT = 8
NAMES = ("previous", "first", "duplicate", "induction")

Options = dict[str, Any]


def visible_pairs(matrix: AttentionMatrix) -> Tensor:
    """The visible pairs, (batch, num_heads, query_len, kv_len)."""
    problem = matrix.problem
    shape = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
    visible, bias = problem.visible(), problem.bias_block()
    shown = torch.ones(shape, dtype=torch.bool)
    shown = shown if visible is None else shown & visible
    return shown if bias is None else shown & (bias != -torch.inf)


def by_definition(
    matrix: AttentionMatrix, tokens: Tensor | None = None, counts: Tensor | None = None
) -> dict[str, Tensor]:
    """Every role, and the evenness, from the whole matrix, query by query; tokens are (batch, kv_len)."""
    weights, visible = eager.compute(matrix.problem).weights, visible_pairs(matrix)
    batch, heads, query_len, kv_len = weights.shape
    counts = torch.ones(batch, query_len, dtype=torch.bool) if counts is None else counts
    names = (*NAMES, "evenness")
    found = {name: torch.zeros(batch, heads, dtype=weights.dtype) for name in names}
    for b, h in torch.cartesian_prod(torch.arange(batch), torch.arange(heads)).tolist():
        shares: dict[str, list[Tensor]] = {name: [] for name in names}
        counting = [i for i in range(query_len) if counts[b, i]]
        anywhere = visible[b, :, counting].flatten(0, 1).any(dim=0).nonzero().flatten().tolist()
        for i in counting:
            place = i + kv_len - query_len
            seen = set(visible[b, h, i].nonzero().flatten().tolist())
            targets = {
                "previous": {place - 1},
                "first": set(anywhere[:1]),
            }
            if tokens is not None:
                same = [j for j in range(place) if tokens[b, j] == tokens[b, place]][-RECENT:]
                targets["duplicate"] = set(same)
                targets["induction"] = {j + 1 for j in same if j in seen}
            for name, some in targets.items():
                hit = sorted(some & seen)
                if hit and len(hit) < len(seen):
                    shares[name].append(weights[b, h, i, hit].sum())
            if len(seen) > 1:
                row = weights[b, h, i, sorted(seen)]
                total = row.sum()
                even = torch.tensor(len(seen), dtype=row.dtype).log()
                entropy = torch.special.entr(row / total).sum() if total > 0 else total
                shares["evenness"].append(total * entropy / even)
        for name, each in shares.items():
            if each:
                found[name][b, h] = torch.stack(each).mean()
    return found


def assert_by_definition(matrix: AttentionMatrix, **given: Any) -> None:
    """Hold the roles of a matrix in float64 to the definition."""
    problem = matrix.problem
    tokens, counts = (
        None if each is None else torch.atleast_2d(each).expand(problem.batch, -1)
        for each in (given.get("tokens"), given.get("queries"))
    )
    found, expected = roles(matrix, **given), by_definition(matrix, tokens, counts)
    real = None if matrix.real is None else torch.atleast_2d(matrix.real).expand(problem.batch, -1)
    expected["evenness"] = by_definition(matrix, counts=real)["evenness"]
    # Entropy is a difference of numbers as large as the scores, and is as wrong as their rounding.
    scores = eager.compute(problem).scaled_scores.abs()
    largest = 1 + (float(scores.max()) if scores.numel() else 0.0)
    allowed = 8 * largest * torch.finfo(torch.float64).eps
    for name, value in expected.items():
        actual = evenness(matrix) if name == "evenness" else getattr(found, name)
        if tokens is None and name in ("duplicate", "induction"):
            assert actual is None
        else:
            torch.testing.assert_close(actual, value, rtol=0, atol=allowed)


@st.composite
def questions(draw: st.DrawFn) -> tuple[AttentionMatrix, Options]:
    """A matrix of any kind, and tokens and queries for it."""
    kv_len = draw(st.sampled_from([1, 2, 5, 13]))
    query_len = draw(st.sampled_from([kv_len, kv_len, min(3, kv_len), 1]))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    scattered = torch.rand(BATCH, HEADS, query_len, kv_len) < 0.6
    bias = torch.randn(BATCH, 1, query_len, kv_len, dtype=torch.float64)
    lengths = [kv_len, draw(st.integers(0, kv_len))]
    options: list[Options] = [
        {},
        {"mask": ch.causal()},
        {"mask": ch.sliding_window(left=3, right=1)},
        {"mask": ch.causal() & ch.padding(lengths, side="left")},
        {"mask": ch.causal() & ch.padding(lengths, side="right")},
        {"mask": ch.causal() & ch.padding(torch.rand(BATCH, kv_len) < 0.7)},
        {"mask": ch.causal() & ch.documents([j // 3 for j in range(kv_len)])},
        {"mask": scattered},
        {"mask": ch.causal(), "bias": bias.masked_fill(bias > 1, -torch.inf)},
        {"bias": bias.masked_fill(bias > 0, -torch.inf)},
        {"mask": ch.causal(), "bias": ch.alibi(HEADS)},
        {"mask": scattered, "sinks": torch.randn(HEADS).double()},
    ]
    chosen = draw(st.sampled_from(range(len(options))))
    if chosen == 6:
        query_len = kv_len
    matrix = AttentionMatrix(
        3 * torch.randn(BATCH, HEADS, query_len, DIM, dtype=torch.float64),
        torch.randn(BATCH, kv_heads, kv_len, DIM, dtype=torch.float64),
        **options[chosen],
    )
    given: Options = {}
    leading = draw(st.sampled_from([(), (BATCH,)]))
    if draw(st.booleans()):
        given["tokens"] = torch.randint(draw(st.sampled_from([1, 2, 4])), (*leading, kv_len))
    if draw(st.booleans()):
        given["queries"] = torch.rand(*leading, query_len) < 0.6
    return matrix, given


@given(questions())
def test_roles_are_what_their_definitions_say(question: tuple[AttentionMatrix, Options]) -> None:
    matrix, given = question
    assert_by_definition(matrix, **given)


def test_float32_loses_no_more_than_the_whole_matrix_does() -> None:
    query, key = torch.randn(BATCH, HEADS, 61, 7), torch.randn(BATCH, 2, 61, 7)
    tokens = torch.randint(11, (BATCH, 61))
    matrix, exact = (
        AttentionMatrix(query.to(dtype), key.to(dtype), mask=ch.causal())
        for dtype in (torch.float32, torch.float64)
    )
    found = roles(matrix, tokens)
    plain, truth = by_definition(matrix, tokens), by_definition(exact, tokens)
    for name in NAMES:
        assert_no_worse(getattr(found, name), truth[name], plain[name], what=name)
    assert_no_worse(evenness(matrix), truth["evenness"], plain["evenness"], what="evenness")


class Looking(nn.Module):
    """Causal attention with sharp weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, mask=ch.causal(), scale=20.0)


class TwoLayers(nn.Module):
    """Attention only, with weights written down, so that layer 2 can only be an induction head.

    A token knows who it is and where it is. The first head of layer 1 asks for the place before
    and hears who is there. Layer 2 asks for who it is itself among those who were heard: that is
    the token after the last time.
    """

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.register_buffer("who", torch.eye(vocabulary))
        self.register_buffer("where", torch.eye(length))
        self.first, self.second = Looking(), Looking()

    def forward(self, tokens: Tensor) -> Tensor:
        who = self.get_buffer("who")[tokens][:, None]
        where = self.get_buffer("where").expand(len(tokens), 1, -1, -1)
        nobody, nowhere = torch.zeros_like(who), torch.zeros_like(where)
        asked = {
            "previous": (nobody, where.roll(1, dims=-2)),
            "first": (nobody, where[..., :1, :].expand_as(where)),
            "duplicate": (who, -where),  # the same, but not here
            "here": (nobody, where),
            "anything": (nobody, nowhere),
        }
        query = torch.cat([torch.cat(each, dim=-1) for each in asked.values()], dim=1)
        heard = self.first(query, torch.cat([who, where], dim=-1), who)[:, :1]
        key = torch.cat([heard, nobody], dim=1)
        both = who.expand(-1, 2, -1, -1)
        return self.second(both, key, both)[:, :1]


def repeated(vocabulary: int, times: int) -> Tensor:
    """A beginning, and then all other tokens in random order, the same order every time."""
    order = torch.stack([torch.randperm(vocabulary - 1) + 1 for _ in range(BATCH)])
    return torch.cat([torch.zeros(BATCH, 1, dtype=torch.int64), order.repeat(1, times)], dim=1)


@pytest.mark.parametrize("times", [2, 4])
def test_a_model_that_must_have_an_induction_head_has_it(times: int) -> None:
    tokens = repeated(vocabulary=54, times=times)
    model = TwoLayers(54, tokens.shape[1])
    with ch.watch(model) as seen:
        predicted = model(tokens)
    # It does what induction heads are for: it says what comes next.
    assert torch.equal(predicted[:, 0, 54:-1].argmax(dim=-1), tokens[:, 55:])
    first, second = (roles(seen[name], tokens) for name in ("first", "second"))
    assert first.names() == [["previous", "first", "duplicate", "", ""]] * BATCH
    assert second.names() == [["induction", ""]] * BATCH
    assert first.duplicate is not None
    assert first.induction is not None
    assert second.duplicate is not None
    assert second.induction is not None
    assert first.previous is not None
    assert second.previous is not None
    assert (second.induction[:, 0] > 0.9).all()
    assert (second.induction[:, 1] < 0.1).all()
    assert (first.induction < 0.1).all()
    assert (first.previous[:, 0] > 0.9).all()
    assert (first.previous[:, 1:] < 0.1).all()
    assert (second.previous < 0.1).all()
    assert (first.duplicate[:, 2] > 0.9).all()
    assert (first.duplicate[:, [0, 1, 3, 4]] < 0.1).all()
    assert (second.duplicate < 0.1).all()
    assert (first.first[:, 1] > 0.9).all()
    assert (first.first[:, [0, 2, 3]] < 0.1).all()
    assert (evenness(seen["first"])[:, :4] < 0.9).all()
    assert (evenness(seen["first"])[:, 4] > 0.9).all()


def even(query_len: int, kv_len: int, **options: Any) -> AttentionMatrix:
    """Every weight of a row alike."""
    return AttentionMatrix(torch.zeros(query_len, DIM), torch.zeros(kv_len, DIM), **options)


def test_the_roles_of_even_weights_are_known() -> None:
    tokens = torch.tensor([3, 5, 3, 3])
    found = roles(even(4, 4, mask=ch.causal()), tokens)
    # Rows are 1 · | ½ ½ | ⅓ ⅓ ⅓ | ¼ ¼ ¼ ¼; the first query has no choice.
    assert found.previous is not None
    assert found.previous.item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found.first.item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    # Token 3 was at 0 for query 2, and at 0 and 2 for query 3.
    assert found.duplicate is not None
    assert found.duplicate.item() == pytest.approx((1 / 3 + 2 / 4) / 2)
    # Behind these: 1 for query 2, and 1 and query 3 itself for query 3.
    assert found.induction is not None
    assert found.induction.item() == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert evenness(even(4, 4, mask=ch.causal())).item() == pytest.approx(1.0)


def test_no_more_than_the_recent_occurrences_are_looked_at() -> None:
    length = RECENT + 4
    found = roles(even(1, length), torch.zeros(length, dtype=torch.int64))
    assert found.duplicate is not None
    assert found.duplicate.item() == pytest.approx(RECENT / length)


def test_rounding_does_not_lead_out_of_0_to_1() -> None:
    for kv_len in range(2, 200):
        assert evenness(even(1, kv_len)).item() <= 1.0


def test_what_a_sink_takes_counts_as_nowhere() -> None:
    # Four keys of score 0 and a sink of score ln 4: half of the weight stays.
    sinks = torch.tensor([4.0]).log()
    query, key = torch.zeros(1, 1, DIM), torch.zeros(1, 4, DIM)
    matrix = AttentionMatrix(query, key, sinks=sinks)
    assert evenness(matrix).item() == pytest.approx(0.5)
    found = roles(matrix)
    assert found.first.item() == pytest.approx(1 / 8)


def test_padding_changes_nothing_where_it_does_not_count() -> None:
    tokens = torch.randint(3, (11,))
    query, key = torch.randn(2, 1, HEADS, 11, DIM, dtype=torch.float64).unbind()
    alone = roles(AttentionMatrix(query, key, mask=ch.causal()), tokens)
    for side, pad in (("left", (5, 0)), ("right", (0, 5))):
        wide_query, wide_key = (nn.functional.pad(each, (0, 0, *pad)) for each in (query, key))
        valid = nn.functional.pad(torch.ones(11, dtype=torch.bool), pad)
        mask = ch.causal() & ch.padding([11], side="left" if side == "left" else "right")
        padded = roles(
            AttentionMatrix(wide_query, wide_key, mask=mask),
            nn.functional.pad(tokens, pad),
            queries=valid,
        )
        for name in NAMES:
            actual, expected = getattr(padded, name), getattr(alone, name)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_queries_behind_a_cache_are_the_last_ones() -> None:
    tokens = torch.randint(3, (BATCH, 11))
    query, key = torch.randn(2, BATCH, HEADS, 11, DIM, dtype=torch.float64).unbind()
    # The first token is known from queries that count, so the last see it too.
    counts = torch.arange(11) >= 7
    whole = roles(AttentionMatrix(query, key, mask=ch.causal()), tokens, queries=counts)
    cached = roles(AttentionMatrix(query[:, :, 7:], key, mask=ch.causal()), tokens)
    for name in NAMES:
        actual, expected = getattr(cached, name), getattr(whole, name)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_portions_of_a_mask_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.matrix.roles.PORTION", 2 * BATCH * HEADS * 13)
    mask = torch.rand(BATCH, HEADS, 7, 13) < 0.5
    query = torch.randn(BATCH, HEADS, 7, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, 2, 13, DIM, dtype=torch.float64)
    assert_by_definition(AttentionMatrix(query, key, mask=mask), tokens=torch.randint(2, (13,)))


@pytest.mark.parametrize(("leading", "names"), [((), "first"), ((3,), ["first"] * 3)])
def test_results_have_the_leading_dimensions_of_the_query(leading: Any, names: Any) -> None:
    start = torch.eye(5)[:1].expand(*leading, 5, 5)
    found = roles(AttentionMatrix(start, start.new_ones(5, 5).tril().expand(start.shape)))
    for name in ("previous", "first"):
        assert getattr(found, name).shape == leading
    key = (torch.eye(5) * torch.tensor([90.0, 0, 0, 0, 0])).expand(*leading, 5, 5)
    assert roles(AttentionMatrix(start, key, mask=ch.causal())).names() == names


@pytest.mark.parametrize(("query_len", "kv_len"), [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_a_role_that_nobody_can_take_is_0(query_len: int, kv_len: int) -> None:
    masks: list[Any] = [None, ch.causal(), torch.ones(query_len, kv_len, dtype=torch.bool)]
    for mask in masks:
        tokens = torch.zeros(kv_len, dtype=torch.int64) if query_len <= kv_len else None
        found = roles(even(query_len, kv_len, mask=mask), tokens)
        for name in NAMES if tokens is not None else ("previous", "first"):
            assert getattr(found, name).item() == 0.0
        assert found.names() == ""


def test_queries_that_see_nothing_or_do_not_count() -> None:
    query = torch.randn(HEADS, 5, DIM)
    found = roles(AttentionMatrix(query, query, mask=~ch.full()), torch.zeros(5).long())
    nobody = torch.zeros(5, dtype=torch.bool)
    silent = roles(AttentionMatrix(query, query), torch.zeros(5).long(), queries=nobody)
    for name in NAMES:
        assert torch.equal(getattr(found, name), torch.zeros(HEADS))
        assert torch.equal(getattr(silent, name), torch.zeros(HEADS))


def test_the_first_token_is_the_first_that_is_seen() -> None:
    # Left padding of two: the sink is key 2, though key 0 is hidden from all.
    query = torch.zeros(1, 1, 5, 1)
    key = torch.tensor([0.0, 0.0, 60.0, 0.0, 0.0]).view(1, 1, 5, 1)
    mask = ch.causal() & ch.padding([3], side="left")
    found = roles(AttentionMatrix(query + 1, key, mask=mask))
    assert found.first.item() == pytest.approx(1.0)
    # Who does not see the first token of all has no say: a window of one token behind.
    window = ch.sliding_window(left=1, right=0)
    found = roles(AttentionMatrix(query, query, mask=window))
    assert found.first.item() == pytest.approx(0.5)


def test_nan_behind_the_mask_stays_there() -> None:
    tokens = torch.randint(3, (7,))
    query, key = torch.randn(2, 1, HEADS, 7, DIM).unbind()
    key[:, :, 5:] = torch.nan
    found = roles(AttentionMatrix(query, key, mask=ch.causal() & ch.padding([5])), tokens)
    seen = roles(AttentionMatrix(query, key, mask=ch.causal()), tokens)
    for name in NAMES:
        assert getattr(found, name).isfinite().all()
    assert seen.first.isnan().all()
    assert seen.names() == [[""] * HEADS]


def test_roles_carry_no_gradient() -> None:
    query, key = torch.randn(2, HEADS, 7, DIM, requires_grad=True).unbind()
    found = roles(AttentionMatrix(query, key), torch.zeros(7).long())
    assert not any(getattr(found, name).requires_grad for name in NAMES)


def test_tokens_of_any_kind_of_int() -> None:
    query = torch.randn(BATCH, HEADS, 7, DIM)
    matrix = AttentionMatrix(query, query, mask=ch.causal())
    ids = torch.randint(3, (BATCH, 7))
    expected = roles(matrix, ids)
    for dtype in (torch.uint8, torch.int32):
        found = roles(matrix, ids.to(dtype))
        assert found.induction is not None
        assert expected.induction is not None
        assert torch.equal(found.induction, expected.induction)


SCORES = {
    "previous": [0.6, 0.6, 0.4, 0.1, 0.5],
    "first": [0.3, 0.7, 0.2, 0.1, 0.2],
    "duplicate": [0.0, 0.0, 0.1, 0.2, 0.3],
    "induction": [0.2, 0.1, 0.3, 0.2, 0.1],
}


def test_names_are_of_the_leading_role() -> None:
    alone: dict[str, Any] = {name: torch.tensor([scores]) for name, scores in SCORES.items()}
    found = Roles(**alone)
    assert found.names() == [["previous", "first", "", "", "previous"]]
    assert found.names(threshold=0.4) == [["previous", "first", "previous", "", "previous"]]
    assert found.names(threshold=1) == [[""] * 5]
    some: dict[str, Any] = {
        name: torch.tensor(scores)
        for name, scores in SCORES.items()
        if name not in ("duplicate", "induction")
    }
    without = Roles(**some)
    assert without.names(threshold=0.2) == ["previous", "first", "previous", "", "previous"]
    none: dict[str, Any] = {name: torch.full((1,), torch.nan) for name in NAMES}
    unknown = Roles(**none)
    assert unknown.names() == [""]


def test_repr_names_sizes_and_fields() -> None:
    matrix = AttentionMatrix(torch.zeros(3, 5, DIM), torch.zeros(3, 5, DIM))
    assert repr(roles(matrix)) == "Roles [num_heads=3] of previous, first"
    found = roles(matrix, torch.arange(5))
    assert repr(found) == f"Roles [num_heads=3] of {', '.join(NAMES)}"
    assert repr(roles(even(5, 5))) == "Roles [] of previous, first"


test_bad_input_is_refused = refusals(
    lambda given: roles(
        AttentionMatrix(torch.zeros(2, 3, 5, DIM), torch.zeros(2, 3, 7, DIM)), **given
    ),
    ({"tokens": [1, 2, 3]}, "tokens.type", "tokens // a tensor of ids, or None // list"),
    ({"tokens": torch.zeros(7)}, "tokens.type", "torch.float32"),
    ({"tokens": torch.zeros(3, 7, dtype=torch.int64)}, "tokens.shape", "7 // (2, 7) // (3, 7)"),
    ({"queries": [True]}, "queries.type", "queries // a bool tensor, or None // list"),
    ({"queries": torch.ones(5)}, "queries.type", "queries // torch.float32"),
    (
        {"queries": torch.ones(7, dtype=torch.bool)},
        "queries.shape",
        "queries // 5 // (2, 5) // (7,)",
    ),
)


def test_tokens_of_two_different_texts_are_refused() -> None:
    assert_refused(
        lambda: roles(even(7, 5), torch.zeros(5, dtype=torch.int64)), "roles.lengths", "7 //  // 5"
    )


def test_what_is_no_matrix_is_refused() -> None:
    given: Any = torch.zeros(5, 5)
    assert_refused(lambda: roles(given), "roles.type", "Tensor")


@pytest.mark.parametrize("threshold", [0, 1.5, -1, "half", True, float("nan")])
def test_a_threshold_that_is_none_is_refused(threshold: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=re.escape(
            f"[roles.threshold] threshold must be a number above 0 and up to 1; got {threshold!r}."
        ),
    ):
        roles(even(3, 3)).names(threshold)
