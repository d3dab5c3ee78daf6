"""Calls that are asked again: their numbers, and everything that makes them other calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.masks import Extent, small
from clearhead.masks.base import Mask
from tests.attention.kernels.definition import close, draw

MASKS: dict[str, Callable[[], Mask | None]] = {
    "none": lambda: None,
    "causal": ch.causal,
    "window": lambda: ch.sliding_window(left=2, right=1),
    "offset": lambda: ch.causal(offset=3),
    "offsets": lambda: ch.causal(offset=[0, 2, 4]),
    "valid": lambda: ch.padding(torch.arange(11) < torch.tensor([[11], [3], [0]])),
    "alike": lambda: ch.padding((torch.arange(11) < 7).expand(3, 11)),
    "lengths": lambda: ch.padding([4, 0, 11], side="left"),
    "and": lambda: ch.causal() & ch.padding([4, 0, 11]),
    "documents": lambda: ch.causal() & ch.documents([0] * 4 + [1] * 7),
    "dense": lambda: ch.dense(torch.ones(1, 11, dtype=torch.bool).tril(3)),
    "or": lambda: ch.sliding_window(left=1, right=0) | ch.padding([1, 2, 3]),
}


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "KEPT", {})


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of attend without options, whether it was made without its checks."""
    calls: list[bool] = []
    checked: list[object] = []
    attend: Any = ch.attend

    def checking(*given: Any, **options: Any) -> Any:
        checked.append(options)
        return make_problem(*given, **options)

    def told(*given: Any, **options: Any) -> Tensor:
        before = len(checked)
        context = attend(*given, **options)
        if "kernel" not in options:
            calls.append(len(checked) == before)
        return context

    monkeypatch.setattr("clearhead.attention.functional.make_problem", checking)
    monkeypatch.setattr(ch, "attend", told)
    return calls


def assert_defined(tensors: dict[str, Tensor], **options: Any) -> None:
    """A call without a kernel gives the numbers of the definition."""
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    defined, plain = (ch.attend(**given, **options, kernel="eager") for given in (exact, tensors))
    close(ch.attend(**tensors, **options), defined, plain, "the context")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("queries", [1, 11])
@pytest.mark.parametrize("name", MASKS)
def test_a_call_asked_again_has_the_numbers_of_the_first(
    name: str, queries: int, dtype: torch.dtype, repeated: list[bool]
) -> None:
    mask = MASKS[name]()
    for _ in range(4):
        tensors = draw(query_len=queries, kv_len=11, dtype=dtype)
        assert_defined(tensors, mask=mask)
    assert repeated == [False, False, True, True]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": ch.alibi(6)},
    "both": {"scale": 0.3, "bias": ch.alibi(6)},
}


@pytest.mark.parametrize("heads", [6, 2])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_made_in_the_call_are_recognised(
    name: str, option: str, heads: int, repeated: list[bool]
) -> None:
    """Lengths may differ from call to call: they are in the mask, not in what recognises it."""
    for _ in range(4):
        tensors = draw(num_kv_heads=heads, query_len=11)
        assert_defined(tensors, mask=MASKS[name](), **OPTIONS[option])
    assert repeated == [False, False, True, True]


def test_a_nan_shows_where_it_is_seen(repeated: list[bool]) -> None:
    mask, tensors = ch.sliding_window(left=2, right=0), draw(query_len=11)
    for _ in range(3):
        ch.attend(**tensors, mask=mask)
    for name in ("query", "key", "value"):
        for broken in (torch.nan, torch.inf, -torch.inf):
            given = tensors | {name: tensors[name].clone()}
            given[name][1, 2, 5, 3] = broken
            shows = ch.attend(**given, mask=mask).isnan().any(dim=-1)[1, 2]
            seen_by = [5] if name == "query" else [5, 6, 7]
            assert shows.nonzero()[:, 0].tolist() == seen_by
    given = tensors | {"key": tensors["key"] * 1e20}
    assert ch.attend(**given, mask=mask).isnan().all()
    assert repeated[2:] == [True] + 10 * [False]


