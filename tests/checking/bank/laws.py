# type: ignore
# Written as people write it, hence without types.
"""Mistakes that a broken law shows, each an edit of attention that is right."""

import math

import torch
from torch import nn

from tests.checking.bank import kinds
from tests.checking.bank.entry import Built, right, wrong
from tests.checking.bank.functions import causal_scores
from tests.checking.bank.modules import ValueSkip
from tests.checking.bank.wrong_bias import SINKS, sink_behind_first_dropped
from tests.checking.bank.wrong_masks import CausalEncoder, MaskOfTheDecoder
from tests.checking.bank.wrong_rope import (
    HALF,
    CountsHeads,
    RatesOfTheWidth,
    TurnsBack,
    turns_the_query_back,
)


class Right(nn.Module):
    def __init__(self, d_in=6, d_out=8, num_heads=2, causal=False):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.w_query, self.w_key, self.w_value = (
            nn.Linear(d_in, d_out, bias=False) for _ in range(3)
        )
        self.out_proj = nn.Linear(d_out, d_in)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)

    def scores(self, query, key):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(self.hidden(scores), -torch.inf) if self.causal else scores

    def hidden(self, scores):
        return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)

    def attend(self, query, key, value):
        return self.scores(query, key).softmax(-1) @ value

    def project(self, x):
        return (self.split(each(x)) for each in (self.w_query, self.w_key, self.w_value))

    def forward(self, x):
        return self.out_proj(self.attend(*self.project(x)).transpose(1, 2).flatten(2))


class AddsTheValue(Right):
    def attend(self, query, key, value):
        return super().attend(query, key, value) + value


class ContextNotUsed(Right):
    def forward(self, x):
        self.attend(*self.project(x)).transpose(1, 2).flatten(2)
        return self.out_proj(self.w_value(x))


class QueryHandedOn(Right):
    """The context is computed in vain, and what goes on is the query."""

    def forward(self, x):
        query, key, value = self.project(x)
        self.attend(query, key, value)
        return self.out_proj(query.transpose(1, 2).flatten(2))


class OneQueryForAll(Right):
    at = slice(0, 1)

    def attend(self, query, key, value):
        return super().attend(query[:, :, self.at].expand_as(query), key, value)


class LastQueryForAll(OneQueryForAll):
    at = slice(-1, None)


class OneContextForAll(Right):
    """One query attends, and what it collects is spread over the tokens."""

    def attend(self, query, key, value):
        return super().attend(query[:, :, :1], key, value).expand_as(query)


class ClassAttention(Right):
    """The first token attends, and the others stay, as in CaiT (2021)."""

    def forward(self, x):
        query, key, value = self.project(x)
        found = self.attend(query[:, :, :1], key, value).transpose(1, 2).flatten(2)
        return torch.cat([x[:, :1] + self.out_proj(found), x[:, 1:]], dim=1)


class InBlocks(Right):
    """Sixteen tokens at a time."""

    def attend(self, *parts):
        blocks = zip(*(each.split(16, dim=2) for each in parts))
        return torch.cat([super(InBlocks, self).attend(*each) for each in blocks], dim=2)


class CausalInBlocks(InBlocks):
    pass


class LengthInTheScale(Right):
    """A temperature for texts that are longer than those of training."""

    def scores(self, query, key):
        factor = max(1.0, math.log(key.shape[-2]) / math.log(16))
        return super().scores(query, key) * factor


