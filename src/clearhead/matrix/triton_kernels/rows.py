# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportPossiblyUnboundVariable=false
"""The kernel that goes over the keys of some queries: every number of a query, in one launch.

The largest score so far, m, is the anchor of all sums (Milakov & Gimelshein, 2018,
https://arxiv.org/abs/1805.02867): where it grows, they are scaled. The entropy is a running Σ p · (s − m), since
Σ p · s less the logsumexp would lose all digits where scores are large.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(-float("inf"))


@triton.jit
def keys_of(start, stop, runs, row, kv_len, masked: tl.constexpr, pieces: tl.constexpr):
    """The first key of each query and the one after its last, over all runs; of no run, kv_len and 0."""
    first = tl.zeros_like(row)
    last = first + kv_len
    if masked:
        first = last
        last = tl.zeros_like(row)
        for piece in tl.static_range(pieces):
            at = runs + row.to(tl.int64) * pieces + piece
            low, high = tl.load(start + at), tl.load(stop + at)
            first = tl.minimum(first, tl.where(high > low, low, kv_len))
            last = tl.maximum(last, tl.where(high > low, high, 0))
    return first, last


@triton.jit
def visible(start, stop, runs, row, key, first, last, pieces: tl.constexpr):
    """True for each pair of a query and a key in one of its runs."""
    seen = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
    if pieces > 1:
        within = seen & False
        for piece in tl.static_range(pieces):
            at = runs + row.to(tl.int64) * pieces + piece
            low, high = tl.load(start + at), tl.load(stop + at)
            within |= (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        seen &= within
    return seen


@triton.jit
def tanh(x):
    """Of small numbers by its series, where the quotient would lose digits."""
    square = x * x
    series = 2 / 15 + square * (-17 / 315 + square * (62 / 2835))
    series = x + x * square * (-1 / 3 + square * series)
    falls = tl.exp(-2 * tl.abs(x))
    quotient = (1 - falls) / (1 + falls)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def load_rows(tensor, row, row_stride, length, lane, lane_stride, width, bad, upcast: tl.constexpr):
    """Some rows of a matrix, (rows, lanes), with 0 in those that count as not finite, and which these are."""
    there = row < length
    at = tensor + row.to(tl.int64)[:, None] * row_stride + lane[None, :] * lane_stride
    broken = tl.load(bad + row, mask=there, other=0) != 0
    found = tl.load(at, mask=(there & ~broken)[:, None] & (lane < width)[None, :], other=0.0)
    # The interpreter multiplies bfloat16 wrongly.
    return found.to(tl.float32) if upcast else found, broken


@triton.jit
def scores_of(
    query,
    keys,
    row,
    key,
    scale,
    softcap,
    behind,
    kv_len,
    dense,
    dense_row,
    dense_key,
    slope,
    table,
    reach,
    precision: tl.constexpr,
    capped: tl.constexpr,
    has_dense: tl.constexpr,
    has_alibi: tl.constexpr,
    has_table: tl.constexpr,
):
    """The scores of a tile as the softmax gets them, but for the mask."""
    # Scaled after the product: products of 16-bit numbers are exact, those of scaled ones are not.
    scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scale
    if capped:
        scores = softcap * tanh(scores / softcap)
    if has_alibi:
        scores -= slope * tl.abs(row[:, None] + behind - key[None, :]).to(tl.float32)
    if has_table:
        away = tl.minimum(tl.maximum(key[None, :] - row[:, None] - behind, -reach), reach)
        scores += tl.load(table + away + reach).to(tl.float32)
    if has_dense:
        at = row.to(tl.int64)[:, None] * dense_row + key.to(tl.int64)[None, :] * dense_key
        there = (key < kv_len)[None, :] & (row >= 0)[:, None]
        scores += tl.load(dense + at, mask=there, other=0.0).to(tl.float32)
    return scores


@triton.jit
def add_those(hit, scores, shares, weight, count):
    """The weight of some pairs and the number of those that are visible, where a tile has any of them."""
    if tl.max(tl.max(hit.to(tl.int32), 1), 0) > 0:
        weight += tl.sum(tl.where(hit, shares, 0.0), 1)
        count += tl.sum((hit & (scores > NOTHING)).to(tl.float32), 1)
    return weight, count


@triton.jit
def store_weight(at, weight, count, no_weights, stored):
    """Store a weight; where a query has none, a visible key has NaN and a hidden one 0."""
    spoilt = tl.where(count > 0, float("nan"), 0.0)
    tl.store(at, tl.where(no_weights, spoilt, weight), mask=stored)


@triton.jit
def rows(
    query,
    keys,
    value,
    bad_query,
    bad_key,
    bad_value,
    start,
    stop,
    dense,
    slopes,
    table,
    sinks,
    wanted,
    numbers,
    top_scores,
    top_keys,
    context,
    query_batch,
    query_head,
    query_row,
    query_lane,
    key_batch,
    key_head,
    key_row,
    key_lane,
    value_batch,
    value_head,
    value_row,
    value_lane,
    dense_batch,
    dense_head,
    dense_row,
    dense_key,
    table_head,
    runs_batch,
    heads,
    group,
    value_group,
    query_len,
    kv_len,
    head_dim,
    value_dim,
    scale,
    softcap,
    reach,
    near,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    lanes: tl.constexpr,
    value_lanes: tl.constexpr,
    slots: tl.constexpr,
    top: tl.constexpr,
    masked: tl.constexpr,
    pieces: tl.constexpr,
    precision: tl.constexpr,
    upcast: tl.constexpr,
    capped: tl.constexpr,
    has_dense: tl.constexpr,
    has_alibi: tl.constexpr,
    has_table: tl.constexpr,
    has_sinks: tl.constexpr,
    has_numbers: tl.constexpr,
    has_context: tl.constexpr,
    is_member: tl.constexpr,
):
    """Launch with (batch · heads, tiles of queries) programs.

    `numbers` gets, in this order, eight rows of batch · heads · queries each: logsumexp, entropy, largest weight,
    largest score, distance, the weight within `near` tokens, and on the two keys `wanted`. The second row of
    sizes are strides; `value` is (keys, lanes) of each head, and with `is_member` 0 or 1.
    """
    line = tl.program_id(0)
    sample, head = line // heads, line % heads
    kv_head = head // group
    row = tl.program_id(1) * block_queries + tl.arange(0, block_queries)
    # Queries beyond the last are the last again, and not stored.
    place = tl.minimum(row, query_len - 1)
    lane = tl.arange(0, lanes)
    behind = kv_len - query_len

    query += sample.to(tl.int64) * query_batch + head.to(tl.int64) * query_head
    keys += sample.to(tl.int64) * key_batch + kv_head.to(tl.int64) * key_head
    kv_heads = heads // group
    bad_query += line.to(tl.int64) * query_len
    bad_key += (sample * kv_heads + kv_head).to(tl.int64) * kv_len
    runs = sample.to(tl.int64) * runs_batch
    if has_dense:
        dense += sample.to(tl.int64) * dense_batch + head.to(tl.int64) * dense_head
    slope = 0.0
    if has_alibi:
        slope = tl.load(slopes + head).to(tl.float32)
    if has_table:
        table += head * table_head

    asked, broken_query = load_rows(
        query, place, query_row, query_len, lane, query_lane, head_dim, bad_query, upcast
    )
    first, last = keys_of(start, stop, runs, place, kv_len, masked, pieces)
    low, high = tl.min(first, 0), tl.max(last, 0)
    full_from, full_to = tl.max(first, 0), tl.min(last, 0)

    largest = tl.full([block_queries], NOTHING, tl.float32)
    total = tl.zeros([block_queries], tl.float32)
    spread = tl.zeros([block_queries], tl.float32)
    distance = tl.zeros([block_queries], tl.float32)
    close = tl.zeros([block_queries], tl.float32)
    one = tl.zeros([block_queries], tl.float32)
    two = tl.zeros([block_queries], tl.float32)
    sees_close = tl.zeros([block_queries], tl.float32)
    sees_one = tl.zeros([block_queries], tl.float32)
    sees_two = tl.zeros([block_queries], tl.float32)
    broken = tl.zeros([block_queries], tl.int32)
    if has_numbers:
        key_one = tl.load(wanted + place)
        key_two = tl.load(wanted + query_len + place)
    if top > 0:
        slot = tl.arange(0, slots)
        best = tl.where((slot < top)[None, :], NOTHING, float("inf")) + tl.zeros(
            [block_queries, slots], tl.float32
        )
        best_keys = tl.full([block_queries, slots], -1, tl.int32)
    if has_context:
        value_lane_of = tl.arange(0, value_lanes)
        value_head_of = head // value_group
        value += sample.to(tl.int64) * value_batch + value_head_of.to(tl.int64) * value_head
        bad_value += (sample * (heads // value_group) + value_head_of).to(tl.int64) * kv_len
        mixed = tl.zeros([block_queries, value_lanes], tl.float32)
        marks = tl.zeros([block_queries, value_lanes], tl.float32)

    for from_key in range(low // block_keys * block_keys, high, block_keys):
        key = from_key + tl.arange(0, block_keys)
        some, broken_key = load_rows(
            keys, key, key_row, kv_len, lane, key_lane, head_dim, bad_key, upcast
        )
        scores = scores_of(
            asked,
            some,
            place,
            key,
            scale,
            softcap,
            behind,
            kv_len,
            dense,
            dense_row,
            dense_key,
            slope,
            table,
            reach,
            precision,
            capped,
            has_dense,
            has_alibi,
            has_table,
        )
        if has_dense or has_table:
            # Seen, with any score that is finite: the query is broken.
            odd = scores != scores
            scores = tl.where(odd, 0.0, scores)
        if pieces > 1 or from_key < full_from or from_key + block_keys > full_to:
            seen = visible(start, stop, runs, place, key, first, last, pieces)
            scores = tl.where(seen, scores, NOTHING)
            if has_dense or has_table:
                odd &= seen
        if has_dense or has_table:
            broken = tl.maximum(broken, tl.max(odd.to(tl.int32), 1))
        if tl.max(broken_key.to(tl.int32), 0) > 0:
            shows = broken_key[None, :] & (scores > NOTHING)
            broken = tl.maximum(broken, tl.max(shows.to(tl.int32), 1))

        grown = tl.maximum(largest, tl.max(scores, 1))
        anchor = tl.where(grown == NOTHING, 0.0, grown)
        fall = tl.where(largest == NOTHING, 0.0, largest - anchor)
        keeps = tl.where(largest == NOTHING, 0.0, tl.exp(fall))
        below = scores - anchor[:, None]
        shares = tl.exp(below)
        if has_numbers:
            # A share of 0 times −∞ is 0; nothing is left of a sum that fell so far.
            drop = tl.sum(tl.where(shares > 0, shares * below, 0.0), 1)
            spread = tl.where(keeps > 0, keeps * (spread + total * fall), 0.0) + drop
            away = tl.abs(place[:, None] + behind - key[None, :])
            distance = keeps * distance + tl.sum(shares * away.to(tl.float32), 1)
            close *= keeps
            one *= keeps
            two *= keeps
            close, sees_close = add_those(away <= near, scores, shares, close, sees_close)
            hit = key[None, :] == key_one[:, None]
            one, sees_one = add_those(hit, scores, shares, one, sees_one)
            hit = key[None, :] == key_two[:, None]
            two, sees_two = add_those(hit, scores, shares, two, sees_two)
        total = keeps * total + tl.sum(shares, 1)
        largest = grown

        if top > 0:
            # Only what passes the least of the kept is looked at, which soon is little.
            left = scores
            leading = tl.max(left, 1)
            least = tl.min(best, 1)
            while tl.max((leading > least).to(tl.int32), 0) > 0:
                found = tl.argmax(left, 1)
                worst = slot[None, :] == tl.argmin(best, 1)[:, None]
                enters = (leading > least)[:, None] & worst
                best = tl.where(enters, leading[:, None], best)
                best_keys = tl.where(enters, (from_key + found)[:, None], best_keys)
                taken = (key - from_key)[None, :] == found[:, None]
                left = tl.where(taken, NOTHING, left)
                leading = tl.max(left, 1)
                least = tl.min(best, 1)

        if has_context:
            there = (key < kv_len)[:, None] & (value_lane_of < value_dim)[None, :]
            at = key.to(tl.int64)[:, None] * value_row + value_lane_of[None, :] * value_lane
            values = tl.load(value + at, mask=there, other=0.0)
            if upcast:
                values = values.to(tl.float32)
            marked = tl.load(bad_value + key, mask=key < kv_len, other=0)
            if is_member:
                shown = (scores > NOTHING).to(tl.float32)
                marks += tl.dot(shown, values.to(tl.float32), input_precision=precision)
            elif tl.max(marked, 0) > 0:
                finite = tl.abs(values) < float("inf")
                values = tl.where(finite, values, 0.0)
                shown = (scores > NOTHING).to(tl.float32)
                marks += tl.dot(shown, (~finite).to(tl.float32), input_precision=precision)
            product = tl.dot(shares.to(values.dtype), values, input_precision=precision)
            mixed = mixed * keeps[:, None] + product

    empty = largest == NOTHING
    broken = tl.where(broken_query & ~empty, 1, broken)
    is_nan = broken > 0
    # A score of ∞ has a logsumexp, and no weights.
    no_weights = is_nan | (largest == float("inf"))
    log_total = tl.log(tl.where(empty, 1.0, total))
    share = tl.full([block_queries], 1.0, tl.float32)
    if has_sinks:
        sink = tl.zeros_like(total) + tl.load(sinks + head).to(tl.float32)
        share = 1.0 / (1.0 + tl.exp((sink - tl.where(empty, 0.0, largest)) - log_total))
        no_weights |= ~(sink < float("inf"))
    no_weights &= ~empty
    per = tl.where(empty, 0.0, share / tl.where(empty, 1.0, total))
    nan = float("nan")
    stored = row < query_len
    at = line.to(tl.int64) * query_len + row
    if has_numbers:
        size = tl.num_programs(0).to(tl.int64) * query_len
        logsumexp = tl.where(empty, NOTHING, largest + log_total)
        logsumexp = tl.where(largest == float("inf"), largest, logsumexp)
        tl.store(numbers + at, tl.where(is_nan, nan, logsumexp), mask=stored)
        entropy = share * (log_total - tl.where(empty, 0.0, spread / total))
        if has_sinks:
            entropy -= tl.where(share > 0, share * tl.log(share), 0.0)
        entropy = tl.where(empty, 0.0, tl.maximum(entropy, 0.0))
        tl.store(numbers + size + at, tl.where(no_weights, nan, entropy), mask=stored)
        tl.store(numbers + 2 * size + at, tl.where(no_weights, nan, per), mask=stored)
        tl.store(numbers + 3 * size + at, tl.where(is_nan, nan, largest), mask=stored)
        tl.store(numbers + 4 * size + at, tl.where(no_weights, nan, distance * per), mask=stored)
        store_weight(numbers + 5 * size + at, close * per, sees_close, no_weights, stored)
        store_weight(numbers + 6 * size + at, one * per, sees_one, no_weights, stored)
        store_weight(numbers + 7 * size + at, two * per, sees_two, no_weights, stored)
    if top > 0:
        into = at[:, None] * top + slot[None, :]
        kept = stored[:, None] & (slot < top)[None, :]
        tl.store(top_scores + into, best, mask=kept)
        tl.store(top_keys + into, best_keys, mask=kept)
    if has_context:
        spoilt = marks > 0
        if is_member:
            mixed = tl.where(no_weights[:, None], 0.0, mixed * per[:, None])
            spoilt &= no_weights[:, None]
        else:
            mixed = mixed * per[:, None]
            spoilt |= no_weights[:, None]
        into = at[:, None] * value_dim + value_lane_of[None, :]
        kept = stored[:, None] & (value_lane_of < value_dim)[None, :]
        mixed = tl.where(spoilt, nan, mixed).to(context.dtype.element_ty)
        tl.store(context + into, mixed, mask=kept)
