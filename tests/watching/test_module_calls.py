"""The calls of a module: keys that are kept once, and calls that are rows of one matrix."""

import copy
import pickle
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import SelectionError
from clearhead.watching.continuing import Continuations
from clearhead.watching.module_calls import Matrices


class Linked(Matrices[ch.AttentionMatrix]):
    """The calls of one module, linked as a watch links them."""

    def add(self, call: Any, value: Tensor | None = None, **options: Any) -> Any:
        links = vars(self).setdefault("linked", Continuations())
        return super().add(call, value, link=links.of("", call, value), **options)


def matrices(problems: Sequence[Problem]) -> Linked:
    calls = Linked()
    for each in problems:
        calls.add(each)
    return calls


@pytest.mark.parametrize("window", [100, 4])
def test_keys_that_grow_are_one_tensor(window: int) -> None:
    every = torch.randn(2, 3, 41, 5)
    held = [every[:, :, max(0, count - window) : count] for count in range(7, 42)]
    calls = matrices([make_problem(each[:, :, -1:], each, each) for each in held])
    calls.close()
    for call, expected in zip(calls.all(), held, strict=True):
        assert torch.equal(call.problem.key, expected)
        assert call.problem.key.untyped_storage().nbytes() == held[0].nbytes + 34 * 120


def test_other_keys_do_not_continue() -> None:
    every = torch.randn(2, 3, 8, 5)
    changed = every.clone()
    changed[1, 2, 6, 4] += 1
    first = make_problem(every[:, :, :1], every[:, :, :7], every[:, :, :7])
    for other in (changed, every.double(), every.flip(2), every.to("meta")):
        links = Continuations()
        assert links.of("", first) is None
        assert links.of("", make_problem(other[:, :, 7:], other, other)) is None


def chain(
    lengths: list[int], *, valid: Tensor | None = None, **options: Any
) -> tuple[Linked, Tensor, Tensor]:
    """Calls that go on from one another, and query and key of all of them."""
    total = sum(lengths)
    query, key = torch.randn(2, 4, total, 5), torch.randn(2, 2, total, 5)
    problems, at = [], 0
    for count in lengths:
        at += count
        mask = None if count == 1 else ch.causal()
        if valid is not None:
            real = ch.padding(valid[:, :at])
            mask = real if mask is None else mask & real
        asked = make_problem(
            query[:, :, at - count : at], key[:, :, :at], key[:, :, :at], mask=mask, **options
        )
        problems.append(asked)
    calls = matrices(problems)
    calls.close()
    return calls, query, key


