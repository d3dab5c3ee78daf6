"""The statistics by kernels of Triton, interpreted on the CPU, held against all of the weights.

`make test-triton` runs those that need Triton; what is found before a launch needs none.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import clearhead as ch
from clearhead import AttentionMatrix, stages
from clearhead.attention.biases import DenseBias, SumOfBiases, as_bias
from clearhead.attention.distance_biases import Relative
from clearhead.attention.kernels import eager
from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import UnsupportedError
from clearhead.matrix import passes, triton_launches, triton_pass
from clearhead.matrix.distances import Near
from clearhead.matrix.reductions import Entropy, Largest, OfKey, Received, Reduction
from clearhead.matrix.triton_launches import Launches, is_interpreted
from clearhead.matrix.triton_pass import AskedOfWeights
from tests.matrix.test_reductions import largest, mapped, of_sets, sets, tokens_away
from tests.tolerances import assert_no_worse

QUERIES, KEYS, WIDTH, VALUE_WIDTH = 67, 131, 20, 12
"""Prime lengths, so that no tile is whole at the end: two tiles of queries, three of keys."""

needs_triton = [
    pytest.mark.skipif(
        not (is_interpreted() and find_spec("triton")), reason="make test-triton installs Triton"
    ),
    # NumPy, which the interpreter computes with, warns where a NaN is meant to be.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def cast(option: Any, dtype: torch.dtype) -> Any:
    """An option whose numbers are of a dtype."""
    if isinstance(option, SumOfBiases):
        return SumOfBiases(cast(option.left, dtype), cast(option.right, dtype))
    if isinstance(option, Relative):
        return Relative(option.values.to(dtype))
    if isinstance(option, DenseBias):
        return DenseBias(option.tensor.to(dtype))
    if isinstance(option, Tensor) and option.is_floating_point():
        return option.to(dtype)
    return option


def moved(option: Any, device: torch.device) -> Any:
    """An option whose numbers are on a device, where masks and slopes that are plain numbers follow by themselves."""
    if isinstance(option, SumOfBiases):
        return SumOfBiases(moved(option.left, device), moved(option.right, device))
    if isinstance(option, Relative):
        return Relative(option.values.to(device))
    if isinstance(option, DenseBias):
        return DenseBias(option.tensor.to(device))
    return option.to(device) if isinstance(option, Tensor) else option


class Given(NamedTuple):
    """One call, and its value."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "Given":
        options = {name: cast(option, dtype) for name, option in self.options.items()}
        return Given(self.query.to(dtype), self.key.to(dtype), self.value.to(dtype), options)

    def on(self, device: torch.device) -> "Given":
        options = {name: moved(option, device) for name, option in self.options.items()}
        return Given(self.query.to(device), self.key.to(device), self.value.to(device), options)


def given(
    query_len: int = QUERIES,
    kv_len: int = KEYS,
    batch: int = 1,
    width: int = WIDTH,
    value_width: int = VALUE_WIDTH,
    heads: tuple[int, int] = (2, 1),
    dtype: torch.dtype = torch.float32,
    times: float = 1.0,
    **options: Any,
) -> Given:
    query = torch.randn(batch, heads[0], query_len, width) * times
    key = torch.randn(batch, heads[1], kv_len, width)
    value = torch.randn(batch, heads[1], kv_len, value_width)
    return Given(query, key, value, options).to(dtype)


def hiding(share: float, *shape: int) -> Tensor:
    return torch.randn(shape).masked_fill(torch.rand(shape) < share, -torch.inf)


def broken_inputs(**options: Any) -> Given:
    """A NaN key, an infinite query and an infinite value, each of which some queries see."""
    call = given(**options)
    call.key[0, 0, 100, 3] = torch.nan
    call.query[0, 1, 7, 0] = torch.inf
    call.value[0, 0, 90, 3] = -torch.inf
    return call


def hidden_inputs() -> Given:
    """The same behind the mask."""
    call = given(mask=ch.padding([100]))
    call.key[0, 0, 101] = torch.nan
    call.value[0, 0, 120] = torch.inf
    return call


def broken_bias() -> Given:
    bias = torch.randn(1, 2, QUERIES, KEYS)
    bias[0, 0, 5, 9], bias[0, 1, 6, 60], bias[0, 1, 8, 130] = torch.inf, torch.nan, torch.nan
    return given(mask=ch.causal(), bias=bias)


def too_long() -> Given:
    call = given(mask=ch.causal())
    call.key[0, 0, 50] = 1e30
    call.query[0, 1, 3] = -1e25
    return call


def as_layers_make_them() -> Given:
    """Heads beside each other in memory, and every second lane."""
    query, key, value = (
        torch.randn(1, tokens, heads, 2 * WIDTH)[..., ::2].transpose(1, 2)
        for tokens, heads in ((QUERIES, 2), (KEYS, 1), (KEYS, 1))
    )
    return Given(query, key, value, {"mask": ch.causal()})


