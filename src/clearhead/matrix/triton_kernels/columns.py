# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportPossiblyUnboundVariable=false
"""The kernel that goes over the queries of some keys: what each key receives.

A weight is exp(score − largest score of its query) · largest weight of its query, which `rows` found: a
logsumexp, as one number, would round what the exponential then magnifies.
"""

import triton
import triton.language as tl

from clearhead.matrix.triton_kernels.rows import (
    NOTHING,
    keys_of,
    load_rows,
    scores_of,
    visible,
)


@triton.jit
def columns(
    query,
    keys,
    bad_query,
    bad_key,
    start,
    stop,
    tiles_from,
    tiles_to,
    dense,
    slopes,
    table,
    largest,
    maximum,
    received,
    query_batch,
    query_head,
    query_row,
    query_lane,
    key_batch,
    key_head,
    key_row,
    key_lane,
    dense_batch,
    dense_head,
    dense_row,
    dense_key,
    table_head,
    runs_batch,
    tiles_batch,
    heads,
    group,
    query_len,
    kv_len,
    head_dim,
    scale,
    softcap,
    reach,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    lanes: tl.constexpr,
    masked: tl.constexpr,
    pieces: tl.constexpr,
    precision: tl.constexpr,
    upcast: tl.constexpr,
    capped: tl.constexpr,
    has_dense: tl.constexpr,
    has_alibi: tl.constexpr,
    has_table: tl.constexpr,
):
    """Launch with (batch · key heads, tiles of keys) programs.

    `tiles_from` and `tiles_to` are the tiles of queries that may see a tile of keys. The second row of sizes are
    strides, in numbers; those of `…_batch` are 0 where one thing serves all samples.
    """
    line = tl.program_id(0)
    kv_heads = heads // group
    sample, kv_head = line // kv_heads, line % kv_heads
    tile = tl.program_id(1)
    key = tile * block_keys + tl.arange(0, block_keys)
    lane = tl.arange(0, lanes)
    behind = kv_len - query_len
    keys += sample.to(tl.int64) * key_batch + kv_head.to(tl.int64) * key_head
    bad_key += line.to(tl.int64) * kv_len
    runs = sample.to(tl.int64) * runs_batch
    some, _of_keys = load_rows(
        keys, key, key_row, kv_len, lane, key_lane, head_dim, bad_key, upcast
    )
    here = sample * tiles_batch + tile
    from_tile, to_tile = tl.load(tiles_from + here), tl.load(tiles_to + here)
    sums = tl.zeros([block_keys], tl.float32)
    for member in range(group):
        head = kv_head * group + member
        of_head = (sample * heads + head).to(tl.int64) * query_len
        asked_of = query + sample.to(tl.int64) * query_batch + head.to(tl.int64) * query_head
        added = dense
        if has_dense:
            added = dense + sample.to(tl.int64) * dense_batch + head.to(tl.int64) * dense_head
        slope = 0.0
        if has_alibi:
            slope = tl.load(slopes + head).to(tl.float32)
        steps = table
        if has_table:
            steps = table + head * table_head
        for number in range(from_tile, to_tile):
            row = number * block_queries + tl.arange(0, block_queries)
            place = tl.minimum(row, query_len - 1)
            first, last = keys_of(start, stop, runs, place, kv_len, masked, pieces)
            # A tile between two that see these keys may see none of them.
            if tl.min(first, 0) < (tile + 1) * block_keys and tl.max(last, 0) > tile * block_keys:
                asked, _of_queries = load_rows(
                    asked_of,
                    place,
                    query_row,
                    query_len,
                    lane,
                    query_lane,
                    head_dim,
                    bad_query + of_head,
                    upcast,
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
                    added,
                    dense_row,
                    dense_key,
                    slope,
                    steps,
                    reach,
                    precision,
                    capped,
                    has_dense,
                    has_alibi,
                    has_table,
                )
                seen = visible(start, stop, runs, place, key, first, last, pieces)
                seen &= (row < query_len)[:, None] & ~(scores == NOTHING)
                best = tl.load(largest + of_head + place)
                most = tl.load(maximum + of_head + place)
                shares = tl.exp(scores - best[:, None]) * most[:, None]
                sums += tl.sum(tl.where(seen, shares, 0.0), 0)
    tl.store(received + line.to(tl.int64) * kv_len + key, sums, mask=key < kv_len)