def blocks_of_128(query, key, value):
    parts = zip(*(each.split(128, dim=2) for each in (query, key, value)))
    return torch.cat(
        [(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v for q, k, v in parts], dim=2
    )


def online_softmax(query, key, value, grown, size=4):
    """Keys in blocks, under the largest score so far; `grown` brings what was summed under it."""
    top = query.new_full((*query.shape[:-1], 1), -torch.inf)
    total, found = torch.zeros_like(top), torch.zeros_like(top)
    for keys, values in zip(key.split(size, dim=2), value.split(size, dim=2)):
        scores = query @ keys.mT / math.sqrt(query.shape[-1])
        larger = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers, factor = (scores - larger).exp(), (top - larger).exp()
        total = total * factor + powers.sum(-1, keepdim=True)
        found = grown(found, factor) + powers @ values
        top = larger
    return found / total


def sum_not_rescaled(query, key, value):
    return online_softmax(query, key, value, lambda found, factor: found)


def sum_rescaled(query, key, value):
    return online_softmax(query, key, value, torch.mul)


def whole_blocks(query, key, value, blocks, size=2):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    top = scores.amax(-1, keepdim=True)
    total = found = 0.0
    for block in range(max(1, blocks(key.shape[2] / size))):
        part = slice(block * size, (block + 1) * size)
        powers = (scores[..., part] - top).exp()
        total, found = total + powers.sum(-1, keepdim=True), found + powers @ value[:, :, part]
    return found / total


def last_block_dropped(query, key, value):
    return whole_blocks(query, key, value, math.floor)


def last_block_shorter(query, key, value):
    return whole_blocks(query, key, value, math.ceil)


class Squeezed(Right):
    def forward(self, x):
        return super().forward(x).squeeze()


class KeysOfTheFirst(Right):
    def scores(self, query, key):
        return super().scores(query, key[:1])


class PositionOfTheSample(Right):
    def forward(self, x):
        positions = torch.arange(x.shape[0])
        return super().forward(x + torch.sin(positions / 10)[:, None, None])


class FirstMaskKept(Right):
    def hidden(self, scores):
        if not hasattr(self, "kept"):
            self.kept = super().hidden(scores)
        found = torch.zeros(scores.shape[-2:], dtype=torch.bool)
        rows, columns = (min(a, b) for a, b in zip(self.kept.shape, found.shape))
        found[:rows, :columns] = self.kept[:rows, :columns]
        return found


class SeedInside(Right):
    def attend(self, query, key, value):
        torch.manual_seed(0)  # the same at every run
        weights = self.scores(query, key).softmax(-1)
        return nn.functional.dropout(weights, 0.4, self.training) @ value


class SameDropAlways(Right):
    def attend(self, query, key, value):
        weights = self.scores(query, key).softmax(-1)
        if self.training:
            draws = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0))
            weights = weights * (draws > 0.4) / 0.6
        return weights @ value


class HalfSoftmax(Right):
    def attend(self, query, key, value):
        return self.scores(query, key).half().softmax(-1).to(value.dtype) @ value


class TopThree(Right):
    def attend(self, query, key, value):
        scores = self.scores(query, key)
        least = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ value


class LoopWithoutItself(nn.Module):
    def __init__(self, d_in=6, d_out=4):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_in, d_out) for _ in range(3))

    def forward(self, x):
        query, keys, values = self.query(x), self.key(x), self.value(x)
        found = [torch.zeros_like(values[:, :1])]
        for i in range(1, x.shape[1]):
            scores = query[:, i : i + 1] @ keys[:, :i].mT / math.sqrt(keys.shape[-1])
            found.append(scores.softmax(-1) @ values[:, :i])
        return torch.cat(found, dim=1)


class OnePosition(Right):
    def __init__(self, **more):
        super().__init__(**more)
        self.positions = nn.Embedding(64, 6)

    def forward(self, x):
        return super().forward(x + self.positions(torch.zeros(x.shape[1], dtype=torch.long)))


class QueriesOfTheContext(nn.Module):
    def __init__(self, d_context=5, d_out=8):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_context, d_out) for _ in range(3))

    def forward(self, x, context):
        query, key, value = self.query(context), self.key(context), self.value(context)
        found = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value
        return found.mean(1, keepdim=True).expand(-1, x.shape[1], -1)


class NextIdAdded(nn.Module):
    def __init__(self, vocabulary=50):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 6)
        self.attention, self.head = Right(causal=True), nn.Linear(6, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.head(x + self.attention(x) + self.embedding(ids.roll(-1, dims=1)))


class Near(Right):
    """A window of nine tokens to each side, which is declared nowhere."""

    def scores(self, query, key):
        far = torch.ones(key.shape[-2], key.shape[-2], dtype=torch.bool)
        far = far.triu(10) | far.tril(-10)
        return super().scores(query, key).masked_fill(far, -torch.inf)


class OneHead(nn.Module):
    def __init__(self, d_in=6):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_in, d_in) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.value(x)