WINDOW = ch.causal() & ch.sliding_window(left=9)

CASES: dict[str, Callable[[], Given]] = {
    "all pairs": given,
    "causal": lambda: given(mask=ch.causal()),
    "more queries than keys": lambda: given(KEYS, QUERIES, mask=ch.causal()),
    "two groups": lambda: given(heads=(4, 2), mask=ch.causal()),
    "a window": lambda: given(mask=WINDOW),
    "two runs": lambda: given(mask=WINDOW | ch.prefix(20)),
    "all but a window": lambda: given(mask=~WINDOW),
    "documents": lambda: given(
        mask=ch.causal() & ch.documents(lengths=[40, 1, 60, 30]),
    ),
    "documents of each sample": lambda: given(
        batch=2, mask=ch.documents([[0] * 70 + [1] * 61, [0] * 30 + [1] * 101])
    ),
    "padding, one of all": lambda: given(batch=2, mask=ch.causal() & ch.padding([0, 100])),
    "padding on the left": lambda: given(batch=2, mask=ch.padding([3, 131], side="left")),
    "softcap": lambda: given(mask=ch.causal(), softcap=2.0),
    "softcap of small scores": lambda: given(times=0.01, softcap=50.0),
    "alibi": lambda: given(mask=ch.causal(), bias=ch.alibi(2)),
    "relative": lambda: given(mask=ch.causal(), bias=ch.relative(torch.randn(2, 9))),
    "relative, one for all": lambda: given(bias=ch.relative(torch.randn(1, 301))),
    "a bias": lambda: given(mask=ch.causal(), bias=torch.randn(1, 2, QUERIES, KEYS)),
    "a bias of one row": lambda: given(batch=2, bias=torch.randn(2, 1, 1, KEYS)),
    "a bias that hides": lambda: given(bias=hiding(0.3, 1, 2, QUERIES, KEYS), mask=ch.causal()),
    "a bias that hides all": lambda: given(bias=torch.full((1, 2, 1, 1), -torch.inf)),
    "two biases": lambda: given(
        mask=ch.causal(), bias=SumOfBiases(ch.alibi(2), as_bias(torch.randn(1, 1, 1, KEYS)))
    ),
    "sinks": lambda: given(mask=ch.causal(), sinks=torch.randn(2)),
    "a sink that takes all": lambda: given(QUERIES, 19, sinks=torch.tensor([90.0, -torch.inf])),
    "a sink that is NaN": lambda: given(
        KEYS, QUERIES, mask=WINDOW, sinks=torch.tensor([1.0, torch.nan])
    ),
    "everything at once": lambda: given(
        batch=2,
        mask=WINDOW | ch.prefix([3, 0]),
        bias=ch.alibi(2),
        softcap=3.0,
        sinks=torch.randn(2),
    ),
    "one query": lambda: given(1, KEYS, mask=ch.causal()),
    "one key": lambda: given(QUERIES, 1, mask=ch.causal()),
    "one lane": lambda: given(19, 23, width=1, value_width=1),
    "wide heads": lambda: given(19, 67, width=130, value_width=200, mask=ch.causal()),
    "float16": lambda: given(dtype=torch.float16, mask=ch.causal()),
    "bfloat16": lambda: given(dtype=torch.bfloat16, mask=ch.causal(), sinks=torch.randn(2)),
    "a negative scale": lambda: given(mask=ch.causal(), scale=-0.3),
    "no scale": lambda: given(mask=ch.causal(), scale=0.0),
    "large scores": lambda: given(mask=ch.causal(), times=300.0),
    "not finite, in sight": lambda: broken_inputs(mask=ch.causal()),
    "not finite, and sinks": lambda: broken_inputs(mask=WINDOW, sinks=torch.randn(2)),
    "not finite, hidden": hidden_inputs,
    "not finite, in a bias": broken_bias,
    "too long to multiply": too_long,
    "as layers make them": as_layers_make_them,
}


