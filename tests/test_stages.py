import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead import stages
from tests.tensors import drawn
from tests.tolerances import assert_no_worse

NAN, INF = float("nan"), float("inf")
E = math.e
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def rows(*numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding of a few operations in float64."""
    torch.testing.assert_close(
        actual, expected, rtol=8 * torch.finfo(torch.float64).eps, atol=0, equal_nan=True
    )


def test_every_stage_by_hand() -> None:
    """Two queries, two keys: the second scores differ by 1, so that the weights are 1 : e."""
    query = rows([1.0, 0.0], [0.0, 2.0])
    key = rows([3.0, 1.0], [3.0, 2.0])
    value = rows([10.0, 0.0, 1.0], [20.0, 0.0, -1.0])
    steps = stages.compute(query, key, value, scale=0.5)
    assert steps._fields == stages.NAMES
    same(steps.scores, rows([3.0, 3.0], [2.0, 4.0]))
    same(steps.scaled_scores, rows([1.5, 1.5], [1.0, 2.0]))
    assert steps.capped_scores is steps.scaled_scores
    assert steps.masked_scores is steps.capped_scores
    low, high = 1 / (1 + E), E / (1 + E)
    same(steps.weights, rows([0.5, 0.5], [low, high]))
    assert steps.dropped_weights is steps.weights
    expected = rows([15.0, 0.0, 0.0], [10 * low + 20 * high, 0.0, low - high])
    same(steps.context, expected)


def test_softcap_comes_before_the_bias_and_the_bias_before_the_mask() -> None:
    """The cap does not bend the bias, the scale does not shrink it, the mask hides it."""
    query, key = rows([4.0]), rows([3.0], [3.0], [3.0])
    bias = rows([0.0, 100.0, 1000.0])
    visible = torch.tensor([[True, True, False]])
    steps = stages.compute(
        query, key, drawn(3, 2), scale=0.5, softcap=2.0, bias=bias, visible=visible
    )
    capped = 2 * math.tanh(6.0 / 2)
    same(steps.scaled_scores, rows([6.0, 6.0, 6.0]))
    same(steps.capped_scores, rows([capped] * 3))
    same(steps.masked_scores, rows([capped, capped + 100.0, -INF]))


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.3], dtype=torch.float64)])
def test_a_query_that_sees_nothing(sinks: Tensor | None) -> None:
    query, key, value = (drawn(1, 3, 4).requires_grad_() for _ in range(3))
    visible = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])
    steps = stages.compute(query, key, value, scale=0.5, visible=visible, sinks=sinks)
    assert steps.weights[0, 1].eq(0).all()
    assert steps.context[0, 1].eq(0).all()
    total = stages.logsumexp(steps.masked_scores)
    assert total.isneginf().tolist() == [[False, True, False]]
    loss = steps.context.square().sum() + total[0, [0, 2]].sum()
    for grad in torch.autograd.grad(loss, (query, key, value)):
        assert grad.isfinite().all()
        assert grad.any()


def test_a_nan_of_the_bias_behind_the_mask_stays_there() -> None:
    visible = torch.ones(3, 3, dtype=torch.bool).tril()
    bias = drawn(3, 3)
    query, key, value = drawn(3, 4), drawn(3, 4), drawn(3, 2)
    clean = stages.compute(query, key, value, scale=0.5, bias=bias, visible=visible)
    spoilt_bias = bias.masked_fill(~visible, NAN).requires_grad_()
    spoilt = stages.compute(query, key, value, scale=0.5, bias=spoilt_bias, visible=visible)
    assert torch.equal(spoilt.context, clean.context)
    (grad,) = torch.autograd.grad(spoilt.context.sum(), spoilt_bias)
    assert grad.isfinite().all()
    assert grad[~visible].eq(0).all()


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_what_is_hidden_stays_hidden(poison: float, where: str, softcap: float | None) -> None:
    """Token 3 is not finite. It is hidden from the others, and sees nothing itself."""
    visible = torch.ones(4, 4, dtype=torch.bool)
    visible[3], visible[:, 3] = False, False
    tensors = {name: drawn(2, 4, 3) for name in ("query", "key", "value")}
    results = []
    for number in (0.0, poison):
        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        inputs[where][:, 3, 1] = number
        leaves = [tensor.requires_grad_() for tensor in inputs.values()]
        steps = stages.compute(*leaves, scale=0.7, softcap=softcap, visible=visible)
        total = stages.logsumexp(steps.masked_scores)
        loss = steps.context.square().sum() + total[:, :3].square().sum()
        results.append((steps.weights, steps.context, total, *torch.autograd.grad(loss, leaves)))
    for clean, spoilt in zip(*results, strict=True):
        assert torch.equal(clean, spoilt)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_is_not_finite_in_the_open_shows(poison: float) -> None:
    visible = torch.ones(3, 3, dtype=torch.bool).tril()
    query, key, value = (torch.randn(3, 2) for _ in range(3))

    def spoilt(tensor: Tensor) -> Tensor:
        return tensor.index_put((torch.tensor([1]), torch.tensor([0])), torch.tensor(poison))

    for tensors, masked, open_ in (
        ((spoilt(query), key, value), [[0, 0], [1, 1], [0, 0]], [[0, 0], [1, 1], [0, 0]]),
        ((query, spoilt(key), value), [[0, 0], [1, 1], [1, 1]], [[1, 1]] * 3),
        ((query, key, spoilt(value)), [[0, 0], [1, 0], [1, 0]], [[1, 0]] * 3),
    ):
        for mask, shown in ((visible, masked), (None, open_)):
            context = stages.compute(*tensors, scale=1.0, visible=mask).context
            assert context.isnan().int().tolist() == shown
            assert not context.isinf().any()


def test_sinks_take_their_share_and_give_nothing() -> None:
    """Scores 0 and 1 and a sink of log 3: exps 1 and e beside 3."""
    weights = stages.weights(rows([0.0, 1.0])[None], rows([math.log(3.0)])[0])
    total = 1 + E + 3
    same(weights, rows([1 / total, E / total])[None])


def test_there_is_a_sink_for_each_head() -> None:
    masked = torch.zeros(2, 3, 5, 7, dtype=torch.float64)
    sinks = rows([-INF, 0.0, math.log(7.0)])[0]
    weights = stages.weights(masked, sinks)
    same(weights.sum(-1)[0, :, 0], rows([1.0, 7 / 8, 1 / 2])[0])
    assert torch.equal(weights[:, 0], stages.weights(masked)[:, 0])


def test_dropout_grows_what_survives() -> None:
    weights = torch.full((1000, 100), 0.01, dtype=torch.float64)
    dropped = stages.dropped_weights(weights, 0.2)
    zero, survivor = dropped.unique()
    assert zero == 0
    same(survivor, rows([0.01 / (1 - 0.2)])[0, 0])
    # The number of survivors is binomial; six standard deviations are exceeded once in 10⁹ draws.
    survivors = int(dropped.count_nonzero())
    assert abs(survivors - 80_000) < 6 * math.sqrt(100_000 * 0.2 * 0.8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_summed_in_float32(dtype: torch.dtype) -> None:
    """2048 + 1 = 2048 in float16, and 256 + 1 = 256 in bfloat16; here neither is lost."""
    count = 4096
    ones = torch.ones(1, count, dtype=dtype)
    steps = stages.compute(ones, ones, ones, scale=1.0)
    for name, stage in steps._asdict().items():
        assert stage.dtype == (dtype if name == "context" else torch.float32), name
    assert steps.scores.item() == count
    # A float32 mean of 1 and 4095 values of 0, rounded once.
    value = torch.zeros(count, 1, dtype=dtype)
    value[0] = 1
    zeros = torch.zeros(count, 1, dtype=dtype)
    context = stages.compute(zeros[:1], zeros, value, scale=1.0).context
    assert context.item() == torch.tensor(1 / count).to(dtype).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_once_at_the_end(dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(3, 11, 5).to(dtype) for _ in range(3))
    truth = stages.compute(query.double(), key.double(), value.double(), scale=0.4).context
    actual = stages.compute(query, key, value, scale=0.4).context
    assert actual.dtype == dtype
    if dtype in (torch.bfloat16, torch.float16):
        float32 = stages.compute(query.float(), key.float(), value.float(), scale=0.4).context
        assert torch.equal(actual, float32.to(dtype))
    plain = torch.softmax(query @ key.mT * 0.4, dim=-1) @ value
    assert_no_worse(actual, truth, plain)


@pytest.mark.parametrize(
    ("batch", "query_len", "kv_len"), [(2, 3, 0), (2, 0, 3), (0, 3, 5), (2, 0, 0), (2, 1, 1)]
)
def test_empty_axes(batch: int, query_len: int, kv_len: int) -> None:
    query = drawn(batch, query_len, 4).requires_grad_()
    key, value = drawn(batch, kv_len, 4).requires_grad_(), drawn(batch, kv_len, 2).requires_grad_()
    for mask in (None, torch.ones(query_len, kv_len, dtype=torch.bool)):
        steps = stages.compute(query, key, value, scale=1.0, visible=mask)
        assert steps.weights.shape == (batch, query_len, kv_len)
        assert steps.context.shape == (batch, query_len, 2)
        if kv_len == 0:
            assert steps.context.eq(0).all()
            assert stages.logsumexp(steps.masked_scores).isneginf().all()
        (grad,) = torch.autograd.grad(steps.context.sum(), query)
        assert grad.isfinite().all()


def test_logarithms_of_weights() -> None:
    masked = drawn(2, 3, 5, 7) * 30
    masked[masked < -10] = masked[0, 0, 0] = -INF
    masked[0, 0, 1, 0] = NAN
    for sinks in (None, drawn(3)):
        logs, weights = (stages.weights(masked, sinks, log=each) for each in (True, False))
        torch.testing.assert_close(logs.exp(), weights, rtol=1e-13, atol=0, equal_nan=True)
        assert torch.equal(logs.isneginf(), masked.isneginf())


@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, True), (1.5, False)])
def test_gradients(softcap: float | None, with_sinks: bool) -> None:
    visible = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    query, key, value = drawn(2, 3, 2), drawn(2, 3, 2), drawn(2, 3, 1)
    leaves = [query, key, value, drawn(3, 3), *([drawn(2)] if with_sinks else [])]
    leaves = [tensor.requires_grad_() for tensor in leaves]

    def both(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, bias, *sinks = leaves
        options: Any = {"softcap": softcap, "bias": bias, "sinks": sinks[0] if sinks else None}
        steps = stages.compute(query, key, value, scale=0.6, visible=visible, **options)
        total = stages.logsumexp(steps.masked_scores)
        return steps.context, total.masked_fill(total.isneginf(), 0.0)

    assert torch.autograd.gradcheck(both, leaves)
    assert torch.autograd.gradgradcheck(both, leaves)


def test_a_head_of_keys_serves_neighbouring_heads_of_queries() -> None:
    key = drawn(2, 3, 5, 4)
    repeated = stages.repeat_kv_heads(key, 6)
    for head in range(6):
        assert torch.equal(repeated[:, head], key[:, head // 2])
    assert stages.repeat_kv_heads(key, 3) is key


def test_finite_and_tainted() -> None:
    tensor = torch.tensor([[1.0, NAN], [2.0, 3.0], [-INF, INF]])
    assert stages.zero_nonfinite(tensor).tolist() == [[1.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
    assert stages.nonfinite_rows(tensor).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_does_not_reach_the_sums(dtype: torch.dtype) -> None:
    query, key, value = torch.randn(3, 2, 7, 16).unbind()
    visible = torch.ones(7, 7, dtype=torch.bool).tril()
    expected = stages.compute(query, key, value, scale=0.25, visible=visible)
    with torch.autocast("cpu", dtype):
        actual = stages.compute(query, key, value, scale=0.25, visible=visible)
    for name, stage in actual._asdict().items():
        assert torch.equal(stage, getattr(expected, name)), name


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda whole: whole,
    "every second token": lambda whole: whole[:, :, ::2],
    "heads": lambda whole: whole[:, 1:3],
    "tokens, turned": lambda whole: whole.transpose(1, 2)[:, 3:7],
    "tokens of one head, turned": lambda whole: whole.transpose(1, 2)[:, 3:7, :1],
    "across the width": lambda whole: whole.mT,
    "one for all": lambda whole: whole[:, :1, :1].expand(-1, 4, 9, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_layout_are_all_looked_at(layout: str) -> None:
    part = LAYOUTS[layout](torch.ones(2, 4, 9, 5))
    assert stages.rows_finite(part)
    for place in torch.ones(part.shape).nonzero():
        for bad in (torch.nan, -torch.inf, 1e20):
            poisoned = LAYOUTS[layout](torch.ones(2, 4, 9, 5))
            poisoned[tuple(place)] = bad
            assert not stages.rows_finite(poisoned), (place, bad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [5, 0])
def test_rows_that_count_as_finite(dtype: torch.dtype, width: int) -> None:
    """By the length of a row in the precision of sums, not by that of all rows together."""
    rows = torch.zeros(3, 7, width, dtype=dtype).transpose(0, 1)
    exact = stages.upcast(rows[:0]).dtype
    longest = (torch.finfo(exact).max / 4 / max(width, 1)) ** 0.5
    assert stages.rows_finite(rows)
    if longest > torch.finfo(dtype).max:  # in 16 bits of float16 no row is too long
        assert stages.rows_finite(rows.fill_(torch.finfo(dtype).max))
    else:
        assert stages.rows_finite(rows.fill_(0.99 * longest))
        assert stages.rows_finite(rows, 1.02) == (width == 0)
        assert stages.rows_finite(rows.fill_(1.02 * longest)) == (width == 0)
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows.zero_()[-1:, -1:, -1:] = bad
        assert stages.rows_finite(rows) == (width == 0)
        assert stages.nonfinite_rows(rows)[-1].tolist() == [False, False, width > 0]


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("scale", [1.0, -64.0])
def test_no_score_overflows(scale: float, softcap: float | None) -> None:
    """Each row is a little shorter than one that counts as not finite, along one direction."""
    factor = stages.largest_factor(scale, softcap)
    length = 0.99 * (torch.finfo(torch.float32).max / 4) ** 0.5
    row = torch.full((1, 5), 5**-0.5)
    steps = stages.compute(
        row * (length / factor), -row * length, row, scale=scale, softcap=softcap
    )
    assert torch.stack([each.abs().max() for each in steps]).isfinite().all()
    assert steps.scores < -1e30 / abs(scale)
    too_long = stages.compute(
        row * (1.02 * length / factor), row, row, scale=scale, softcap=softcap
    )
    assert too_long.context.isnan().all()


@given(st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_two_sets_of_keys_share_by_their_logsumexp(one: int, two: int, hidden: bool) -> None:
    """Two lists of keys weigh together what each weighs alone, by its share."""
    parts = [torch.randn(3, each, dtype=torch.float64) * 3 for each in (one, two)]
    if hidden:
        parts = [part.masked_fill(torch.rand(part.shape) < 0.4, -torch.inf) for part in parts]
    whole, totals = torch.cat(parts, dim=-1), [stages.logsumexp(part) for part in parts]
    total = stages.logsumexp(whole)
    same(total, torch.logaddexp(*totals))
    shares = [(each - total).exp().where(total > -torch.inf, 0.0) for each in totals]
    weighed = [
        share[:, None] * stages.weights(part) for share, part in zip(shares, parts, strict=True)
    ]
    same(stages.weights(whole), torch.cat(weighed, dim=-1))


@given(st.floats(0.1, 50), st.floats(1e-3, 1e3))
def test_a_cap_keeps_the_order_and_no_score_is_beyond_it(cap: float, size: float) -> None:
    scores = (torch.randn(1, 40, dtype=torch.float64) * size).sort().values
    capped = stages.capped_scores(scores, cap)
    assert bool((capped.abs() <= cap).all())
    assert bool((capped.diff() >= 0).all())
    same(stages.capped_scores(-scores, cap), -capped)
    assert bool((capped.abs() <= scores.abs()).all())
    assert stages.capped_scores(scores, None) is scores
