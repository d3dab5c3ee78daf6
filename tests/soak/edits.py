"""Random edits beside every cache, padded, in pieces and in generations, against each row alone: attention
written out in float64 with the same pairs hidden, and no hook of ours."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

import clearhead as ch
from clearhead.editing.layer_edit import LayerEdit
from clearhead.layers import (
    Cache,
    CacheBundle,
    FixedCache,
    GrowingCache,
    SlidingCache,
    StaticCache,
)
from tests.editing.by_hand import by_hand, changing, edited
from tests.integrations.models import make

HEADS, WIDTH, LAST = 4, 16, 9
WINDOW = 5

CACHES: dict[str, Callable[[], Cache]] = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(LAST + 3),
    "fixed": lambda: FixedCache(LAST + 3),
    "sliding": lambda: SlidingCache(WINDOW),
    "sliding, spare": lambda: SlidingCache(WINDOW, spare=3),
}

MODELS = ("llama", "mistral", "gemma3", "gpt2", "qwen3", "gpt_oss")


class Drawn(NamedTuple):
    """An operation, and the pairs that it is for.

    Attributes:
        make: asks for it of a layer.
        kind: "hide", "scale" or "ablate".
        heads: those that it is for.
        pairs: bool (queries, keys), of the positions of a row and the ends of its calls.
        factor: of the weights.
    """

    make: Callable[[LayerEdit], None]
    kind: str
    heads: list[int]
    pairs: Callable[[int, list[int]], Tensor]
    factor: float = 1.0


def _selection(draw: random.Random, count: int) -> tuple[Any, Callable[[int, int], bool]]:
    """Positions as a user gives them, and whether one of them is chosen where a text ends somewhere."""
    kind = draw.choice(("one", "several", "from", "between", "bool", "last", "end"))
    one, two = sorted(draw.sample(range(count), 2)) if count > 1 else (0, 1)
    step = draw.choice((None, 2))
    if kind == "one":
        return one, lambda place, end: place == one
    if kind == "several":
        return [two, one], lambda place, end: place in (one, two)
    if kind == "from":
        return slice(
            one, None, step
        ), lambda place, end: place >= one and (place - one) % (step or 1) == 0
    if kind == "between":
        return slice(one, two), lambda place, end: one <= place < two
    if kind == "bool":
        mask = torch.tensor([draw.random() < 0.4 for _ in range(count)])
        return mask, lambda place, end: place < count and bool(mask[place])
    back = draw.randint(1, 3)
    if kind == "last":
        return -back, lambda place, end: place == end - back
    return slice(-back, None), lambda place, end: place >= max(0, end - back)


def _operation(draw: random.Random, count: int, from_end: bool) -> Drawn:
    """An operation on some heads of a text of so many tokens."""
    heads = sorted(draw.sample(range(HEADS), draw.randint(1, HEADS)))
    picked: Any = [head - HEADS if draw.random() < 0.2 else head for head in heads]
    kind = draw.choice(("hide", "hide", "hide", "mask", "scale", "ablate"))
    choices = [_selection(draw, count) for _ in "qk"]
    while not from_end and any(_counts_back(given) for given, _ in choices):
        choices = [_selection(draw, count) for _ in "qk"]
    (query, is_query), (key, is_key) = choices
    only = draw.choice(("both", "both", "query", "key")) if kind == "hide" else "both"
    mask = draw.choice((
        ch.sliding_window(left=draw.randint(0, 4)), ch.prefix(draw.randint(1, 4)), ch.causal(),
        ch.sliding_window(left=1) | ch.prefix(2), ~ch.sliding_window(left=2, right=2),
    ))  # fmt: skip
    factor = draw.choice((0.25, 3.0))

    def ask(layer: LayerEdit) -> None:
        some = layer if len(heads) == HEADS else layer.heads[picked]
        if kind == "hide":
            some.hide(query=None if only == "key" else query, key=None if only == "query" else key)
        elif kind == "mask":
            some.hide(mask=mask)
        elif kind == "scale":
            some.scale(key=key, by=factor)
        else:
            some.ablate()

    def pairs(count: int, ends: list[int]) -> Tensor:
        if kind == "mask":
            return ~mask.to_dense(count, count)
        rows = [
            only == "key" or kind == "scale" or is_query(each, ends[each]) for each in range(count)
        ]
        found = [
            [row and (only == "query" or is_key(each, ends[place])) for each in range(count)]
            for place, row in enumerate(rows)
        ]
        return torch.tensor(found, dtype=torch.bool).reshape(count, count)

    return Drawn(ask, "hide" if kind == "mask" else kind, heads, pairs, factor)


def _counts_back(given: Any) -> bool:
    return (isinstance(given, int) and given < 0) or (
        isinstance(given, slice) and (given.start or 0) < 0
    )


def _scores(operations: Sequence[Drawn], count: int, ends: list[int]) -> tuple[Tensor, Tensor]:
    """The pairs that stay visible, and what is added to the scores, (heads, queries, keys)."""
    shown = torch.ones(HEADS, count, count, dtype=torch.bool)
    added = torch.zeros(HEADS, count, count, dtype=torch.float64)
    for each in operations:
        pairs = each.pairs(count, ends)
        if each.kind == "hide":
            shown[each.heads] &= ~pairs
        elif each.kind == "scale":
            added[each.heads] += pairs * torch.tensor(each.factor, dtype=torch.float64).log()
    return shown, added


def _ablated(operations: Sequence[Drawn]) -> list[int]:
    return sorted({head for each in operations if each.kind == "ablate" for head in each.heads})


def _cuts(draw: random.Random, count: int) -> list[int]:
    """Pieces of a text."""
    if draw.random() < 0.2:
        return [count]
    if draw.random() < 0.2:
        return [1] * count
    found = []
    while sum(found) < count:
        found.append(draw.randint(1, max(1, (count - sum(found) + 1) // 2)))
    return found


@torch.no_grad()
def layer_case(seed: int) -> None:
    """A layer of ours: a padded batch in pieces, some dropped again, rows in another order.

    Raises:
        AssertionError: it is wrong.
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    name = draw.choice([*CACHES, "none"])
    mask = ch.causal() & ch.sliding_window(left=WINDOW - 1) if "sliding" in name else ch.causal()
    parts = draw.choice((
        [], [ch.layers.Rotary(WIDTH // HEADS)], [ch.layers.RelativeBias(HEADS, bidirectional=False)],
        [ch.layers.Sinks(HEADS)], [ch.layers.ScoreBias(ch.alibi(HEADS))],
    ))  # fmt: skip
    model = ch.MultiHeadAttention(
        WIDTH, num_heads=HEADS, num_kv_heads=draw.choice((1, 2, 4)), mask=mask, parts=parts
    )
    model = model.double().eval()
    for each in model.parameters():
        each.normal_(std=0.5)
    batch, tokens = draw.randint(1, 3), draw.randint(1, LAST)
    x = torch.randn(batch, tokens, WIDTH, dtype=torch.float64)
    valid = _valid(draw, batch, tokens)
    operations = [_operation(draw, tokens, from_end=True) for _ in range(draw.randint(1, 3))]
    edit = ch.edit(model)
    for each in operations:
        each.make(edit[0])
    cache: Any = None
    if name != "none":
        cache = CACHES[name]()
        cache = CacheBundle(lambda _: CACHES[name]()) if draw.random() < 0.3 else cache
    found, ends = torch.zeros_like(x), torch.zeros(batch, tokens, dtype=torch.int64)
    real = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
    edit.__enter__()
    try:
        done = 0
        while done < tokens:
            stop = tokens
            if cache is not None and draw.random() < 0.9:
                stop = done + draw.randint(1, max(1, (tokens - done + 1) // 2))
            some = slice(done, stop)
            given = None if valid is None else valid[:, some]
            options = {} if cache is None else {"cache": cache}
            found[:, some] = model(x[:, some], valid=given, **options)
            ends[:, some] = real[:, :stop].sum(1, keepdim=True)
            done = stop
            if cache is not None and "sliding" not in name and draw.random() < 0.15:
                done = draw.randint(done // 2, done)
                cache.truncate(done)
            if cache is not None and draw.random() < 0.15:
                order = [draw.randrange(batch) for _ in range(batch)]
                cache.reorder(order)
                x, found, ends, real = x[order], found[order], ends[order], real[order]
                valid = None if valid is None else valid[order]
    finally:
        edit.__exit__(None, KeyError(), None)  # of an exception: what had no effect may have none
    for row in range(batch):
        if valid is not None and cache is None:
            # Padding is counted where no cache counts the tokens.
            text, places = x[row], torch.arange(tokens)
            end = [int(real[row].nonzero()[-1]) + 1 if bool(real[row].any()) else 0] * tokens
            known: Any = {"valid": real[row][None]}
        else:
            places = real[row].nonzero()[:, 0]
            text, end, known = x[row, places], ends[row, places].tolist(), {}
        if not len(places):
            continue
        call = model.make_problem(text[None], **known)
        shown, added = _scores(operations, len(places), end)
        visible = call.visible()
        shown = shown[None] if visible is None else shown & visible
        bias = added[None]
        if call.bias is not None:
            bias = bias + call.bias.to_dense(len(places), len(places))
        context = ch.attend(
            call.query, call.key, call.value, mask=ch.dense(shown), bias=bias, scale=call.scale,
            sinks=call.sinks, kernel="eager",
        )  # fmt: skip
        context[:, _ablated(operations)] = 0
        expected = model.join(context, text[None])[0][real[row][places]]
        torch.testing.assert_close(
            found[row, places][real[row][places]], expected, rtol=1e-9, atol=1e-9,
            msg=lambda text: f"an edit beside {name}: {text}",
        )  # fmt: skip


def _valid(draw: random.Random, batch: int, tokens: int) -> Tensor | None:
    side = draw.choice(("none", "none", "left", "right", "any", "all real"))
    if side == "none":
        return None
    lengths = torch.tensor([[draw.randint(0, tokens)] for _ in range(batch)])
    places = torch.arange(tokens)[None]
    if side == "left":
        return places >= tokens - lengths
    if side == "right":
        return places < lengths
    return torch.tensor(
        [[side == "all real" or draw.random() < 0.7 for _ in range(tokens)] for _ in range(batch)]
    )


@torch.no_grad()
def model_case(seed: int) -> None:
    """A model of transformers beside its own caches: in pieces, and a generation.

    Raises:
        AssertionError: it is wrong.
    """
    draw = random.Random(seed)
    name = draw.choice(MODELS)
    model = make(name, draw.choice(("eager", "sdpa")) if name != "gpt_oss" else "eager").double()
    theirs = by_hand(model)
    batch, tokens = draw.randint(1, 3), draw.randint(2, LAST)
    torch.manual_seed(seed)
    ids = torch.randint(3, 99, (batch, tokens))
    generates = draw.random() < 0.3
    real = torch.ones(batch, tokens, dtype=torch.bool)
    if not generates and draw.random() < 0.5:
        lengths = torch.tensor([[draw.randint(1, tokens)] for _ in range(batch)])
        places = torch.arange(tokens)
        real = places >= tokens - lengths if draw.random() < 0.5 else places < lengths
    operations = [_operation(draw, tokens, from_end=False) for _ in range(draw.randint(1, 3))]
    layer = draw.randrange(2)
    edit = ch.edit(model)
    for each in operations:
        each.make(edit[layer])
    static = draw.random() < 0.5 and name != "gpt_oss"
    room, cuts = tokens + draw.randint(0, 6), _cuts(draw, tokens)

    def by_steps() -> Tensor:
        past: Any = None
        if static:
            past = transformers.StaticCache(model.config, max_cache_len=room)
        steps, done = [], 0
        for piece in ids.split(cuts, dim=1):
            done += piece.shape[1]
            given: Any = {"attention_mask": real[:, :done].long(), "use_cache": True}
            output = model(piece, past_key_values=past, **given)
            past = output.past_key_values
            steps.append(output.logits)
        return torch.cat(steps, dim=1)

    if not generates:
        plain = theirs(ids, attention_mask=real.long(), use_cache=False).logits
        if not torch.allclose(by_steps()[real], plain[real], rtol=1e-5, atol=2e-4):
            return  # in which the cache and the model do not agree without an edit
    edit.__enter__()
    try:
        found, text = None, ids
        if generates:
            options: Any = {"cache_implementation": "static"} if static else {}
            new = draw.randint(1, 4)
            text = model.generate(
                ids, max_new_tokens=new, do_sample=False, pad_token_id=0, **options
            )
            real = torch.ones(text.shape, dtype=torch.bool)
        else:
            found = by_steps()
    finally:
        edit.__exit__(None, KeyError(), None)
    count = text.shape[1]
    shown, added = _scores(operations, count, [count] * count)

    def scores(found: Tensor) -> Tensor:
        return (found + added).masked_fill(~shown, torch.finfo(found.dtype).min)

    def context(found: Tensor) -> Tensor:
        # A query that sees nothing more gets zeros.
        found = found.clone()
        seen = shown & torch.ones(count, count, dtype=torch.bool).tril()
        if name in ("mistral", "gemma3", "gpt_oss") and window is not None:
            seen = seen & torch.ones(count, count, dtype=torch.bool).triu(1 - window)
        blind = ~(seen[None] & real[:, None, None]).any(-1)
        found[blind.expand(found.shape[:3])] = 0
        found[:, _ablated(operations)] = 0
        return found

    module = [
        each
        for each in model.modules()
        if hasattr(each, "layer_idx") and hasattr(each, "is_causal")
    ][layer]
    window = getattr(module, "sliding_window", getattr(model.config, "sliding_window", None))
    with edited(changing(layer, scores=scores, context=context)):
        expected = theirs(text, attention_mask=real.long(), use_cache=False).logits
    if found is None:
        chosen, best = text[:, tokens:], expected[:, tokens - 1 : -1]
        assert torch.equal(best.argmax(-1), chosen), f"a generation of {name}"
        return
    torch.testing.assert_close(
        found[real],
        expected[real],
        rtol=1e-5,
        atol=2e-4,
        msg=lambda text: f"an edit of {name}: {text}",
    )


def edit_case(seed: int) -> None:
    """One of both, by the seed."""
    (model_case if seed % 4 == 3 else layer_case)(seed)