def definition(call: Given, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every number of a summary from all weights, computed in a precision."""
    query, key, value, options = call.to(dtype)
    problem = make_problem(query, key, value, **options)
    found, group = eager.compute(problem), problem.num_heads // problem.num_kv_heads
    weights, scores = found.weights, found.masked_scores
    queries, keys = weights.shape[2:]
    place = torch.arange(queries) + keys - queries
    before = weights.gather(3, (place - 1).clamp(min=0).expand(*weights.shape[:2], -1)[..., None])
    return {
        "logsumexp": stages.logsumexp(scores),
        "entropy": torch.special.entr(weights).sum(dim=-1),
        "max": weights.amax(dim=-1),
        "max_score": scores.amax(dim=-1),
        "distance": (weights * tokens_away(weights)).sum(dim=-1),
        "near": weights.masked_fill(tokens_away(weights) > 8, 0.0).sum(dim=-1),
        "first": weights[..., 0],
        "previous": before[..., 0].masked_fill(place < 1, 0.0),
        "received": weights.sum(dim=2).unflatten(1, (-1, group)).sum(dim=2),
        "context": found.context,
        "top_k": largest(weights, min(5, keys)),
        "mass": of_sets(weights),
        "pooled": mapped(weights, min(3, queries), min(5, keys)),
    }


def expected_of(call: Given) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The definition in float64 and in the dtype of the call."""
    # In float64 fewer rows count as too long.
    bad = stages.nonfinite_rows(call.query), stages.nonfinite_rows(call.key)
    marked = call._replace(
        query=call.query.masked_fill(bad[0][..., None], torch.nan),
        key=call.key.masked_fill(bad[1][..., None], torch.nan),
    )
    return definition(marked, torch.float64), definition(call, call.query.dtype)


def answered(call: Given) -> dict[str, Tensor]:
    """The same by the kernels."""
    query, key, value, options = call
    matrix = AttentionMatrix(query, key, **options)
    queries, keys = matrix.shape[2:]
    found = matrix.summary(
        value=value,
        top_k=min(5, keys),
        pool=(min(3, queries), min(5, keys)),
        segments=sets(keys).to(query.device),
        kernel="triton",
    )
    names = [name for name in definition(call, torch.float64) if name not in ("near", "top_k")]
    numbers = {name: getattr(found, name) for name in names}
    assert found.top_k is not None
    _check_keys(matrix, found.top_k)
    near = Near(matrix.posed, 8)
    passes.run(matrix.posed, [near], kernel="triton")
    numbers["near"] = matrix.problem.restore(near.result)
    return numbers | {"top_k": found.top_k.weights}


def _check_keys(matrix: AttentionMatrix, top: ch.TopK) -> None:
    """Each key is another, and has the weight that stands beside it."""
    there = top.keys >= 0
    assert torch.equal(there, ~(top.weights == 0))
    ordered = top.keys.masked_fill(~there, -1).sort(dim=-1).values
    assert not ((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any()
    found = matrix[:].gather(3, top.keys.clamp(min=0)).masked_fill(~there, 0.0)
    assert torch.equal(found.isnan(), top.weights.isnan())
    assert_no_worse(
        top.weights.nan_to_num(), found.double().nan_to_num(), found.nan_to_num(), what="of keys"
    )


class TestInterpreted:
    pytestmark = needs_triton

    @pytest.mark.parametrize("name", CASES)
    def test_every_number(self, name: str) -> None:
        call = CASES[name]()
        exact, plain = expected_of(call)
        for what, number in answered(call).items():
            assert number.dtype == plain[what].dtype, what
            assert_no_worse(number, exact[what], plain[what], what=what)

    def test_two_runs_are_one(self) -> None:
        call = CASES["sinks"]()
        one, two = answered(call), answered(call)
        assert all(torch.equal(one[name], two[name]) for name in one)

    def test_more_bins_than_fit_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(triton_pass, "MAP_NUMBERS", 1)
        query, key, _, options = CASES["causal"]()
        matrix = AttentionMatrix(query, key, **options)
        wide = matrix.summary(pool=(7, 37), kernel="triton").pooled
        assert wide is not None
        exact = mapped(AttentionMatrix(query.double(), key.double(), **options)[:], 7, 37)
        assert_no_worse(wide, exact, mapped(matrix[:], 7, 37))

    def test_nothing_reads_the_device(self) -> None:
        class Watching(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                assert not re.search(
                    "_local_scalar_dense|nonzero|unique|is_nonzero|aten.equal", str(func)
                )
                return func(*args, **(kwargs or {}))

        query, key, value, options = CASES["everything at once"]()
        problem = make_problem(query, key, value, **options)
        assert problem.spans is not None  # which the mask finds, before
        with Watching():
            triton_pass.run(
                AskedOfWeights(problem, [Entropy(problem), Received(problem), Largest(problem, 2)])
            )

    def test_it_runs_where_it_is_asked_for(self) -> None:
        matrix = AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2))
        assert matrix.plan().kernel == "sweep"
        assert matrix.plan().reasons["triton"] == (
            "nobody has measured it on a device yet: it runs where it is asked for by name",
        )
        plan = matrix.plan("triton")
        assert plan.kernel == "triton"
        assert plan.how.startswith("two launches of kernels of Triton, interpreted, on the CPU")
        assert plan.reasons["sweep"] == ('kernel="triton" was asked for',)

    def test_progress_ends_at_one(self) -> None:
        told: list[float] = []
        AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2)).summary(
            progress=told.append, kernel="triton"
        )
        assert told == [1.0]