@dataclass(frozen=True, eq=False, repr=False)
class Listed(Mask):
    """The keys of a list that somebody may change."""

    keys: list[int]

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return torch.isin(key_index, torch.tensor(self.keys))

    def describe(self) -> str:
        return f"listed({self.keys})"


def test_a_mask_that_may_change_is_asked_anew(repeated: list[bool]) -> None:
    tensors, keys, dense = draw(), [1, 2], torch.ones(19, 19, dtype=torch.bool)
    given = Listed(keys), ch.causal() & ch.dense(dense), ch.dense(dense), dense
    before = [ch.attend(**tensors, mask=mask) for mask in given for _ in range(3)][2::3]
    keys[0] = 5
    dense[:, 0] = False
    for mask, was in zip(given, before, strict=True):
        now = ch.attend(**tensors, mask=mask)
        assert not torch.equal(now, was)
        torch.testing.assert_close(now, ch.attend(**tensors, mask=mask, kernel="eager"))


WINDOW, LONG_WINDOW = (ch.sliding_window(left=left, right=0) for left in (2, 300))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"bias": ch.alibi(6)}], ids=str)
@pytest.mark.parametrize(
    ("mask", "sizes"),
    [(WINDOW, (19, 19)), (ch.padding([0, 4, 19]), (19, 19)), (LONG_WINDOW, (1, 601))],
    ids=str,
)
def test_gradients_are_those_of_the_definition(
    mask: Mask, sizes: tuple[int, int], options: dict[str, Any], repeated: list[bool]
) -> None:
    with torch.inference_mode():
        for _ in range(4):
            ch.attend(**draw(3, 6, 6, *sizes), mask=mask, **options)
    tensors = {name: each.requires_grad_() for name, each in draw(3, 6, 6, *sizes).items()}
    context = ch.attend(**tensors, mask=mask, **options)
    found = torch.autograd.grad(context.square().sum(), [*tensors.values()])
    defined = ch.attend(**tensors, mask=mask, **options, kernel="eager").square().sum()
    for grad, other in zip(found, torch.autograd.grad(defined, [*tensors.values()]), strict=True):
        torch.testing.assert_close(grad, other)
    assert repeated == [False, False] + 3 * [sizes == (19, 19) or not options]


def test_second_derivatives_are_refused_again(repeated: list[bool]) -> None:
    query, key, value = draw().values()
    query.requires_grad_()
    contexts = [ch.attend(query, key, value, mask=ch.causal()) for _ in range(3)]
    [grad] = torch.autograd.grad(contexts[2].sum(), query, create_graph=True)
    with pytest.raises(ch.errors.UnsupportedError, match="first derivatives"):
        grad.sum().backward()
    assert repeated == [False, False, True]


def test_other_calls_are_checked_and_seen_as_ever(repeated: list[bool]) -> None:
    tensors, mask = draw(), ch.causal()
    for _ in range(3):
        ch.attend(**tensors, mask=mask)
    assert repeated == [False, False, True]
    query, key, value = tensors.values()
    for wrong in (
        (query, key, value[:, :, 1:]),
        (query, key, value.double()),
        (query[0], key, value),
        (query, key.to_sparse(), value),
        (query, key.tolist(), value),
    ):
        with pytest.raises(ch.errors.ClearheadError):
            ch.attend(*wrong, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert ch.attend(**tensors, mask=mask).dtype == torch.bfloat16
    grad = torch.func.grad(lambda query: ch.attend(query, key, value, mask=mask).sum())(query)
    assert grad.shape == query.shape
    turned = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (query, key, value)]
    torch.testing.assert_close(
        ch.attend(*turned, mask=mask), ch.attend(**tensors, mask=mask, kernel="eager")
    )
    with ch.watch(layer := Attending()) as seen:
        layer(**tensors)
    assert len(seen) == 1
    assert repeated[3:] == [False, False, False, False]


class Attending(torch.nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, mask=ch.causal())


def test_so_many_answers_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST", 3)
    tensors = draw()
    for left in range(7):
        for _ in range(3):
            ch.attend(**tensors, mask=ch.sliding_window(left=left))
        assert len(small.KEPT) <= 3
