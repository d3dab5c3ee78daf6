"""The calls that a mask is lowered to, the refusals, and the tensors that are never allocated."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.attention.biases import SumOfBiases
from clearhead.attention.kernels import _lowering, eager, fused
from clearhead.attention.problem import Problem, make_problem
from clearhead.masks import tiles
from tests.attention.kernels.definition import assert_agrees, draw, outcome, take_apart
from tests.memory import LargestTensor

MASKS: dict[str, Any] = {
    "none": None,
    "causal": ch.causal(),
    "padded": ch.causal() & ch.padding([64, 20, 1]),
    "padded on the left": ch.causal() & ch.padding([64, 20, 0], side="left"),
    "window": ch.sliding_window(left=3, right=2),
    "documents": ch.causal() & ch.documents([0] * 30 + [1] * 34),
    "prefix": ch.causal() | ch.prefix([5, 0, 64]),
    "holes": ch.padding(torch.rand(3, 64) > 0.5),
    "dense": ch.dense(torch.rand(3, 2, 64, 64) > 0.5),
}


def problem(mask: Any, **options: Any) -> Problem:
    return make_problem(**draw(3, 2, query_len=64, head_dim=8), mask=mask, **options)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("none", [(False, False)]),
        ("causal", [(True, False)]),
        ("documents", [(True, False)] * 2),
        ("padded", [(True, False), (True, False), (False, False), (False, False)]),
    ],
)
def test_simple_masks_need_no_mask(
    name: str, kinds: list[tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lowering, "WORTH_SPANS", 0)
    monkeypatch.setattr(_lowering, "WORTH_SLICING", 1)
    pieces = _lowering.lower(problem(MASKS[name]))
    assert [(piece.causal, piece.masked) for piece in pieces] == kinds


def test_rows_that_are_alike_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lowering, "WORTH_SPANS", 0)
    (piece,) = _lowering.lower(problem(ch.causal() & ch.padding([64, 64, 64])))
    assert (piece.rows, piece.causal) == (slice(0, 3), True)


@pytest.mark.parametrize(("query_len", "count"), [(1024, 1), (1025, 5), (4096, 16)])
def test_queries_read_few_keys_beside_those_that_they_see(query_len: int, count: int) -> None:
    """Windows in documents are neither rectangles nor triangles and do not repeat; few queries are one call."""
    texts = torch.arange(query_len).repeat_interleave(60 + 7 * (torch.arange(query_len) % 9))
    mask = ch.sliding_window(left=40, right=0) & ch.documents(texts[:query_len].tolist())
    pieces = _lowering.lower(make_problem(*torch.randn(3, 1, 1, query_len, 2), mask=mask))
    assert len(pieces) == count
    longest = 60 + 7 * 8
    for piece in pieces[: count - 1]:
        assert piece.queries.stop - piece.queries.start <= 256
        assert piece.keys.stop - piece.keys.start <= 256 + longest


BY_DISTANCE: dict[str, Any] = {
    "none": None,
    "causal": ch.causal(),
    "causal, offset": ch.causal(offset=2),
    "window": ch.causal() & ch.sliding_window(left=9),
    "both sides": ch.sliding_window(left=4, right=6),
    "itself and far away": ch.sliding_window(left=0, right=0)
    | (ch.causal() & ~ch.sliding_window(left=5, right=5)),
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", BY_DISTANCE)
def test_what_goes_by_the_distance_is_a_view_of_a_strip(
    name: str, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, with grouped heads and other lengths; a NaN behind the mask too."""
    monkeypatch.setattr(_lowering, "WORTH_SPANS", 0)
    monkeypatch.setattr(_lowering, "STRIP", 16)
    tensors = draw(2, 4, 2, 37, 41, 5, 7)
    if sinks:
        tensors["sinks"] = torch.randn(4)
    for bias in (ch.alibi(4), ch.relative(torch.randn(4, 11)), ch.relative(torch.randn(1, 3))):
        options = {"mask": BY_DISTANCE[name], "bias": bias}
        pieces = _lowering.lower(make_problem(**tensors, **options))
        assert all(piece.strip for piece in pieces)
        assert len(pieces) == (1 if name == "none" else 3)
        assert_agrees("fused", tensors, **options)
    tensors["value"][:, :, 30] = torch.nan
    options = {"mask": BY_DISTANCE[name], "bias": ch.alibi(4)}
    found, truth = (ch.attend(**tensors, **options, kernel=each) for each in ("fused", "eager"))
    assert torch.equal(found.isnan(), truth.isnan())


