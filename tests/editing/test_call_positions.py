"""The positions of queries and keys: beside every cache, padded and in pieces, as in the whole text."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.editing.layer_edit import LayerEdit
from clearhead.errors import EditError, EditWarning
from clearhead.layers import (
    Cache,
    CacheBundle,
    FixedCache,
    GrowingCache,
    SlidingCache,
    StaticCache,
)
from tests.integrations.models import inputs, make

WIDTH, HEADS, LEN = 12, 4, 6
WINDOW = ch.causal() & ch.sliding_window(left=4)
CACHES: dict[str, Callable[[], Cache]] = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(9),
    "fixed": lambda: FixedCache(9),
    "sliding": lambda: SlidingCache(5),
    "sliding, spare": lambda: SlidingCache(5, spare=2),
}
EDITS: dict[str, Callable[[LayerEdit], None]] = {
    "positions": lambda layer: layer.heads[0].hide(query=[2, 3], key=1),
    "slices": lambda layer: layer.heads[1, 2].hide(query=slice(2, None), key=slice(1, 3)),
    "mask": lambda layer: layer.heads[3].hide(mask=ch.sliding_window(left=1) | ch.prefix(1)),
    "scale": lambda layer: layer.scale(key=2, by=3.0),
}
# Of two rows the first has 4 tokens, the other 6.
PADDED = {
    "left": torch.tensor([[False] * 2 + [True] * 4, [True] * 6]),
    "right": torch.tensor([[True] * 4 + [False] * 2, [True] * 6]),
    "between": torch.tensor([[True, False, True, False, True, True], [True] * 6]),
}


class Own(nn.Module):
    """Attention of one's own beside a cache, which may come by its place."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        cache = cache[self] if isinstance(cache, CacheBundle) else cache
        key, value = cache.append(heads, heads)
        context = ch.attend(heads, key, value, mask=ch.causal() & cache.mask())
        return self.out(context.transpose(1, 2).flatten(2))


def layer(**options: Any) -> ch.MultiHeadAttention:
    return ch.MultiHeadAttention(WIDTH, num_heads=HEADS, **options).double().eval()


