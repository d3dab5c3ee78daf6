"""Every kind of cache against the whole text, and what every kind refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.layers.caches import Cache, FixedCache, GrowingCache, SlidingCache, StaticCache
from clearhead.layers.caches.layout import is_in_order
from tests.layers.caches.texts import KINDS, SPARE, WINDOW, Texts, tokens
from tests.masks.expressions import bools
from tests.refusals import assert_refused, refusals, run, wrong

kinds = pytest.mark.parametrize("kind", KINDS)
BATCH = 3


@kinds
@settings(max_examples=20)
@given(data=st.data())
def test_any_history(kind: str, data: st.DataObject) -> None:
    """Chunks with and without padding, cuts, by row as well, other rows, and forks:
    always as if each text were whole."""
    every = [Texts(KINDS[kind](), data.draw(st.integers(1, 3)))]
    padded, was_cut = data.draw(st.booleans()), False
    steps = ["append", "append", "one", "truncate", "truncate rows", "reorder", "fork"]
    for _ in range(data.draw(st.integers(1, 9))):
        step = data.draw(st.sampled_from(steps))
        texts = data.draw(st.sampled_from(every))
        seen = len(texts.cache)
        if step.startswith("truncate"):
            cuts = st.lists(
                st.integers(0, min(seen, 5)), min_size=texts.batch, max_size=texts.batch
            )
            backs = data.draw(cuts)
            back = max(backs) if step == "truncate rows" else backs[0]
            refused = None
            try:
                if step == "truncate":
                    texts.truncate(seen - back)
                else:
                    texts.truncate_rows([seen - each for each in backs])
            except ch.errors.ArgumentError as error:
                refused = error.code
            if refused is not None:
                assert refused == "cache.truncate"
                assert isinstance(texts.cache, SlidingCache)
                assert was_cut or back > 1 + texts.cache.spare
            was_cut = True
        elif step == "fork":
            every.append(texts.fork())
        elif step == "reorder" and seen:
            rows = st.lists(st.integers(0, texts.batch - 1), min_size=1, max_size=4)
            texts.reorder(data.draw(rows))
        else:
            new = 1 if step == "one" else data.draw(st.integers(0, 7))
            shape = texts.batch, new
            valid = data.draw(st.none() | bools(*shape)) if padded else None
            texts.append(new, valid)


@kinds
def test_after_a_reset_nothing_remains(kind: str) -> None:
    cache = KINDS[kind]()
    texts = Texts(cache, BATCH)
    texts.append(7, torch.arange(7) >= torch.tensor([[0], [5], [2]]))
    cache.reset()
    assert len(cache) == 0
    assert cache.positions.tolist() == []
    assert cache.mask().to_dense(0, 0).shape == (0, 0)
    assert torch.equal(cache.next_positions(2), torch.tensor([0, 1]))
    # Another batch, another dtype: nothing is compared with what was there before.
    key = torch.randn(5, 1, 2, 3, dtype=torch.float64)
    kept, _ = cache.append(key, key)
    assert kept.dtype == torch.float64
    assert kept.shape[2] == (211 if kind == "fixed" else 2)
    assert torch.equal(kept[:, :, :2], key)
    cache.reset()
    texts = Texts(cache, 2)
    texts.append(5)
    texts.append(1)


@kinds
def test_what_inference_mode_made_can_be_written_to_outside(kind: str) -> None:
    texts = Texts(KINDS[kind](), BATCH)
    with torch.inference_mode():
        texts.append(5, torch.arange(5) < torch.tensor([[5], [1], [3]]))
        texts.reorder([2, 0])
        texts.append(1)
    texts.append(1)
    texts.append(3)
    texts.reorder([1, 1, 0])
    texts.append(1)
    other = Texts(KINDS[kind](), BATCH)
    with torch.inference_mode():
        other.append(5, torch.arange(5) < torch.tensor([[5], [1], [3]]))
    other.append(1)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_kept(kind: str, dtype: torch.dtype) -> None:
    cache = KINDS[kind]()
    for new in (3, 1):
        _, key, value = tokens(2, new)
        kept = cache.append(key.to(dtype), value.to(dtype))
        assert [tensor.dtype for tensor in kept] == [dtype, dtype]
        last = kept[0][:, :, : len(cache)][:, :, -new:].double()
        if len(cache) <= WINDOW:  # so that a ring is still in order
            assert torch.equal(last, key.to(dtype).double())


@kinds
def test_a_nan_in_padding_stays_there(kind: str) -> None:
    cache = KINDS[kind]()
    query, key, value = tokens(2, 3)
    valid = torch.tensor([[False, True, True], [True, True, True]])
    key[0, :, 0] = value[0, :, 0] = torch.nan
    key, value = cache.append(key, value, valid=valid)
    context = ch.attend(query, key, value, mask=ch.causal() & cache.mask())
    assert context.isfinite().all()
    query, key, value = tokens(2, 1)
    key, value = cache.append(key, value)
    assert ch.attend(query, key, value, mask=ch.causal() & cache.mask()).isfinite().all()


@kinds
def test_the_mask_fits_the_last_queries_alone(kind: str) -> None:
    cache = KINDS[kind]()
    _, key, value = tokens(2, 5)
    cache.append(key, value, valid=torch.arange(5) >= torch.tensor([[0], [2]]))
    query, key, value = tokens(2, 7)
    key, value = cache.append(key, value)
    mask = ch.causal() & cache.mask()
    every = ch.attend(query, key, value, mask=mask)
    last = ch.attend(query[:, :, -2:], key, value, mask=mask)
    torch.testing.assert_close(last, every[:, :, -2:])


@kinds
def test_refused_tokens_leave_no_trace(kind: str) -> None:
    texts = Texts(KINDS[kind](), BATCH)
    _, key, value = tokens(2, 2)
    assert_refused(lambda: texts.cache.append(key.requires_grad_(), value), "cache.grad")
    texts.append(5)
    _, key, value = tokens(BATCH, 1)
    for bad in (key.double(), key[:2], key[:, :, :, :3]):
        with pytest.raises(ch.errors.ClearheadError):
            texts.cache.append(bad, value)
    with pytest.raises(ch.errors.ShapeError):
        texts.cache.append(key, value, valid=torch.ones(BATCH, 2, dtype=torch.bool))
    texts.append(1)


@kinds
def test_no_gradient_is_asked_for(kind: str) -> None:
    """Keys of a layer that is trained may come, once nothing is recorded."""
    cache = KINDS[kind]()
    _, key, value = tokens(1, 2)
    with torch.no_grad():
        kept = cache.append(key.requires_grad_(), value.requires_grad_())
    assert not any(tensor.requires_grad for tensor in cache.append(*tokens(1, 3)[1:]))
    assert len(kept) == 2


def held(cache: Cache | None = None) -> Cache:
    """A cache with some tokens."""
    cache = GrowingCache() if cache is None else cache
    cache.append(*tokens(2, 3)[1:])
    return cache


_, KEY, VALUE = tokens(2, 3)
ONES = torch.ones(2, 3, dtype=torch.bool)
DTYPES = "float16, bfloat16, float32 or float64"
TENSOR = "a torch.Tensor"
ROWS = "rows // whole numbers, one for each row of the new batch"
LENGTHS = "length // a whole number of tokens, or one for each row"

new, more = GrowingCache().append, held().append
cut, choose, nothing = held().truncate, held().reorder, GrowingCache()
test_refusals = refusals(
    run,
    (lambda: new(wrong([1.0]), VALUE), "key.type", f"key // {TENSOR} // list"),
    (lambda: new(KEY, wrong(None)), "value.type", f"value // {TENSOR} // NoneType"),
    (lambda: new(KEY[0], VALUE[0]), "cache.shape", "(2, 3, 5) // (2, 3, 7)"),
    (lambda: new(KEY[:0], VALUE[:0]), "cache.shape", "(0, 2, 3, 5) // (0, 2, 3, 7)"),
    (lambda: new(KEY, VALUE[:, :, :2]), "cache.shape", "(2, 2, 3, 5) // (2, 2, 2, 7)"),
    (
        lambda: more(KEY[:1], VALUE[:1]),
        "cache.shape",
        "2 // 2 // 5 // 7 // [batch=1, num_kv_heads=2, kv_len=3, head_dim=5] float32 cpu",
        "[batch=1, num_kv_heads=2, kv_len=3, value_head_dim=7] float32 cpu",
    ),
    (lambda: new(KEY, VALUE.double()), "cache.dtype", DTYPES, "torch.float32 // torch.float64"),
    (lambda: new(KEY.long(), VALUE.long()), "cache.dtype", DTYPES, "torch.int64 // torch.int64"),
    (
        lambda: more(KEY.double(), VALUE.double()),
        "cache.dtype",
        "torch.float32 // torch.float64 // torch.float64",
    ),
    (lambda: new(KEY, VALUE.to("meta")), "cache.device", "cpu // cpu // meta"),
    (lambda: more(KEY.to("meta"), VALUE.to("meta")), "cache.device", "cpu // meta // meta"),
    (lambda: new(KEY, VALUE, valid=ONES.long()), "cache.valid-dtype", "torch.int64"),
    (lambda: more(KEY, VALUE, valid=ONES.repeat(1, 2)), "cache.valid", "2 // 3 // (2, 6)"),
    (lambda: new(KEY, VALUE, valid=ONES.to("meta")), "cache.valid-device", "cpu // meta"),
    (lambda: new(KEY, VALUE, valid=wrong([1])), "valid.type", f"valid // {TENSOR} // list"),
    (lambda: held().next_positions(3, ONES[:1]), "cache.valid", "2 // 3 // (1, 3)"),
    (lambda: nothing.next_positions(3, ONES[0]), "cache.valid", "3 // 3 // (3,)"),
    (lambda: nothing.next_positions(-1), "length.negative", "new // -1"),
    (lambda: cut(4), "cache.truncate", "3 // 4"),
    (lambda: cut(-1), "length.negative", "length // -1"),
    (lambda: cut(wrong(1.5)), "length.type", "length // float"),
    (lambda: cut([1, 2, 3]), "cache.truncate-shape", "(batch,) = (2,) // (3,)"),
    (lambda: nothing.truncate(ONES.long()), "cache.truncate-shape", "(batch,) // (2, 3)"),
    (lambda: cut(wrong([1.5, 2])), "length.type", LENGTHS, "[1.5, 2]"),
    (lambda: cut(torch.ones(2)), "length.type", LENGTHS, "a tensor of torch.float32"),
    (lambda: cut([1, -1]), "length.negative", "-1"),
    (lambda: cut([1, 4]), "cache.truncate", "3 // 4"),
    (lambda: choose([0, 2]), "cache.reorder", "0 to 1 // 2"),
    (lambda: choose(torch.tensor([0, -1])), "cache.reorder", "0 to 1 // -1"),
    (lambda: nothing.reorder([0]), "cache.reorder", "none: nothing was appended yet // 0"),
    (lambda: choose([]), "cache.reorder-shape", "(0,)"),
    (lambda: choose(ONES.long()), "cache.reorder-shape", "(2, 3)"),
    (lambda: choose(ONES[0]), "rows.type", ROWS, "a tensor of torch.bool"),
    (lambda: choose(wrong(["a"])), "rows.type", ROWS, "['a']"),
    (lambda: bool(nothing), "cache.truth"),
    (lambda: StaticCache(0), "argument.size", "max_len // 0"),
    (lambda: StaticCache(wrong(2.0)), "argument.type", "max_len // float"),
    (lambda: SlidingCache(0), "argument.size", "window // 0"),
    (lambda: SlidingCache(2, spare=-1), "length.negative", "spare // -1"),
    (lambda: FixedCache(7).state(), "cache.empty"),
    (
        lambda: FixedCache.of(KEY, VALUE, torch.tensor([3])),
        "length.type",
        "torch.int64 // (1,)",
    ),
    (lambda: FixedCache.of(KEY, VALUE, wrong(3)), "length.type", f"length // {TENSOR} // int"),
    (
        lambda: FixedCache.of(KEY, VALUE[:1], torch.tensor(3)),
        "cache.shape",
        "(2, 2, 3, 5) // (1, 2, 3, 7)",
    ),
    (
        lambda: FixedCache.of(KEY, VALUE, torch.tensor(3), ONES[:, :2]),
        "cache.valid",
        "2 // 3 // (2, 2)",
    ),
)


def test_it_says_what_it_is() -> None:
    kinds = "GrowingCache()", "StaticCache(7)", "FixedCache(7)", "SlidingCache(5)"
    for text in (*kinds, "SlidingCache(5, spare=2)"):
        assert repr(held(eval(text, vars(ch.layers).copy()))) == f"<{text}, 3 tokens>"


@kinds
def test_positions_go_where_they_are_asked_for(kind: str) -> None:
    cache = KINDS[kind]()
    assert cache.next_positions(3, device="meta").device.type == "meta"
    held(cache)
    assert cache.next_positions(2).tolist() == [3, 4]
    valid = torch.tensor([[False, True], [True, False]])
    assert cache.next_positions(2, valid).tolist() == [[3, 3], [3, 4]]
    cache.append(*tokens(2, 2)[1:], valid=valid)
    assert cache.next_positions(2).tolist() == [[4, 5], [4, 5]]
    assert cache.next_positions(2, device="meta").device.type == "meta"


@settings(max_examples=30)
@given(window=st.integers(1, 9), spare=st.integers(0, SPARE), new=st.integers(2, 23))
def test_a_ring_of_any_size(window: int, spare: int, new: int) -> None:
    cache = SlidingCache(window, spare=spare)
    _, key, value = tokens(1, new)
    for token in range(new):
        one = slice(token, token + 1)
        kept, _ = cache.append(key[:, :, one], value[:, :, one])
        visible = cache.mask().to_dense(1, kept.shape[2]).reshape(-1)
        seen = cache.positions[visible].sort()
        assert seen.values.tolist() == list(range(max(0, token + 1 - window), token + 1))
        assert torch.equal(kept[:, :, visible][:, :, seen.indices], key[:, :, seen.values])


def test_whether_tokens_are_neighbours_is_not_read_where_there_are_no_numbers() -> None:
    valid = torch.tensor([[False, True, True, False], [True, True, True, True]])
    assert is_in_order(valid)
    assert not is_in_order(torch.cat([valid, valid], dim=1))
    assert not is_in_order(valid.to("meta"))
    assert is_in_order(valid[:, :0])