@pytest.mark.parametrize(
    ("mask", "bias", "query_len"),
    [
        (ch.causal() & ch.padding([41, 20]), ch.alibi(4), 37),
        (ch.causal(offset=[0, 3]), ch.alibi(4), 37),
        (ch.causal(), ch.alibi(4), 43),  # the first two see nothing
        (ch.causal(), ch.relative(torch.tensor([[0.0, -torch.inf, 1.0]])), 37),
        (ch.causal(), SumOfBiases(ch.alibi(4), ch.relative(torch.ones(1, 3))), 37),
        (ch.causal(), torch.randn(37, 41), 37),
    ],
    ids=["padding", "offsets", "empty rows", "hidden by the bias", "a sum", "a tensor"],
)
def test_what_does_not_go_by_the_distance_is_made(
    mask: ch.Mask, bias: Any, query_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lowering, "WORTH_SPANS", 0)
    tensors = draw(2, 4, 2, query_len, 41)
    assert not any(
        piece.strip for piece in _lowering.lower(make_problem(**tensors, mask=mask, bias=bias))
    )
    assert_agrees("fused", tensors, mask=mask, bias=bias)


def test_a_strip_takes_the_memory_of_the_tokens() -> None:
    posed = make_problem(
        **draw(1, 4, query_len=1500, head_dim=8), mask=ch.causal(), bias=ch.alibi(4)
    )
    with LargestTensor() as seen:
        fused.attend(posed)
    assert seen.largest <= 4 * 4 * 1500 * 8
    assert fused.how(posed) == (
        "6 fused calls on cpu, 6 with a part of the mask; the largest part of the mask takes "
        "27.5 kB"
    )