def text(batch: int = 2) -> Tensor:
    return torch.randn(batch, LEN, WIDTH, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("cuts", [[6], [3, 3], [1] * 6, [2, 1, 1, 2]])
@pytest.mark.parametrize("cache", CACHES)
def test_pieces_of_a_padded_batch_are_each_row_alone(cache: str, cuts: list[int]) -> None:
    model, x = layer(mask=WINDOW), text()
    for name, change in EDITS.items():
        for side, valid in {"none": None, **PADDED}.items():
            with ch.edit(model) as edit:
                change(edit[0])
                held = CacheBundle(lambda _: CACHES[cache]())
                masks = [None] * len(cuts) if valid is None else valid.split(cuts, dim=1)
                pieces = zip(x.split(cuts, dim=1), masks, strict=True)
                steps = [model(piece, valid=mask, cache=held) for piece, mask in pieces]
                real = torch.ones(2, LEN, dtype=torch.bool) if valid is None else valid
                alone = [model(row[mask][None])[0] for row, mask in zip(x, real, strict=True)]
            found = torch.cat(steps, dim=1)[real]
            torch.testing.assert_close(found, torch.cat(alone), msg=lambda m: f"{name} {side} {m}")  # noqa: B023


@torch.no_grad()
@pytest.mark.parametrize("bundled", [True, False])
def test_attention_of_ones_own_beside_a_cache(bundled: bool) -> None:
    model, x = Own().double(), text()
    with ch.edit(model) as edit:
        edit[""].heads[1].hide(query=slice(3, None), key=[0, 2])
        edit[""].heads[2].hide(mask=ch.sliding_window(left=1))
        whole = model(x, GrowingCache())
        held: Any = CacheBundle(lambda _: FixedCache(8)) if bundled else FixedCache(8)
        steps = [model(piece, held) for piece in x.split([3, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


@torch.no_grad()
def test_the_queries_of_a_context_that_is_held_are_not_known() -> None:
    model, x, context = layer(), text(1), text(1)
    cache = GrowingCache()
    edit, edited = ch.edit(model), ch.edit(model)
    edit[0].hide(key=1)
    with edit, ch.watch(model) as seen:
        whole = model(x, context)
        steps = [model(piece, context, cache=cache) for piece in x.split([2, 4], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert all(bool((call[..., 1] == 0).all()) for call in seen.calls(0))
    edited[0].hide(query=3, key=1)
    with pytest.raises(EditError, match=re.escape("[edit.positions]")), edited:
        model(x, context, cache=cache)


@pytest.mark.parametrize("options", [{"add_zero_attn": True}, {"add_bias_kv": True}])
def test_a_key_that_is_no_token_has_no_position(options: dict[str, bool]) -> None:
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options).double().eval()
    x, hidden = text(), torch.ones(LEN, LEN, dtype=torch.bool).triu(1)
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[""].heads[0].hide(mask=ch.causal())
        edit[""].heads[1].hide(query=slice(2, None), key=-1)
        model(x, x, x, need_weights=False)
    weights = seen[0].dense()
    assert torch.equal(weights[0, 0, :, :LEN] == 0, hidden)
    assert bool((weights[:, :2, :, LEN] > 0).all())
    assert bool((weights[:, 1, 2:, LEN - 1] == 0).all())
    assert bool((weights[:, 1, :2, LEN - 1] > 0).all())


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("room", [7, 20])
def test_room_of_a_static_cache_is_no_text(name: str, room: int) -> None:
    """A mask that hides nothing moves nothing."""
    model = make(name, "sdpa").double()
    ids = inputs(name)["input_ids"]
    before = model(ids, use_cache=False).logits
    for mask in (ch.causal(), ch.sliding_window(left=30), ch.full()):
        for cuts in ([ids.shape[1]], [3, 1, ids.shape[1] - 4]):
            past = transformers.StaticCache(model.config, max_cache_len=max(room, ids.shape[1]))
            edit, pieces = ch.edit(model), ids.split(cuts, dim=1)
            edit["*"].hide(mask=mask)
            with pytest.warns(EditWarning, match=re.escape("[edit.no-effect]")), edit:
                steps = [model(piece, past_key_values=past).logits for piece in pieces]
            torch.testing.assert_close(torch.cat(steps, dim=1), before)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_negative_positions_count_from_the_last_real_token(side: str) -> None:
    model = make("llama", "eager").double()
    given = inputs("llama", side)
    real = given["attention_mask"].bool()
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[1].hide(query=-1, key=slice(-3, -1))
        model(**given)
    hidden = seen[1].dense()[:, 0] == 0
    for row in range(len(real)):
        places = real[row].nonzero()[:, 0]
        expected = torch.ones(len(places), len(places)).triu(1).bool()
        expected[-1, -3:-1] = True
        assert torch.equal(hidden[row][places][:, places], expected)


@torch.no_grad()
def test_the_end_is_that_of_each_step() -> None:
    model, x = layer(mask=ch.causal()), text()
    cache = GrowingCache()
    with ch.edit(model) as edit, ch.watch(model) as seen:
        edit[0].hide(query=-1, key=-2)
        for piece, valid in zip(
            x.split([3, 1, 2], 1), PADDED["right"].split([3, 1, 2], 1), strict=True
        ):
            model(piece, valid=valid, cache=cache)
    first, second, third = (call.dense()[:, 0] == 0 for call in seen.calls(0))
    assert first[0].tolist() == [[False, True, True], [False, False, True], [False, True, False]]
    assert second[:, 0].tolist() == [[False, False, True, False]] * 2
    assert third[1].tolist() == [[False] * 5 + [True], [False] * 4 + [True, False]]