def bytes_of(calls: Linked) -> int:
    tensors = [t for matrix in calls.all() for t in (matrix.problem.query, matrix.problem.key)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("lengths", [[7, 1, 1, 1], [3, 5, 2], [1, 1, 1]])
@pytest.mark.parametrize("padded", [False, True])
def test_a_growing_sequence_is_one_matrix(lengths: list[int], padded: bool) -> None:
    total = sum(lengths)
    valid = torch.ones(2, total, dtype=torch.bool)
    valid[1, :1] = False
    calls, query, key = chain(lengths, valid=valid if padded else None, softcap=3.0)
    mask = ch.causal() & ch.padding(valid) if padded else ch.causal()
    expected = ch.AttentionMatrix(query, key, mask=mask, softcap=3.0).dense()
    assert not calls.several()
    whole = calls.whole()
    assert whole is calls.whole()
    torch.testing.assert_close(whole.dense(), expected)
    at = 0
    for matrix, count in zip(calls.all(), lengths, strict=True):
        rows = expected[:, :, at : at + count, : at + count]
        torch.testing.assert_close(matrix.dense(), rows)
        at += count
    assert bytes_of(calls) == query.nbytes + key.nbytes
    if padded:  # a row that sees nothing
        assert whole[1, :, 0].sum() == 0


def test_more_calls_make_a_longer_matrix() -> None:
    calls, query, key = chain([3, 1])
    assert calls.whole().shape == (2, 4, 4, 4)
    longer = torch.cat([key, key], dim=2)
    calls.add(make_problem(query, longer, longer, mask=ch.causal()))
    assert calls.whole().shape == (2, 4, 8, 8)


def test_a_copy_has_the_same_calls() -> None:
    calls, *_ = chain([3, 1])
    for copied in (copy.deepcopy(calls), pickle.loads(pickle.dumps(calls))):
        assert copied.whole().dense().equal(calls.whole().dense())
        assert bytes_of(copied) == bytes_of(calls)


def test_what_is_no_growing_sequence() -> None:
    query, key = torch.randn(2, 2, 5, 3), torch.randn(2, 2, 5, 3)

    def calls(*asked: Problem) -> Linked:
        return matrices(asked)

    def part(start: int, stop: int, of: Tensor = key, **options: Any) -> Problem:
        mask = options.pop("mask", ch.causal())
        keys = of[:, :, :stop]
        return make_problem(query[:, :, start:stop], keys, keys, mask=mask, **options)

    assert not calls(part(0, 3), part(3, 5)).several()
    hidden = ch.padding(torch.tensor([True, False, True, True, True]))
    changed = "another scale, softcap or sinks than the call before"
    bare = "no causal mask, with or without padding, a window, chunks or pictures"
    two = torch.ones(2)
    refused: list[tuple[str, Problem, Problem]] = [
        ("1 has query_len=3 and kv_len=3, after 3 keys", part(0, 3), part(0, 3)),
        ("1 has query_len=1 and kv_len=5, after 3 keys", part(0, 3), part(4, 5)),
        ("1 has query_len=3 and kv_len=3, after 5 keys", part(3, 5), part(0, 3)),
        ("0 has query_len=5 and kv_len=3", part(0, 5, of=key[:, :, :3]), part(3, 5)),
        (
            "1 has keys that do not continue those of the call before",
            part(0, 3),
            part(3, 5, of=torch.ones_like(key)),
        ),
        (f"1 has {bare}", part(0, 3), part(3, 5, mask=ch.causal(offset=0))),
        (f"1 has {bare}", part(0, 3), part(3, 5, mask=ch.sliding_window(left=1, right=0))),
        (
            "1 has other padding than the call before",
            part(0, 3),
            part(3, 5, mask=ch.causal() & hidden),
        ),
        ("1 has a bias", part(0, 3), part(3, 5, bias=torch.ones(2, 5))),
        (f"1 has {changed}", part(0, 3), part(3, 5, scale=0.3)),
        (f"1 has {changed}", part(0, 3), part(3, 5, softcap=3.0)),
        (f"1 has {changed}", part(0, 3), part(3, 5, sinks=0 * two)),
        (f"1 has {changed}", part(0, 3, sinks=two), part(3, 5, sinks=0 * two)),
    ]
    for reason, *parts in refused:
        assert calls(*parts).several() == f"call {reason}"
    per_head = torch.ones(1, 2, 1, 5, dtype=torch.bool)
    per_head[0, 1, 0, 2] = False
    hole = ch.dense(torch.tensor([[True, False, True, True, False], [True] * 5]))
    for mask, count in (
        (ch.dense(per_head), 1),  # of one query
        (ch.padding([4, 4]), 1),  # which does not see its own key
        (ch.dense(per_head & ch.causal().to_dense(2, 5)), 2),
        (hole, 2),
        (ch.dense(torch.ones(2, 5).tril().bool()), 2),  # from the first key on
        (ch.documents([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]) & ch.causal(), 2),
        (ch.causal() & (ch.sliding_window(left=0) | ch.prefix(2)), 2),
        (ch.causal() & ch.dense(torch.tensor([[True] * 5, [False] * 2 + [True] * 3])), 2),
    ):
        both = part(0, 5 - count), part(5 - count, 5, mask=mask)
        assert calls(*both).several() == f"call 1 has {bare}", mask
    sunk = calls(part(0, 3, sinks=torch.ones(2)), part(3, 5, sinks=torch.ones(2)))
    assert not sunk.several()


SMALL: Any = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "initializer_range": 0.4,
}  # fmt: skip
PLAIN: Any = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 5}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def mistral() -> Any:
    sizes: Any = {"num_key_value_heads": 2, "sliding_window": 5}
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, **sizes))


def chunked() -> Any:
    """Chunks of four tokens in the first layer, and none in the second."""
    config = transformers.Llama4TextConfig(
        **SMALL, num_key_value_heads=2, head_dim=8, intermediate_size_mlp=16, num_local_experts=2,
        attention_chunk_size=4, no_rope_layers=[1, 0], layer_types=["chunked_attention", "full_attention"],
    )  # fmt: skip
    return transformers.Llama4ForCausalLM(config)


STATIC = {"cache_implementation": "static"}
GENERATIONS: list[tuple[Callable[[], Any], Any, bool]] = [
    *((llama, STATIC, padded) for padded in (False, True)),
    *((mistral, more, padded) for more in ({}, STATIC) for padded in (False, True)),
    # With padding, chunks are counted from another token in each row.
    (chunked, {}, False),
    (chunked, STATIC, False),
]