REPEATED: dict[str, tuple[Any, int, list[tuple[bool, bool, int]]]] = {
    # name: mask, tokens, and of each piece whether it is causal, whether masked, and its tiles
    "window": (
        ch.sliding_window(left=7, right=3), 67, [(False, True, 1), (False, True, 7), (False, True, 1)]
    ),
    "causal window": (ch.sliding_window(left=7, right=0), 67, [(False, True, 1), (False, True, 7)]),
    "wide window": (
        ch.sliding_window(left=20, right=0), 101, [(False, True, 1)] * 2 + [(False, True, 5)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", REPEATED)
def test_tiles_that_are_alike_are_one_call(
    name: str, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all layouts, with grouped heads and a wider value, forward and backward; a NaN behind the mask too."""
    mask, tokens, kinds = REPEATED[name]
    take_apart(monkeypatch)
    monkeypatch.setattr(tiles, "TILE", 8)
    monkeypatch.setattr(tiles, "WIDE_TILE", 16)
    monkeypatch.setattr(tiles, "WIDE", 20)
    for heads, batch in ((6, 1), (2, 3)):
        tensors = draw(batch, 6, heads, tokens, value_head_dim=7, dtype=torch.float64)
        if heads == 2:  # tokens before heads, as layers have them
            tensors = {
                at: each.transpose(1, 2).contiguous().transpose(1, 2)
                for at, each in tensors.items()
            }
        posed = make_problem(**tensors, mask=mask)
        pieces = _lowering.lower(posed)
        assert [(each.causal, each.masked, each.tiles) for each in pieces] == kinds
        total = fused.logsumexp(posed)
        assert total is not None
        torch.testing.assert_close(total, eager.logsumexp(posed))
        if sinks:
            tensors["sinks"] = torch.randn(6, dtype=torch.float64)
        assert_agrees("fused", tensors, mask=mask)
        tensors["value"][0, :, tokens // 2, 1] = torch.nan
        poisoned = make_problem(**tensors, mask=mask)
        torch.testing.assert_close(fused.attend(poisoned), eager.attend(poisoned), equal_nan=True)


def test_one_call_where_there_were_many() -> None:
    """Beside other busy processes each parallel region waits for a thread to get a core."""
    for mask, calls in (
        (ch.sliding_window(left=255, right=0), 2),
        (ch.causal() & ch.documents(lengths=[256] * 32), 1),
    ):
        posed = make_problem(**draw(1, 2, query_len=8192, head_dim=8), mask=mask)
        with torch.no_grad(), torch.profiler.profile(acc_events=True) as profile:
            fused.attend(posed)
        (attention,) = (
            each.count
            for each in profile.key_averages()
            if each.key == "aten::scaled_dot_product_attention"
        )
        assert attention == calls


# One run of keys for all queries, or a short hull of several: the keys beside it are not there.
IN_SIGHT = {
    "window": (ch.sliding_window(left=9, right=0), 1, slice(502, 512)),
    "window of few queries": (ch.sliding_window(left=9, right=0), 70, slice(433, 512)),
    "causal from an offset": (ch.causal(offset=99), 1, slice(0, 100)),
    "padding on the left": (ch.padding([40, 40], side="left"), 5, slice(472, 512)),
    "valid": (ch.padding((torch.arange(512) > 490).expand(2, -1)), 5, slice(491, 512)),
    "window and padding": (
        ch.sliding_window(left=9, right=0) & ch.padding([507, 507]), 1, slice(502, 507)
    ),
    "nothing": (ch.padding([0, 0]), 3, slice(0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -9.0, -1.0, 2.0]).double()])
@pytest.mark.parametrize("name", IN_SIGHT)
def test_what_no_query_sees_is_not_read(
    name: str, sinks: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to look for NaN, of which it is full."""
    mask, query_len, keys = IN_SIGHT[name]
    options: dict[str, Any] = {"mask": mask, "sinks": sinks}
    tensors = draw(2, 4, 2, query_len=query_len, kv_len=512, dtype=torch.float64)
    assert_agrees("fused", tensors, **options)

    posed = make_problem(**tensors, **options)
    expected = fused.attend(posed), fused.logsumexp(posed)
    grad = torch.randn_like(expected[0])

    def attended(**given: torch.Tensor) -> torch.Tensor:
        return ch.attend(**given, **options, kernel="fused")

    clean = outcome(attended, tensors, grad)
    beside = torch.ones(512, dtype=torch.bool)
    beside[keys] = False
    for each in ("key", "value"):
        tensors[each][:, :, beside] = torch.nan
    monkeypatch.delattr(fused, "contain")  # the way on which a NaN that is found leads
    posed = make_problem(**tensors, **options)
    assert torch.equal(fused.attend(posed), expected[0])
    total = fused.logsumexp(posed)
    assert total is not None
    assert expected[1] is not None
    assert torch.equal(total, expected[1])
    for of, result in outcome(attended, tensors, grad).items():
        assert torch.equal(result, clean[of]), of


@pytest.mark.parametrize(
    "mask",
    [
        ch.causal() & ch.padding([4096, 1000]),
        ch.causal() & ch.sliding_window(left=100),
        ch.causal() & ch.documents([0] * 1000 + [1] * 3096),
    ],
)
def test_no_tensor_of_queries_by_keys(mask: ch.Mask) -> None:
    posed = make_problem(**draw(2, 2, query_len=4096, head_dim=8), mask=mask)
    with torch.no_grad(), LargestTensor() as seen:
        fused.attend(posed)
    assert seen.largest < 4096 * 4096 / 4


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [2, 1])
def test_logsumexp_and_its_gradient(name: str, heads: int) -> None:
    given = draw(3, 2, heads, query_len=64, head_dim=8, dtype=torch.float64)
    posed = make_problem(**given, mask=MASKS[name])
    leaves = [t.requires_grad_() for t in (posed.query, posed.key)]
    ours, theirs = fused.logsumexp(posed), eager.logsumexp(posed)
    assert ours is not None
    assert torch.equal(ours == -torch.inf, theirs == -torch.inf)
    torch.testing.assert_close(ours, theirs)
    toward = torch.randn_like(theirs).masked_fill(theirs == -torch.inf, 0.0)
    for mine, other in zip(
        torch.autograd.grad((ours.nan_to_num(neginf=0.0) * toward).sum(), leaves),
        torch.autograd.grad((theirs.nan_to_num(neginf=0.0) * toward).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_no_logsumexp_where_it_would_be_wrong() -> None:
    given = draw(1, 1, query_len=5)
    given["key"][0, 0, 2, 1] = torch.nan
    assert fused.logsumexp(make_problem(**given)) is None
    assert fused.logsumexp(make_problem(**draw(1, 1, query_len=5), softcap=1.0)) is None


def test_refusals() -> None:
    def why(**options: Any) -> list[str]:
        return fused.refusals(problem(None, **options))

    assert why() == []
    assert why(softcap=1.0) == ["softcap: PyTorch's fused attention has none"]
    assert why(dropout=0.5) == ["dropout: PyTorch's fused attention has none on the CPU"]
    assert why(sinks=torch.zeros(2), bias=torch.zeros(64, 64)) == []
    assert why(bias=torch.zeros(64, 64, requires_grad=True)) == [
        "bias that is trained: PyTorch's fused attention on the CPU gives it no gradient"
    ]
    elsewhere = make_problem(
        *(torch.zeros(1, 2, 3, 4, device="meta") for _ in range(3)),
        sinks=torch.zeros(2, device="meta"),
    )
    assert fused.refusals(elsewhere) == [
        "sinks: they need the logsumexp and its gradient, which this kernel has on the CPU alone; "
        "the tensors are on meta"
    ]


@pytest.mark.parametrize(("length", "step"), [(17, 1), (23, 3), (300, 3)])
def test_views_that_overlap(length: int, step: int) -> None:
    """PyTorch's kernel hands short ones to BLAS with rows that begin before the last one ends."""
    windows = torch.randn(2, 3, length).unfold(-1, 10, step)
    repeated = torch.randn(2, 3, 1, 10).expand(windows.shape)
    for query, key, value in ((windows,) * 3, (windows, repeated, windows)):
        tensors = {"query": query, "key": key, "value": value}
        assert_agrees("fused", tensors)
        assert_agrees("fused", tensors, mask=ch.causal())
