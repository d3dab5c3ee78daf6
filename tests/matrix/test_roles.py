"""The roles of heads: held against the definitions, and against a model that must have it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.matrix.head_numbers import Roles
from clearhead.matrix.roles import evenness, roles
from tests.refusals import refusals, run, wrong
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


def even(query_len: int, kv_len: int, **options: Any) -> AttentionMatrix:
    """Every weight of a row alike."""
    return AttentionMatrix(torch.zeros(query_len, DIM), torch.zeros(kv_len, DIM), **options)


def test_rounding_does_not_lead_out_of_0_to_1() -> None:
    for kv_len in range(2, 200):
        assert evenness(even(1, kv_len)).item() <= 1.0


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


test_what_else_is_refused = refusals(
    run,
    (lambda: roles(even(7, 5), torch.zeros(5).long()), "roles.lengths", "7 //  // 5"),
    (lambda: roles(wrong(torch.zeros(5, 5))), "roles.type", "Tensor"),
    *(
        (lambda it=it: roles(even(3, 3)).names(wrong(it)), "roles.threshold", repr(it))
        for it in (0, 1.5, "half", True, float("nan"))
    ),
)
