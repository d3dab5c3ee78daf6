"""A few queries by two products around a softmax: the definition's numbers, and NaN where it must be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.kernels import _by_scores, fused
from clearhead.testing.tolerances import assert_no_worse
from tests.attention.kernels.definition import Tensors, context, draw
from tests.turns import in_turn

NAN, INF, LONG = torch.nan, torch.inf, 1e25

MASKS: dict[str, Callable[[int], ch.Mask | None]] = {
    "none": lambda n: None,
    "causal": lambda n: ch.causal(),
    "window": lambda n: ch.sliding_window(left=9, right=0),
    "padding": lambda n: ch.padding([23, 11]),
    "causal & padding": lambda n: ch.causal() & ch.padding([23, 0]),
    "per head": lambda n: ch.dense(torch.rand(1, 6, n, 23) < 0.5),
    "room of a cache": lambda n: ch.dense((torch.arange(23) < 17).expand(n, 23)),
    "nothing": lambda n: ch.dense((torch.arange(23) < torch.arange(6)[:, None])[None, :, None]),
}
QUERIES = [1, 2, 7, 16]
CASES = [(name, queries) for name in MASKS for queries in QUERIES]
HEADS = [(6, 6), (6, 2), (6, 1)]


def _stored(tensors: Tensors) -> Tensors:
    """Keys and values as slices of longer tensors, as a cache stores them."""
    longer = {
        name: torch.full((*each.shape[:2], 29, each.shape[3]), NAN, dtype=each.dtype)
        for name, each in tensors.items()
    }
    for name in ("key", "value"):
        longer[name][:, :, :23] = tensors[name]
        tensors[name] = longer[name][:, :, :23]
    return tensors


@pytest.mark.parametrize(
    ("name", "queries", "heads", "dtype"),
    [
        (*case, *rest)
        for case, rest in in_turn(
            CASES, [(h, d) for h in HEADS for d in (torch.float32, torch.float64)]
        )
    ],
)
def test_numbers_of_the_definition(
    name: str,
    queries: int,
    heads: tuple[int, int],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "SMALL", 0)
    monkeypatch.setattr(_by_scores, "SMALL", 0)
    mask, tensors = MASKS[name](queries), _stored(draw(2, *heads, queries, 23, 5, 3, dtype))
    assert ch.plan(**tensors, mask=mask).how.startswith("two products")
    exact = {each: tensor.double() for each, tensor in tensors.items()}
    truth, plain = context(**exact, mask=mask), context(**tensors, mask=mask)
    assert_no_worse(ch.attend(**tensors, mask=mask, kernel="fused"), truth, plain)


@pytest.mark.parametrize(
    "reason", ["gradients", "16 bits", "samples apart", "17 queries", "few numbers"]
)
def test_other_calls_are_fused(reason: str) -> None:
    queries, keys = 17 if reason == "17 queries" else 1, 13 if reason == "few numbers" else 1301
    tensors = draw(2, 8, 2, queries, keys, 32, 24)
    if reason == "gradients":
        tensors["query"].requires_grad_()
    if reason == "16 bits":
        tensors = {name: each.bfloat16() for name, each in tensors.items()}
    if reason == "samples apart":
        for name in ("key", "value"):
            tensors[name] = tensors[name].transpose(1, 2).contiguous().transpose(1, 2)
    assert "fused call" in ch.plan(**tensors).how


POISONS = [
    ("query", NAN), ("query", INF), ("query", LONG), ("key", NAN), ("key", INF), ("key", -INF), ("key", LONG),
    ("value", NAN), ("value", INF), ("value", -INF), ("both", LONG),
]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
@pytest.mark.parametrize("name", ["none", "causal", "window", "sinks", "again", "window again"])
def test_one_token_shows_what_it_sees(
    name: str, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    """A weight may be 0, and a key of −∞ scores −∞. Where a row is long and its score does not overflow, NaN
    and the number are both right."""
    kv_len = 601
    clean = draw(1, *heads, 1, kv_len, 64, 64, dtype)
    clean["query"][..., 0] = 3.0
    clean["key"][:, :, 7, 0] = -1e4  # so that the weight of this token is 0
    options: dict[str, Any] = {"mask": ch.causal() if name == "causal" else None}
    if is_window := name.startswith("window"):
        options["mask"] = ch.sliding_window(left=kv_len - 6, right=0)  # sees the last 596
    if name == "sinks":
        options["sinks"] = torch.linspace(-9.0, 3.0, heads[0]).to(dtype)
    for _ in range(3 if name.endswith("again") else 0):
        ch.attend(**clean, **options)
    for poisoned, poison in POISONS:
        if poison == LONG and dtype in (torch.float16, torch.float64):
            continue  # ∞, and not long
        for token in (3, 7, kv_len - 1):
            tensors = {name: each.clone() for name, each in clean.items()}
            group = heads[0] // heads[1]
            if poisoned in ("query", "both"):
                tensors["query"][:, group:, 0, 0] = poison
            if poisoned != "query":
                tensors["key" if poisoned == "both" else poisoned][:, 1, token, 0] = poison
            result = ch.attend(**tensors, **options)
            shows = torch.zeros_like(result, dtype=torch.bool)
            if not is_window or token > 4 or poisoned == "query":
                shows[:, group:, :, 0] = True
                shows[:, group:, :, :] |= poisoned != "value"
            case = poisoned, poison, token
            if poison != LONG or poisoned == "both":
                if poisoned == "both" and is_window and token <= 4:
                    continue  # the query alone is long
                assert torch.equal(result.isnan(), shows), case
                assert result[~shows].isfinite().all(), case
            else:
                _assert_nan_or_number(result, tensors, shows, options)


def _assert_nan_or_number(
    result: Tensor, tensors: Tensors, shows: Tensor, options: dict[str, Any]
) -> None:
    assert not result[~shows].isnan().any()
    exact = {each: tensor.double() for each, tensor in tensors.items()}
    truth = context(**exact, **{k: v.double() if k == "sinks" else v for k, v in options.items()})
    known = ~result.isnan()
    torch.testing.assert_close(result[known], truth[known].to(result.dtype), rtol=0.02, atol=0.02)