def problem_of(call: Given) -> Problem:
    return make_problem(*call[:3], **call.options)


@pytest.mark.parametrize(
    "name",
    [
        "all pairs",
        "causal",
        "more queries than keys",
        "a window",
        "two runs",
        "documents of each sample",
        "padding, one of all",
    ],
)
@pytest.mark.parametrize("tile", [16, 64])
def test_tiles_of_queries(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tile that sees a key is left out, and the first and the last do see one."""
    monkeypatch.setattr(triton_launches, "QUERIES", tile)
    problem = problem_of(CASES[name]())
    launches = Launches(problem)
    first, last = (each.tolist() for each in launches.tiles_of_queries(tile))
    visible = problem.visible()
    seen = torch.ones(1, 1, QUERIES, KEYS) > 0 if visible is None else visible
    for sample, (one, two) in enumerate(zip(first, last, strict=True)):
        for column in range(len(one)):
            some = seen[sample, 0, :, column * tile : (column + 1) * tile].any(dim=1)
            tiles = [int(each.any()) for each in some.split(tile)]
            if 1 in tiles:
                assert one[column] <= tiles.index(1)
                assert two[column] >= len(tiles) - tiles[::-1].index(1)
            if name in ("causal", "a window"):  # of one run, all but the ragged ends
                assert two[column] - one[column] <= sum(tiles) + 1


def test_a_missing_triton_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton_pass, "find_spec", lambda name: None)
    matrix = AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(UnsupportedError) as caught:
        matrix.summary(kernel="triton")
    assert str(caught.value) == (
        '[kernel.refused] kernel="triton" cannot run this problem.\n'
        "  - Triton is not installed: pip install triton\n"
        "  query  [batch=1, num_heads=1, query_len=3, head_dim=2] float32 cpu\n"
        "  key    [batch=1, num_kv_heads=1, kv_len=3, head_dim=2] float32 cpu\n"
        "  value  [batch=1, num_kv_heads=1, kv_len=3, value_head_dim=2] float32 cpu\n"
        "  scale=0.707107\n"
        'These kernels can: sweep; kernel="auto" would take sweep.'
    )


def test_no_such_way() -> None:
    with pytest.raises(ch.ArgumentError, match='"auto" or one of "triton", "sweep"; got \'flash\''):
        AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2)).plan("flash")


class Others(Reduction):
    """A statistic of one's own."""

    def update(self, chunk: Any) -> None:
        raise NotImplementedError


def keys_of(problem: Problem) -> list[Reduction]:
    return [OfKey(problem, torch.zeros(problem.query_len, dtype=torch.int64))]


REASONS: dict[str, tuple[Callable[[], Given], Callable[[Problem], list[Reduction]], str]] = {
    "float64": (
        lambda: given(dtype=torch.float64),
        lambda p: [],
        "float64: a GPU has no fast products of it",
    ),
    "wide": (lambda: given(3, 3, width=257), lambda p: [], "wide heads: up to 256; got 257"),
    "empty": (lambda: given(3, 0), lambda p: [], "an empty axis: there is nothing to launch for"),
    "biases": (
        lambda: given(3, 3, bias=SumOfBiases(ch.alibi(2), ch.alibi(2))),
        lambda p: [],
        "bias: it takes a tensor, alibi and relative, one of each; got alibi(2) + alibi(2)",
    ),
    "statistic": (given, lambda p: [Others()], "statistics that it has not: Others"),
    "largest": (given, lambda p: [Largest(p, 65)], "the k largest weights: up to 64; got 65"),
    "near": (given, lambda p: [Near(p, 1), Near(p, 2)], "Near: up to 1 in a pass; got 2"),
    "keys": (given, lambda p: 3 * keys_of(p), "OfKey: up to 2 in a pass; got 3"),
    "mask": (
        lambda: given(3, 3, mask=torch.rand(3, 3) < 0.5),
        lambda p: [],
        "mask that is no short list of runs of keys for each query",
    ),
    "runs": (
        lambda: given(9, 9, mask=ch.documents([0, 1, 0, 1, 0, 1, 0, 1, 0])),
        lambda p: [],
        "mask of many runs: up to 4 runs of keys a query; got 5",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, reductions, reason = REASONS[name]
    monkeypatch.setattr(triton_pass, "find_spec", lambda name: True)
    problem = problem_of(call())
    assert triton_pass.limits(AskedOfWeights(problem, reductions(problem))) == [reason]


def test_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pass, "find_spec", lambda name: True)
    nothing = torch.zeros(1, 1, 3, 16, device="meta")
    problem = make_problem(nothing, nothing, nothing, mask=ch.causal())
    (reason,) = triton_pass.limits(AskedOfWeights(problem, []))
    assert reason.startswith("tensors that cannot be read: tiles are found by reading the mask")