@pytest.mark.parametrize(("make", "more", "padded"), GENERATIONS)
def test_a_generation_is_one_matrix(make: Callable[[], Any], more: Any, padded: bool) -> None:
    """The weights of the whole text at once, with keys at their places in it."""
    torch.manual_seed(0)
    model = make().eval()
    ids = torch.randint(3, 99, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0 if padded else 1
    with torch.no_grad(), ch.watch(model, values=True) as seen:
        out = model.generate(ids, attention_mask=mask, **PLAIN, **more)[:, :-1]
    mask = torch.nn.functional.pad(mask, (0, out.shape[1] - 7), value=1)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), ch.watch(model, values=True) as once:
        model(out, attention_mask=mask, position_ids=places)
    for name in once:
        for row, (weights, of_text) in enumerate(
            zip(seen[name].dense(), once[name].dense(), strict=True)
        ):
            real = mask[row].bool()
            torch.testing.assert_close(weights[:, real], of_text[:, real], atol=1e-5, rtol=1e-4)
            matrices: Any = seen[name], once[name]
            values = (matrix.value[row][:, real] for matrix in matrices)
            torch.testing.assert_close(*values, atol=1e-5, rtol=1e-4)


def test_padding_that_a_window_has_left_behind() -> None:
    """Of keys that no row sees any more, a step does not tell whether they are padded."""
    query, key = torch.randn(2, 2, 4, 9, 5).unbind()
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, :2] = False
    window = ch.causal() & ch.sliding_window(left=2)
    calls = Linked()
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        every = window & ch.padding(valid)
        mask = every.block(slice(start, stop), slice(0, stop), every.extent(stop, stop))
        given = mask if stop - start == 1 else window & ch.padding(valid[:, :stop])
        keys = key[:, :, :stop]
        calls.add(make_problem(query[:, :, start:stop], keys, keys, mask=given))
    assert not calls.several()
    expected = ch.AttentionMatrix(query, key, mask=window & ch.padding(valid)).dense()
    torch.testing.assert_close(calls.whole().dense(), expected)


def test_beams_are_rows_of_the_last_call() -> None:
    """Each row goes on from the rows that its keys were in, from call to call."""
    query, key = torch.randn(2, 3, 2, 5, 5).unbind()
    calls = Linked()
    asked, held = query[:, :, :0], key[:, :, :0]
    # Neither is its own inverse, and the two do not commute.
    for stop, order in ((3, [0, 1, 2]), (4, [2, 0, 0]), (5, [1, 2, 0])):
        own = slice(held.shape[2], stop)
        held = torch.cat([held[order], key[:, :, own]], dim=2)
        asked = torch.cat([asked[order], query[:, :, own]], dim=2)
        # A value is a function of its key here, and of another width.
        problem = make_problem(query[:, :, own], held, held, mask=ch.causal())
        calls.add(problem, held[..., :2] + 1)
    expected = ch.AttentionMatrix(asked, held, mask=ch.causal()).dense()
    torch.testing.assert_close(calls.whole().dense(), expected)
    value = calls.whole().value
    assert value is not None
    assert value.equal(held[..., :2] + 1)


def test_values_are_kept_beside_their_keys() -> None:
    query, key, value = torch.randn(2, 4, 9, 5), torch.randn(2, 2, 9, 5), torch.randn(2, 2, 9, 3)

    def step(stop: int, count: int, *of: Tensor) -> tuple[Problem, *tuple[Tensor, ...]]:
        keys = key[:, :, :stop]
        asked = make_problem(query[:, :, stop - count : stop], keys, keys, mask=ch.causal())
        return asked, *(each[:, :, :stop] for each in of)

    calls = Linked()
    for stop, count in ((6, 6), (7, 1), (9, 2)):
        calls.add(*step(stop, count, value))
    calls.close()
    whole, parts = calls.whole(), calls.all()
    assert whole.value is not None
    assert whole.value.equal(value)
    held = [each.value for each in parts if each.value is not None]
    assert [each.shape[2] for each in held] == [6, 7, 9]
    assert {each.untyped_storage().data_ptr() for each in held} == {held[0].data_ptr()}
    assert held[0].untyped_storage().nbytes() == value.nbytes
    assert bytes_of(calls) == query.nbytes + key.nbytes  # of which the values are no part
    # Other values do not continue those of the call before.
    other = Linked()
    other.add(*step(7, 7, value))
    other.add(*step(9, 2, value.flip(1)))
    assert other.several()