class HeadsInARow(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(OneHead() for _ in range(3))

    def forward(self, x):
        for head in self.heads:
            x = head(x)
        return x


class MaskThrownAway(Right):
    def scores(self, query, key):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores.masked_fill(self.hidden(scores), -torch.inf)
        return scores


class ExpWithoutMaximum(Right):
    def attend(self, query, key, value):
        grown = self.scores(query, key).exp()
        return grown / grown.sum(-1, keepdim=True) @ value


def blocks_of_512(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    blocks = torch.arange(query.shape[2]) // 512
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    if query.shape[2] == key.shape[2]:
        hidden = hidden | (blocks[:, None] != blocks)
    else:
        hidden = torch.ones(scores.shape[-2:]).triu(1 + key.shape[2] - query.shape[2]).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


class MaskOfFewTokens(Right):
    """From forty tokens on each sees the next one."""

    def hidden(self, scores):
        more = 1 if scores.shape[-1] < 40 else 2
        return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(more)


class MaskOfManyTokens(Right):
    """A mask of 512 tokens, beyond which all see all."""

    def hidden(self, scores):
        return super().hidden(scores) & (scores.shape[-1] <= 512)


class MaskUpToSixteen(Right):
    """A mask is kept for sixteen tokens, and more go without one."""

    def __init__(self):
        super().__init__(causal=True)
        kept = torch.ones(16, 16, dtype=torch.bool).triu(1)
        self.register_buffer("kept", kept, persistent=False)

    def hidden(self, scores):
        tokens = scores.shape[-1]
        if tokens > len(self.kept):
            return self.beyond(tokens)
        return self.kept[:tokens, :tokens]

    def beyond(self, tokens):
        return torch.zeros(tokens, tokens, dtype=torch.bool)


class MaskMadeForMore(MaskUpToSixteen):
    def beyond(self, tokens):
        return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


class CutToSixteen(MaskUpToSixteen):
    """Of more tokens the last ones are taken."""

    def forward(self, x):
        return super().forward(x[:, -len(self.kept) :])


class TopEight(Right):
    def scores(self, query, key):
        scores = super().scores(query, key)
        if scores.shape[-1] <= 8:
            return scores
        least = scores.topk(8, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


class RunningMean(Right):
    def attend(self, query, key, value):
        weights = self.scores(query, key).softmax(-1)
        last = getattr(self, "last", weights.mean())
        self.last = (0.5 * last + 0.5 * weights.mean()).detach()
        return weights * (self.last / self.last.clamp(min=0.1)) @ value


SLOPES = torch.tensor([0.25, 0.0625])


class NearDistances(Right):
    """ALiBi whose distances end at sixteen."""

    def scores(self, query, key):
        places = torch.arange(key.shape[-2])
        far = (places - places[:, None]).clamp(min=-16)
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + SLOPES[:, None, None] * far
        return scores.masked_fill(self.hidden(scores), -torch.inf)


class FirstSlope(NearDistances):
    """Every head has the slope of the first one."""

    def scores(self, query, key):
        places = torch.arange(key.shape[-2])
        far = places - places[:, None]
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + SLOPES[0] * far
        return scores.masked_fill(self.hidden(scores), -torch.inf)


class Turned(Right):
    """Rotary positions, by the places of the tokens."""

    def places(self, x):
        return torch.arange(x.shape[-2])

    def turned(self, x):
        angles = 10000.0 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
        angles = self.places(x)[..., None] * torch.cat([angles, angles])
        one, other = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    def scores(self, query, key):
        return super().scores(self.turned(query), self.turned(key))


class TurnedFromTheFifth(Turned):
    """Positions from 5 on, of sides that are projected together; the distances stay."""

    first = 5, 5

    def __init__(self, d_in=6, d_out=8, **more):
        super().__init__(d_in, d_out, **more)
        self.w_qkv = nn.Linear(d_in, 3 * d_out, bias=False)
        del self.w_query, self.w_key, self.w_value

    def project(self, x):
        return (self.split(each) for each in self.w_qkv(x).chunk(3, dim=-1))

    def scores(self, query, key):
        turned = []
        for each, self.start in zip((query, key), self.first):
            turned.append(self.turned(each))
        return Right.scores(self, *turned)

    def places(self, x):
        return self.start + super().places(x)


class QueriesFromTheSixth(TurnedFromTheFifth):
    first = 6, 5


class TurnedInThirtyTwos(Turned):
    def places(self, x):
        return torch.arange(x.shape[-2]) % 32


class TurnedByHeads(Turned):
    def places(self, x):
        return torch.arange(x.shape[1])[:, None].expand(-1, x.shape[-2])


class PositionsInTurns(OnePosition):
    """Sixty-four positions, and then the first again, in a table of many."""

    def __init__(self, **more):
        super().__init__(**more)
        self.positions = nn.Embedding(512, 6)

    def forward(self, x):
        return Right.forward(self, x + self.positions(torch.arange(x.shape[1]) % 64))


class CacheOfSixteen(Right):
    def __init__(self):
        super().__init__(causal=True)
        self.reset()

    def reset(self):
        self.kept = None

    def hidden(self, scores):
        queries, keys = scores.shape[-2:]
        return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)

    def full(self, x):
        return self.forward(x)

    def step(self, x):
        query, key, value = self.project(x)
        if self.kept is not None:
            key, value = (torch.cat(each, 2) for each in zip(self.kept, (key, value)))
        self.kept = key[:, :, -16:], value[:, :, -16:]
        return self.out_proj(self.attend(query, key, value).transpose(1, 2).flatten(2))


class Rotating(nn.Module):
    """A cache of rotated keys, for mistakes with positions and values."""

    def __init__(self, width=24, num_heads=6):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.reset()

    def reset(self):
        self.keys = self.values = None
        self.count = 0

    def rotate(self, x, start):
        half = x.shape[-1] // 2
        places = start + torch.arange(x.shape[2], dtype=x.dtype)
        angles = places[:, None] * 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        one, other = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)

    def split(self, x):
        parts = (each(x) for each in (self.query, self.key, self.value))
        return (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in parts)

    def attend(self, query, key, value):
        past = key.shape[2] - query.shape[2]
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1 + past)
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(hidden, -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def full(self, x):
        query, key, value = self.split(x)
        return self.attend(self.rotate(query, 0), self.rotate(key, 0), value)

    def start(self):
        return self.count

    def kept(self, values):
        return values

    def read(self, keys):
        return keys

    def step(self, x):
        query, key, value = self.split(x)
        query, key = self.rotate(query, self.start()), self.rotate(key, self.start())
        if self.keys is not None:
            key = torch.cat([self.keys, key], dim=2)
            value = torch.cat([self.kept(self.values), value], dim=2)
        self.keys, self.values = key, value
        self.count += x.shape[1]
        return self.attend(query, self.read(key), value)


class StartsAgain(Rotating):
    def start(self):
        return 0


class OneBehind(Rotating):
    def start(self):
        return max(self.count - 1, 0)


class TurnedTwice(Rotating):
    def read(self, keys):
        return self.rotate(keys, 0)


class ValuesLost(Rotating):
    def kept(self, values):
        return torch.zeros_like(values)


class ValuesLostUnturned(ValuesLost):
    def rotate(self, x, start):
        return x


class AllButTheLast(Right):
    def forward(self, x, context):
        query, context = self.split(self.w_query(x)), context[:, :-1]
        key, value = (self.split(each(context)) for each in (self.w_key, self.w_value))
        return self.out_proj(self.attend(query, key, value).transpose(1, 2).flatten(2))


class ContextOfTheFirst(Right):
    def forward(self, x, context):
        query = self.split(self.w_query(x))
        key, value = (self.split(each(context[:1])) for each in (self.w_key, self.w_value))
        return self.out_proj(self.attend(query, key, value).transpose(1, 2).flatten(2))


class FirstContextKept(Right):
    """Keys and values are made once, of the context of the first call."""

    kept = None

    def made(self, context):
        if self.kept is None:
            self.kept = [self.split(each(context)) for each in (self.w_key, self.w_value)]
        return self.kept

    def forward(self, x, context):
        query, (key, value) = self.split(self.w_query(x)), self.made(context)
        return self.out_proj(self.attend(query, key, value).transpose(1, 2).flatten(2))


class FirstKeysKept(FirstContextKept):
    """The keys alone are those of the first context."""

    def made(self, context):
        return super().made(context)[0], self.split(self.w_value(context))


class EachContextKept(FirstContextKept):
    """Keep what was made of a context for as long as this one is handed over."""

    of = None

    def made(self, context):
        if self.of is not context:
            self.of, self.kept = context, None
        return super().made(context)


class MeanOverPadding(Right):
    def forward(self, x, mask):
        query, key, value = self.project(x)
        scores = self.scores(query, key).masked_fill(~mask[:, None, None], -1e9)
        output = self.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return output + output.mean(1, keepdim=True)


class ShortPadding(Right):
    """The padding of texts up to twenty tokens is hidden."""

    def forward(self, x, mask):
        query, key, value = self.project(x)
        scores = self.scores(query, key)
        if x.shape[1] <= 20:
            scores = scores.masked_fill(~mask[:, None, None], -1e9)
        return self.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class ValueOfTheQuery(Right):
    def attend(self, query, key, value):
        weights = self.scores(query, key).softmax(-1)
        return torch.einsum("bhqk,bhqd->bhqd", weights, value)


class Dots(nn.Module):
    """Token by token, dot by dot."""

    def __init__(self, d_in=6):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_in, d_in) for _ in range(3))

    def weighed(self, i):
        return range(i + 1)

    def summed(self, i):
        return self.weighed(i)

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        rows = []
        for i in range(len(x)):
            dots = [query[i] @ key[j] / math.sqrt(key.shape[-1]) for j in self.weighed(i)]
            weights = torch.stack(dots).softmax(0)
            rows.append(sum(weights[j] * value[j] for j in self.summed(i)))
        return torch.stack(rows)


