"""Positions that a call is given: tokens whose position is not their index."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import GrowingCache, LatentAttention, MultiHeadAttention, Part, Rotary
from tests.layers.caches.texts import KINDS
from tests.refusals import refusals, run

WIDTH, HEADS, HEAD_DIM, TOKENS = 12, 2, 6, 7
DEPTHS = torch.tensor([0, 1, 1, 2, 2, 2, 3])
PARENTS = [0, 0, 0, 1, 1, 2, 4]


def tree() -> Tensor:
    """True where a draft sees itself and the drafts that it goes on from."""
    seen = torch.eye(TOKENS, dtype=torch.bool)
    for token in range(1, TOKENS):
        seen[token] |= seen[PARENTS[token]]
    return seen


def path(token: int) -> list[int]:
    return tree()[token].nonzero()[:, 0].tolist()


class Learned(Part):
    """A trained vector for each position, added to query and key."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(97, HEAD_DIM)

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        query_rows, key_rows = self.table(query_positions), self.table(key_positions)
        if query_positions.ndim == 2:
            query_rows, key_rows = query_rows[:, None], key_rows[:, None]
        return query + query_rows, key + key_rows


PARTS: dict[str, Callable[[], list[Part]]] = {
    "rotary": lambda: [Rotary(HEAD_DIM)],
    "learned": lambda: [Learned()],
    "alibi": lambda: [ch.layers.ScoreBias(ch.alibi(HEADS))],
    "buckets": lambda: [ch.layers.RelativeBias(HEADS, num_buckets=8, max_distance=9)],
}


def made(parts: str, mask: ch.Mask | None = None) -> MultiHeadAttention:
    mask = ch.causal() if mask is None else mask
    layer = MultiHeadAttention(WIDTH, num_heads=HEADS, mask=mask, parts=PARTS[parts]())
    return layer.double().eval()


def drawn(batch: int = 2, tokens: int = TOKENS) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, dtype=torch.float64)


def by_hand(layer: MultiHeadAttention, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    """The definition: heads, rotated or added to at these positions, over the whole matrix."""
    query, key, value = (
        projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for projection in (layer.query_projection, layer.key_projection, layer.value_projection)
    )
    (part,) = layer.parts
    positions = positions.expand(x.shape[:2])
    apart = (positions[:, :, None] - positions[:, None, :])[:, None]
    bias = None
    if isinstance(part, Rotary):
        query, key = (part(each, positions) for each in (query, key))
    elif isinstance(part, Learned):
        query, key = (each + part.table(positions)[:, None] for each in (query, key))
    elif isinstance(part, ch.layers.RelativeBias):
        numbers = part.table[part.buckets()]
        bias = numbers[part.max_distance - apart[:, 0]].permute(0, 3, 1, 2)
    else:
        bias = -torch.tensor([2**-4, 2**-8]).double().view(-1, 1, 1) * apart.abs()
    return layer.join(ch.attend(query, key, value, mask=visible, bias=bias, kernel="eager"), x)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("rows", [False, True], ids=["alike", "by row"])
def test_the_parts_go_by_them_and_the_masks_by_the_index(parts: str, rows: bool) -> None:
    layer, x = made(parts, ch.causal() & ch.sliding_window(left=3)), drawn()
    positions = torch.randint(0, 9, (2, TOKENS)) if rows else torch.tensor([3, 3, 0, 8, 1, 1, 5])
    window = (ch.causal() & ch.sliding_window(left=3)).to_dense(TOKENS, TOKENS)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    found = layer(leaves[0], positions=positions)
    right = by_hand(layer, leaves[1], positions, window)
    torch.testing.assert_close(found, right)
    for mine, theirs in zip(
        torch.autograd.grad(found.sin().sum(), [leaves[0], *layer.parameters()]),
        torch.autograd.grad(right.sin().sum(), [leaves[1], *layer.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    counted = torch.arange(TOKENS)
    told = repr(layer.weights(x, positions=counted))
    assert ("bias=alibi(2) by position" in told) == (parts == "alibi")
    torch.testing.assert_close(layer(x, positions=counted), layer(x))
    torch.testing.assert_close(layer(x[0], positions=counted), layer(x[0]))


@pytest.mark.parametrize("parts", PARTS)
def test_a_tree_of_drafts_is_each_of_its_paths(parts: str) -> None:
    layer, x = made(parts), drawn(1)
    found = layer(x, positions=DEPTHS, mask=tree())
    for token in range(TOKENS):
        torch.testing.assert_close(found[:, token], layer(x[:, path(token)])[:, -1])


@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize("parts", ["rotary", "learned"])
@torch.no_grad()
def test_a_tree_of_drafts_after_a_text(parts: str, kind: str) -> None:
    layer, cache, x, text = made(parts), KINDS[kind](), drawn(1), drawn(1, 3)
    layer(text, cache=cache)
    held = len(cache)
    whole = torch.cat([torch.ones(TOKENS, held, dtype=torch.bool), tree()], dim=1)
    found = layer(x, cache=cache, positions=held + DEPTHS, mask=whole)
    for token in range(TOKENS):
        alone = layer(torch.cat([text, x[:, path(token)]], dim=1))
        torch.testing.assert_close(found[:, token], alone[:, -1])
    cache.truncate(held)
    torch.testing.assert_close(layer(x, cache=cache), layer(torch.cat([text, x], dim=1))[:, held:])


@torch.no_grad()
def test_latent_attention_and_a_context() -> None:
    layer = LatentAttention(
        WIDTH,
        num_heads=2,
        head_dim=4,
        rotary_dim=6,
        latent_dim=5,
        mask=ch.causal(),
        parts=[Rotary(6)],
    ).double()
    x = drawn(1)
    found = layer(x, positions=DEPTHS, mask=tree())
    for token in range(TOKENS):
        torch.testing.assert_close(found[:, token], layer(x[:, path(token)])[:, -1])
    weights = layer.weights(x, positions=DEPTHS, mask=tree()).dense()
    assert torch.equal(weights[0, 0] > 0, tree())
    cross = MultiHeadAttention(WIDTH, num_heads=HEADS, parts=[Rotary(HEAD_DIM)]).double()
    context = drawn(1, 5)
    found = cross(x, context, positions=DEPTHS)
    for token in range(TOKENS):  # of the queries; the tokens of the context are counted
        alone = cross(x[:, [token] * 4], context)[:, DEPTHS[token]]
        torch.testing.assert_close(found[:, token], alone)


test_refusals = refusals(
    torch.no_grad()(run),
    (
        lambda: made("rotary")(drawn(), positions=torch.zeros(TOKENS)),
        "positions.type",
        "torch.float32",
    ),
    (
        lambda: made("rotary")(drawn(), positions=torch.zeros(3, 2, TOKENS, dtype=torch.int64)),
        "layer.positions",
        "7 // 2 // 7 // (3, 2, 7)",
    ),
    (
        lambda: made("rotary")(drawn(), positions=torch.arange(TOKENS, device="meta")),
        "layer.positions",
        "cpu // meta",
    ),
    (
        lambda: made("alibi")(drawn(), positions=DEPTHS, cache=GrowingCache()),
        "layer.positions-bias",
        "alibi(2)",
    ),
)