def translator() -> Any:
    config = transformers.BartConfig(
        vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4,
        forced_eos_token_id=None, init_std=0.4,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(config).eval()


def test_cross_attention_of_a_generation_is_one_matrix() -> None:
    model, ids = translator(), torch.randint(3, 99, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    with torch.no_grad(), ch.watch(model) as seen:
        out = model.generate(ids, attention_mask=mask, **PLAIN)[:, :-1]
    with torch.no_grad(), ch.watch(model) as once:
        model(ids, attention_mask=mask, decoder_input_ids=out)
    for name in once:
        torch.testing.assert_close(seen[name].dense(), once[name].dense(), atol=1e-5, rtol=1e-4)
        assert seen[name].cross == once[name].cross


def text_of(*parts: tuple[int, int], batch: int = 1) -> Linked:
    """Self-attention of parts of a text, each with the keys of those before; from 0 on is a text of its own."""
    calls, key = Linked(), torch.randn(batch, 2, 0, 3)
    for start, stop in parts:
        key = torch.cat([key[:, :, :start], torch.randn(batch, 2, stop - start, 3)], dim=2)
        calls.add(make_problem(key[:, :, start:], key, key, mask=ch.causal()))
    return calls


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([(0, 3), (3, 4), (4, 5)], True),
        ([(0, 1), (1, 2)], True),
        ([(0, 3), (3, 5)], True),
        ([(0, 3), (0, 3)], False),  # two texts for one source
        ([(0, 1), (0, 1)], False),
        ([(0, 3), (3, 4), (3, 4)], False),  # a draft that was thrown away
        ([(0, 2), (2, 3), (0, 2), (2, 3)], False),  # two generations
    ],
)
def test_cross_attention_goes_on_where_the_self_attention_of_its_queries_does(
    parts: list[tuple[int, int]], joined: bool
) -> None:
    query, key = torch.randn(1, 2, 9, 3), torch.randn(1, 2, 4, 3)
    other, text = text_of((0, 7)), text_of(*parts)
    for others in ([other, text], [text, other], [other], []):
        calls = Matrices(others)
        for start, stop in parts:
            calls.add(make_problem(query[:, :, start:stop], key, key).replace(cross=True))
        known = joined and text in others
        assert bool(calls.several()) != known, calls.several()
        calls.close()
        assert calls._others == ([text] if text in others else [])
        if known:
            asked = query[:, :, : parts[-1][1]]
            torch.testing.assert_close(
                calls.whole().dense(), ch.AttentionMatrix(asked, key, cross=True).dense()
            )