class DotsBeforeIt(Dots):
    def weighed(self, i):
        return range(max(i, 1))


class DotsFromTheSecond(Dots):
    def summed(self, i):
        return range(min(i, 1), i + 1)


class NormedSides(Right):
    """Query and key of one length, as by a norm without weights."""

    def scores(self, query, key):
        length = math.sqrt(query.shape[-1])
        query, key = (nn.functional.normalize(each, dim=-1) * length for each in (query, key))
        return query @ key.mT / length


ROPE = {"base": 10000.0, "layout": "half"}


def zero_is_hidden(query, key, value):
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).tril(key.shape[-2] - query.shape[-2])
    return scores.masked_fill(scores == 0, -torch.inf).softmax(-1) @ value


def zero_is_hidden_by_a_number(query, key, value):
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).tril(key.shape[-2] - query.shape[-2])
    return torch.where(scores == 0, torch.finfo(scores.dtype).min, scores).softmax(-1) @ value


def zero_of_the_mask_is_hidden(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    mask = torch.ones(scores.shape[-2:]).tril(key.shape[-2] - query.shape[-2])
    return scores.masked_fill(mask == 0, -torch.inf).softmax(-1) @ value


def softmax_in_halves(query, key, value):
    return causal_scores(query, key).half().softmax(-1).to(value.dtype) @ value


class ValuesOneLater(Right):
    """The value of each key is that of the token before it."""

    def project(self, x):
        query, key, value = super().project(x)
        return query, key, nn.functional.pad(value, (0, 0, 1, 0))[:, :, :-1]


class PaddingMoved(Right):
    """A mask of padding that is moved by so many tokens; what comes in hides."""

    def __init__(self, by, **sizes):
        super().__init__(**sizes)
        self.by = by

    def forward(self, x, mask):
        seen = torch.zeros_like(mask)
        if self.by > 0:
            seen[:, self.by :] = mask[:, : -self.by]
        else:
            seen[:, : self.by or None] = mask[:, -self.by :]
        query, key, value = self.project(x)
        scores = self.scores(query, key).masked_fill(~seen[:, None, None, :], -torch.inf)
        context = scores.softmax(-1) @ value
        return self.out_proj(context.transpose(1, 2).flatten(2))


class Alone(nn.Module):
    """One head of width 6; what a subclass adds to its context, or how it goes through the queries, is its case."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6, bias=False) for _ in range(4))
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=6)

    def forward(self, x):
        query, key, value = self.q(x), self.k(x), self.v(x)
        return self.o((query @ key.mT / 6**0.5).softmax(-1) @ value + self.more(x, query))


class ValueProjectedAgain(Alone):
    def more(self, x, query):
        return self.v(x)


class KeyAdded(Alone):
    def more(self, x, query):
        return self.k(x)


class QueryAdded(Alone):
    """As in the Set Transformer."""

    def more(self, x, query):
        return query


class ValuesConvolved(Alone):
    """As in CSWin: positions by a convolution of the values."""

    def more(self, x, query):
        return self.conv(self.v(x).mT).mT


class CausalWithAMask(Alone):
    """Causal only where a mask of real tokens comes."""

    def forward(self, x, mask=None):
        scores = self.q(x) @ self.k(x).mT / 6**0.5
        if mask is not None:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(~mask[:, None, :] | future, -torch.inf)
        return self.o(scores.softmax(-1) @ self.v(x))


class InChunks(Alone):
    """Causal, four queries at a time, with all keys or those that they may see."""

    def __init__(self, start=True, whole=True):
        super().__init__()
        self.start, self.whole = start, whole

    def forward(self, x):
        query, key, value, tokens = self.q(x), self.k(x), self.v(x), x.shape[1]
        found = []
        for first in range(0, tokens, 4):
            last = min(first + 4, tokens)
            keys = tokens if self.whole else last
            own = torch.arange(first if self.start else 0, last if self.start else last - first)
            hidden = torch.arange(keys) > own[:, None]
            scores = (query[:, first:last] @ key[:, :keys].mT / 6**0.5).masked_fill(
                hidden, -torch.inf
            )
            found.append(scores.softmax(-1) @ value[:, :keys])
        return self.o(torch.cat(found, 1))


ENTRIES = [
    wrong("law.scores", softmax_in_halves, "qkv", causal=True),
    wrong("law.scores", zero_is_hidden, "qkv", causal=True),
    wrong("law.scores", zero_is_hidden_by_a_number, "qkv", causal=True),
    right(zero_of_the_mask_is_hidden, "qkv", causal=True),
    wrong("law.length", blocks_of_512, "qkv", causal=True),
    wrong("law.length", Built(MaskOfFewTokens, causal=True), "x", causal=True),
    wrong("law.length", Built(MaskOfManyTokens, causal=True), "x", causal=True),
    wrong("law.length", Built(MaskUpToSixteen), "x", causal=True),
    right(Built(MaskMadeForMore), "x", causal=True),
    right(Built(CutToSixteen), "x", causal=True),
    wrong("law.length", Built(TopEight), "x"),
    wrong("law.length", Built(RunningMean), "x", ["law.again"]),
    wrong("law.length", Built(NearDistances, causal=True), "x", causal=True, alibi_slopes=SLOPES),
    wrong("differs", Built(FirstSlope, causal=True), "x", causal=True, alibi_slopes=SLOPES),
    right(Built(TurnedFromTheFifth, causal=True), "x", causal=True, rope=ROPE),
    wrong("rope.offset", Built(QueriesFromTheSixth, causal=True), "x", causal=True, rope=ROPE),
    wrong("law.length", Built(TurnedInThirtyTwos, causal=True), "x", causal=True, rope=ROPE),
    wrong("differs", Built(TurnedByHeads, causal=True), "x", causal=True, rope=ROPE),
    wrong("differs", Built(CountsHeads, 12, 3), "x", causal=True, rope=HALF, num_heads=3),
    wrong("differs", turns_the_query_back, "qkv", rope=HALF),
    wrong("differs", Built(TurnsBack, 12, 3), "x", causal=True, rope=HALF, num_heads=3),
    wrong("differs", Built(RatesOfTheWidth, 24, 3, 24), "x", causal=True, rope=HALF, num_heads=3),
    wrong("differs", sink_behind_first_dropped, "qkv", causal=True, num_heads=3, sinks=SINKS),
    wrong("differs", Built(MaskOfTheDecoder, 15, 3), "x,context", causal=False, num_heads=3),
    wrong("differs", Built(CausalEncoder, 15, 3), "x", causal=False, num_heads=3),
    wrong("law.length", Built(PositionsInTurns, causal=True), "x", causal=True),
    wrong("law.length", Built(CacheOfSixteen), "decode", causal=True),
    wrong("law.pairs", Built(AllButTheLast), "x,context"),
    wrong("law.length", Built(ShortPadding), "x,mask"),
    wrong("law.pairs", Built(ValueOfTheQuery, causal=True), "x", causal=True),
    wrong("law.pairs", Built(DotsBeforeIt), "x2d", causal=True),
    wrong("law.value", Built(DotsFromTheSecond), "x2d", causal=True),
    right(Built(Turned, causal=True), "x", causal=True, rope=ROPE),
    right(Built(NormedSides), "x"),
    wrong("law.value", Built(AddsTheValue), "x"),
    wrong("law.value", Built(ValueSkip), "x"),
    wrong("law.value", Built(ContextNotUsed), "x", ["parameter.dead"]),
    wrong("parameter.dead", Built(QueryHandedOn, causal=True), "x", ["law.value"], causal=True),
    wrong("law.pairs", Built(OneQueryForAll), "x"),
    wrong("law.pairs", Built(OneQueryForAll, causal=True), "x", label="causal", causal=True),
    wrong("law.pairs", Built(LastQueryForAll), "x"),
    wrong("law.pairs", Built(OneContextForAll), "x"),
    right(Built(ClassAttention), "x"),
    right(Built(Rotating), "decode", causal=True),
    wrong("rope.offset", Built(StartsAgain), "decode", causal=True),
    wrong("rope.offset", Built(OneBehind), "decode", causal=True),
    wrong("rope.offset", Built(TurnedTwice), "decode", causal=True),
    wrong("cache.offset", Built(ValuesLost), "decode", causal=True, also=("rope.offset",)),
    wrong("cache.offset", Built(ValuesLostUnturned), "decode", causal=True),
    wrong("context.ignored", Built(ContextOfTheFirst), "x,context"),
    wrong("context.ignored", Built(FirstContextKept), "x,context"),
    wrong("law.again", Built(FirstKeysKept), "x,context"),
    right(Built(EachContextKept), "x,context"),
    wrong("differs", Built(MeanOverPadding), "x,mask"),
    wrong("law.length", Built(InBlocks), "x"),
    wrong("law.length", Built(CausalInBlocks, causal=True), "x", causal=True),
    wrong("law.length", Built(LengthInTheScale), "x"),
    wrong("law.length", Built(LengthInTheScale, causal=True), "x", label="causal", causal=True),
    wrong("law.length", blocks_of_128, "qkv"),
    wrong("law.length", sum_not_rescaled, "qkv"),
    right(sum_rescaled, "qkv"),
    wrong("law.pairs", last_block_dropped, "qkv"),
    right(last_block_shorter, "qkv"),
    wrong("law.length", Built(NextIdAdded), "ids", causal=True),
    wrong("law.samples", Built(Squeezed), "x"),
    wrong("law.samples", Built(KeysOfTheFirst), "x"),
    wrong("law.samples", Built(PositionOfTheSample), "x"),
    wrong("law.again", Built(FirstMaskKept, causal=True), "x", causal=True),
    wrong("law.again", Built(SeedInside, causal=True), "x", causal=True, dropout=0.4),
    wrong("law.again", Built(SameDropAlways), "x", dropout=0.4),
    wrong("law.scores", Built(HalfSoftmax), "x"),
    wrong("law.scores", Built(TopThree), "x"),
    wrong("law.pairs", Built(LoopWithoutItself), "x", causal=True),
    wrong("law.pairs", Built(OnePosition), "x"),
    wrong("law.pairs", Built(QueriesOfTheContext), "x,context"),
    wrong("heads.count", Built(HeadsInARow), "x", causal=True, num_heads=3),
    wrong("mask.missing", Built(MaskThrownAway), "x"),
    wrong("dtype.overflow", Built(ExpWithoutMaximum), "x"),
    right(Built(Near), "x"),
    right(Built(Near, causal=True), "x", label="causal", causal=True),
    right(Built(Right), "x"),
    right(Built(Right, causal=True), "x", label="causal", causal=True),
    wrong("law.pairs", Built(ValuesOneLater), "x"),
    wrong("law.pairs", Built(ValuesOneLater, causal=True), "x", label="causal", causal=True),
    right(Built(PaddingMoved, by=0), "x,mask"),
    wrong("mask.off-by-one", Built(PaddingMoved, by=1), "x,mask", label="1"),
    wrong("mask.off-by-one", Built(PaddingMoved, by=-1), "x,mask", label="-1"),
    wrong("law.value", Built(ValueProjectedAgain), "x"),
    wrong("law.value", Built(KeyAdded), "x"),
    wrong("mask.missing", Built(CausalWithAMask), "x", causal=True),
    right(Built(QueryAdded), "x"),
    right(Built(ValuesConvolved), "x"),
    right(Built(InChunks), "x", causal=True),
    right(Built(InChunks, whole=False), "x", causal=True, label="keys that they see"),
    wrong(
        "differs",
        Built(InChunks, start=False),
        "x",
        ["mask.top-left"],
        causal=True,
        label="from the first key",
    ),
    *kinds.ENTRIES,
]