def test_rows_of_a_decoder_next_to_an_encoder() -> None:
    """Those of the beams, and of the sequences that were returned, of a beam search."""
    model, ids = translator().double(), torch.randint(3, 99, (2, 6))
    with torch.no_grad(), ch.watch(model) as seen:
        out = model.generate(ids, **PLAIN, num_beams=3, num_return_sequences=3)
    with torch.no_grad(), ch.watch(model) as once:
        model(ids.repeat_interleave(3, dim=0), decoder_input_ids=out[:, :-1])
    found, (encoder, *decoder) = seen.returned(out), once
    assert [matrix.cross for matrix in once.values()] == [False, False, True]
    assert found[encoder] is seen[encoder]
    for name in decoder:
        expected, beams = once[name].dense(), seen[name].dense()
        torch.testing.assert_close(found[name].dense(), expected, atol=1e-10, rtol=0)
        for row, want in enumerate(expected):
            same = beams[row // 3 * 3 :][:3]  # of the same sample
            assert any(torch.allclose(each, want, atol=1e-10, rtol=0) for each in same)


@pytest.mark.parametrize("keep", ["matrix", "contexts", "gradients"])
def test_texts_of_one_source_stay_apart(keep: Any) -> None:
    model, ids = translator(), torch.randint(3, 99, (1, 6))
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    with ch.watch(model, keep=keep) as seen, ch.watch(layer, keep=keep) as alone:
        for text in torch.randint(3, 99, (3, 1, 5)):
            model(ids, decoder_input_ids=text)
            layer(x, torch.ones(1, 4, 8), torch.ones(1, 4, 8))
    assert all(len(record.parts([path])) == 3 for record in (seen, alone) for path in record)
    with pytest.raises(SelectionError, match="in the self-attention of its queries call 2 has"):
        seen["model.decoder.layers.0.encoder_attn"]
    with pytest.raises(SelectionError, match="no self-attention of the same queries was seen"):
        alone[0]
    with ch.watch(layer, keep=keep) as both:
        for keys in (torch.ones(1, count, 8) for count in (6, 7)):
            layer(x[:, :1], keys, keys)
    with pytest.raises(SelectionError, match="to its own text and to a source at once"):
        both[0]


def test_queries_that_are_padding_stay_so_in_the_whole() -> None:
    query, key = torch.randn(2, 2, 5, 3), torch.randn(2, 2, 4, 3)
    real = torch.tensor([[True, True, True], [True, True, False]])
    calls = Linked([text_of((0, 3), (3, 5), batch=2)])
    for start, stop, known in ((0, 3, real), (3, 5, None)):
        asked = make_problem(query[:, :, start:stop], key, key)
        calls.add(asked.replace(cross=True, real_queries=known))
    found = calls.whole().real
    assert found is not None
    assert found.tolist() == [[True] * 5, [True, True, False, True, True]]


def test_a_prompt_in_pieces_of_chunked_attention_is_one_matrix() -> None:
    query, key = torch.randn(2, 1, 2, 9, 5).unbind()
    mask = ch.documents([0, 0, 0, 1, 1, 1, 2, 2, 2]) & ch.causal()
    calls = Linked()
    for start, stop in ((0, 5), (5, 9)):
        given = mask.to_dense(9, 9)[start:stop, :stop]
        keys = key[:, :, :stop]
        calls.add(make_problem(query[:, :, start:stop], keys, keys, mask=ch.dense(given)))
    expected = ch.AttentionMatrix(query, key, mask=mask)
    assert calls.whole().problem.mask is not None
    torch.testing.assert_close(calls.whole().dense(), expected.dense())


def test_what_is_no_cross_attention_of_one_source() -> None:
    query, key = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 4, 3)

    def part(start: int, stop: int, of: Tensor = key, **options: Any) -> Problem:
        return make_problem(query[:, :, start:stop], of, of, **options).replace(cross=True)

    def several(*asked: Problem) -> str:
        ends = [0, *accumulate(each.query_len for each in asked)]
        batch = max(each.batch for each in asked)
        calls = Linked([text_of(*pairwise(ends), batch=batch)])
        for each in asked:
            query, key = (tensor.expand(batch, -1, -1, -1) for tensor in (each.query, each.key))
            calls.add(each.replace(query=query, key=key, value=key))
        return calls.several()

    hidden = ch.padding(torch.tensor([True, True, True, False]))
    assert several(part(0, 3), part(3, 4), part(4, 5)) == ""
    assert (
        several(part(0, 3), part(3, 5, of=key + 1)) == "call 1 has other keys than the call before"
    )
    other = "call 1 has other padding than the call before"
    assert several(part(0, 3), part(3, 5, mask=hidden)) == other
    for keys in (key[:, :, :3], key.expand(2, -1, -1, -1) + 1):
        asked = query[:, :, 3:5].expand(len(keys), -1, -1, -1)
        later = make_problem(asked, keys, keys).replace(cross=True)
        assert several(part(0, 3), later) == "call 1 has other keys than the call before"
    precise = make_problem(query[:, :, 3:5].double(), key.double(), key.double())
    assert several(part(0, 3), precise.replace(cross=True)) == (
        "call 1 has other keys than the call before"
    )
    per_head = ch.dense(
        torch.tensor([True, False, True, True, True, True, True, True]).view(1, 2, 1, 4)
    )
    differs = "call 1 has a mask that differs from query to query"
    assert several(part(0, 3), part(3, 4, mask=per_head)) == differs
    # Of one query every mask is one of keys.
    last = ch.sliding_window(left=2)
    assert several(part(0, 1, mask=last), part(1, 2, mask=last), part(2, 3, mask=last)) == ""
    assert several(part(0, 1, mask=last), part(1, 3, mask=hidden)) == other
    rows = "call 0 has a mask that differs from query to query"
    assert several(part(0, 3, mask=ch.causal()), part(3, 5)) == rows


def test_pictures_are_whole_in_one_causal_matrix() -> None:
    """Queries of a picture see all of it; its place differs from sample to sample, and later steps are causal."""
    query, key = torch.randn(2, 2, 2, 9, 5, dtype=torch.float64).unbind()
    picture = torch.tensor([[0, 1, 1, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 3, 3, 4, 5, 6]])
    for window in (None, 2):
        base = ch.causal() if window is None else ch.causal() & ch.sliding_window(left=window)
        mask = base | ch.documents(picture)
        visible = mask.block(slice(0, 9), slice(0, 9), make_problem(query, key, key).extent)
        calls = Linked()
        for start, stop in ((0, 7), (7, 8), (8, 9)):
            keys = key[:, :, :stop]
            given = ch.dense(visible[..., start:stop, :stop])
            calls.add(make_problem(query[:, :, start:stop], keys, keys, mask=given))
        assert not calls.several()
        expected = ch.AttentionMatrix(query, key, mask=mask).dense()
        torch.testing.assert_close(calls.whole().dense(), expected)
