"""The attention of a watched model; and that it runs as if nobody watched."""

import asyncio
import contextvars
import dataclasses
import math
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, SelectionError, WatchError
from clearhead.watching.watch import watch
from tests.matrix.tensors import tensors_of
from tests.refusals import assert_refused, refusals
from tests.watching.models import IDS, Direct, Language, Stack, inputs

# Not a name of this module, which would be replaced as well.
ORIGINAL = (F.scaled_dot_product_attention,)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Direct()

    def forward(self, x: Tensor) -> Tensor:
        self.inner(x, x, x)
        raise RuntimeError("the model itself")


def weights_of(query: Tensor, key: Tensor, visible: Tensor | None = None) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return torch.softmax(scores, dim=-1)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


CALLS: dict[str, tuple[Callable[[], tuple[Tensor, Tensor, Tensor]], dict[str, Any]]] = {
    "plain": (lambda: inputs(2, 3), {}),
    "scale": (lambda: inputs(2, 3), {"scale": 0.1}),
    "causal": (lambda: inputs(2, 3), {"is_causal": True}),
    "causal, from the first key": (
        lambda: inputs(2, 3, query_len=3, kv_len=7),
        {"is_causal": True},
    ),
    "causal, more queries": (lambda: inputs(2, 3, query_len=7, kv_len=3), {"is_causal": True}),
    "bool mask": (
        lambda: inputs(2, 3, kv_len=7),
        {"attn_mask": torch.ones(5, 7, dtype=torch.bool).tril(1)},
    ),
    "bool mask per sample": (
        lambda: inputs(2, 3),
        {"attn_mask": torch.tensor([True, False, True, True, False]).expand(2, 1, 1, 5)},
    ),
    "float mask": (
        lambda: inputs(2, 3, kv_len=7),
        {"attn_mask": torch.linspace(-3, 3, 35, dtype=torch.float64).view(5, 7)},
    ),
    "float mask that hides": (
        lambda: inputs(2, 3),
        {"attn_mask": torch.full((3, 5, 5), -torch.inf, dtype=torch.float64).triu(1)},
    ),
    "three dimensions": (lambda: inputs(3), {"is_causal": True}),
    "two dimensions": (lambda: inputs(), {}),
    "five dimensions": (
        lambda: inputs(2, 2, 3),
        {"attn_mask": torch.ones(2, 1, 1, 5, 5, dtype=torch.bool).tril()},
    ),
    "one key head": (lambda: (inputs(2, 3)[0], *inputs(2, 1)[1:]), {}),
    "grouped heads": (
        lambda: (inputs(2, 6)[0], *inputs(2, 2)[1:]),
        {"enable_gqa": True, "is_causal": True},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_kind_of_call(name: str) -> None:
    make, options = CALLS[name]
    query, key, value = make()
    model = Direct()
    alone = model(query, key, value, **options)
    with watch(model) as seen:
        watched = model(query, key, value, **options)
    assert torch.equal(watched, alone)
    assert seen.layers == ("",)
    matrix = seen[""]
    assert matrix.ndim == 4
    if query.ndim == 3:  # samples, not heads
        assert matrix.shape[:2] == (query.shape[0], 1)
    close(matrix.dense().reshape(alone.shape), alone)
    value_heads = matrix.problem.num_kv_heads
    values = torch.randn(matrix.shape[0], value_heads, matrix.shape[3], 2, dtype=torch.float64)
    assert (matrix @ values).shape == (*matrix.shape[:3], 2)


def test_weights_are_those_before_dropout() -> None:
    query, key, value = inputs(1, 2)
    model = Direct()
    torch.manual_seed(3)
    alone = model(query, key, value, dropout_p=0.5)
    torch.manual_seed(3)
    with watch(model) as seen:
        assert torch.equal(model(query, key, value, dropout_p=0.5), alone)
    close(seen[0].dense(), weights_of(query, key))


def test_paths_and_order() -> None:
    x = inputs(1, 2)[0]
    model = Stack()
    alone = model(x)
    with watch(model) as seen:
        assert F.scaled_dot_product_attention is not ORIGINAL[0]
        assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"
        assert torch.equal(model(x), alone)
    assert seen.layers == tuple(seen) == ("first", "second")
    assert len(seen) == 2
    assert "first" in seen
    assert "third" not in seen
    assert seen[0] is seen["first"] is seen[-2]
    assert seen.calls("second") == (seen[-1],)
    assert dict(seen) == {"first": seen[0], "second": seen[1]}
    close(seen[0].dense(), weights_of(x, x))
    sizes = "[batch=1, num_heads=2, query_len=5, kv_len=5]"
    assert repr(seen) == (
        "Stack: 2 modules attended\n"
        f"  first   AttentionMatrix {sizes}\n"
        f"  second  AttentionMatrix {sizes} mask=causal(offset=0)"
    )


def test_the_gradient_is_that_of_the_model() -> None:
    x = inputs(1, 2)[0].requires_grad_()
    model = Stack()
    alone = torch.autograd.grad(model(x).sum(), x)[0]
    with watch(model) as seen:
        watched = torch.autograd.grad(model(x).sum(), x)[0]
    assert torch.equal(watched, alone)
    assert not seen[0].problem.query.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": ch.causal()},
        {"mask": ch.causal() & ch.documents([0, 0, 1, 1, 1])},
        {"mask": ch.sliding_window(left=1, right=1), "num_kv_heads": 1},
        {"mask": ch.causal(), "dropout": 0.5},
    ],
)
def test_layers_of_clearhead(options: dict[str, Any]) -> None:
    layers = [ch.MultiHeadAttention(8, num_heads=2, **options).double() for _ in range(2)]
    model = nn.Sequential(*layers)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.manual_seed(3)
    alone = model(x)
    torch.manual_seed(3)
    with watch(model) as seen:
        assert torch.equal(model(x), alone)
    assert seen.layers == ("0", "1")
    expected = ch.trace(layers[0], x)["weights"]
    close(seen["0"].dense(), expected)  # one call each: not those of the kernel inside it


def test_attend_inside_a_model() -> None:
    class Attends(nn.Module):
        def forward(self, x: Tensor, sinks: Tensor, bias: Tensor) -> Tensor:
            options: dict[str, Any] = {"sinks": sinks, "bias": bias, "softcap": 2.0, "scale": 0.3}
            direct = F.scaled_dot_product_attention(x, x, x)
            return direct + ch.attend(x, x, x, mask=ch.causal(), **options)

    query, _, _ = inputs(1, 2)
    sinks = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bias = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    expected = ch.AttentionMatrix(
        query, query, mask=ch.causal(), bias=bias.clone(), sinks=sinks.clone(), softcap=2.0,
        scale=0.3,
    ).dense()  # fmt: skip
    with watch(model := Attends()) as seen:
        model(query, sinks, bias)
    sinks.zero_()
    plain, full = seen.calls("")
    close(plain.dense(), weights_of(query, query))
    close(full.dense(), expected)
    assert repr(seen).endswith("kv_len=5]  and 1 more (call 1 has a bias)")
    assert "(the model)  AttentionMatrix" in repr(seen)


def test_two_models_at_once() -> None:
    x, y = inputs(1, 2)[0], inputs(1, 3)[0]
    left, right, neither = Stack(), Direct(), Direct()
    with watch(left) as of_left:
        with watch(right) as of_right:
            left(x)
            right(y, y, y)
            neither(x, x, x)
        assert F.scaled_dot_product_attention is not ORIGINAL[0]
        neither(x, x, x)
        F.scaled_dot_product_attention(x, x, x)
    assert of_left.layers == ("first", "second")
    assert len(of_left.calls(0)) == 1
    close(of_right[""].dense(), weights_of(y, y))


def test_a_part_of_a_watched_model_is_watched_too() -> None:
    x = inputs(1, 2)[0]
    model = Stack()
    with watch(model) as whole, watch(model.second) as part:
        model(x)
    assert whole.layers == ("first", "second")
    assert part.layers == ("",)
    close(part[0].dense(), whole["second"].dense())


def test_what_is_called_inside_belongs_to_the_innermost_known_module() -> None:
    class Outer(nn.Module):
        def __init__(self, stranger: nn.Module) -> None:
            super().__init__()
            self.strangers = [stranger]  # not registered

        def forward(self, x: Tensor) -> Tensor:
            return self.strangers[0](x, x, x)

    x = inputs(1, 2)[0]
    with watch(model := nn.Sequential(Outer(Direct()))) as seen:
        model(x)
    assert seen.layers == ("0",)


def test_what_was_seen_stays_as_it_was() -> None:
    query, key, value = inputs(1, 2)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    bias = torch.randn(5, 5, dtype=torch.float64)
    hidden = weights_of(query, key, visible)
    biased = torch.softmax(query @ key.mT / 2 + bias, -1)
    model = Direct()
    with watch(model) as seen:
        model(query, key, value, attn_mask=visible)
        model(query, key, value, attn_mask=visible)
        model(query, key, value, attn_mask=bias)
        visible.fill_(True)
        model(query, key, value, attn_mask=visible)
        expected = [hidden, hidden, biased, weights_of(query, key)]
        for tensor in (query, key, value, bias):
            tensor.zero_()
    for matrix, weights in zip(seen.calls(0), expected, strict=True):
        close(matrix.dense(), weights)


def test_an_error_of_the_model_is_the_one_that_shows() -> None:
    x = inputs(1, 2)[0]
    model = Failing()
    with pytest.raises(RuntimeError, match=r"^the model itself$"), watch(model) as seen:
        model(x)
    assert F.scaled_dot_product_attention is ORIGINAL[0]
    assert seen.layers == ("inner",)
    with pytest.raises(KeyError, match="mine"), watch(model):
        raise KeyError("mine")  # the model was not called, and that is not what is told


def test_a_caught_error_does_not_lead_astray() -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.failing = Failing()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.failing(x)
            except RuntimeError:
                return F.scaled_dot_product_attention(x, x, x)

    x = inputs(1, 2)[0]
    with watch(model := Catching()) as seen:
        model(x)
    assert seen.layers == ("failing.inner", "")


def test_an_error_of_the_call_itself_is_that_of_pytorch() -> None:
    query, key, value = inputs(1, 2)
    model = Direct()
    with pytest.raises(RuntimeError) as alone:
        model(query, key[..., :3], value)
    with pytest.raises(RuntimeError) as watched, watch(model):
        model(query, key[..., :3], value)
    assert str(watched.value) == str(alone.value)
    assert not isinstance(watched.value, ch.errors.ClearheadError)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_call_that_cannot_be_read_is_told_at_the_end() -> None:
    x = inputs(1, 2)[0]
    model = Direct()

    def of_each(sample: Tensor) -> Tensor:
        return model(sample, sample, sample)

    expected = F.scaled_dot_product_attention(x, x, x)
    text = (
        "[watch.unreadable] a call of attention could not be read: [watch.transformed] it ran "
        "inside a transformation such as torch.vmap."
    )
    output = None
    with pytest.raises(WatchError, match=f"^{re.escape(text)}$") as caught, watch(model):
        output = torch.vmap(of_each)(x[None])
    assert isinstance(caught.value.__cause__, WatchError)
    assert output is not None
    close(output[0], expected)


def test_a_model_that_was_not_called() -> None:
    text = (
        "[watch.not-run] Stack was not called while it was watched, so nothing was seen. A call in "
        'another thread is seen with watch(…, threads="all"); code that torch.compile has compiled is not seen.'
    )
    with pytest.raises(WatchError, match=f"^{re.escape(text)}$"), watch(Stack()):
        pass


def test_a_model_that_does_not_attend() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(WatchError, match=r"^\[watch.nothing-seen\] Linear ran"), watch(model):
        model(torch.randn(2, 3))


def test_several_calls_of_a_module() -> None:
    x, y = inputs(1, 2)[0], inputs(1, 2, query_len=3)[0]
    with watch(model := Stack()) as seen:
        model(x)
        model(y)
    first, second = seen.calls("first")
    close(first.dense(), weights_of(x, x))
    close(second.dense(), weights_of(y, y))
    reason = "call 1 has query_len=3 and kv_len=3, after 5 keys"
    for layer in ("first", 1):
        text = (
            f"[watch.several] {layer!r} attended 2 times, and not as rows of one matrix, since "
            f"{reason}; calls({layer!r}) has them all, returned(sequences) the rows of a generation."
        )
        with pytest.raises(SelectionError, match=f"^{re.escape(text)}$"):
            seen[layer]
        assert f"  and 1 more ({reason})" in repr(seen)


def test_what_a_function_returns_is_kept_and_nothing_else() -> None:
    x, y = inputs(1, 2)[0], inputs(1, 2, query_len=3)[0]
    model = Stack()

    def entropy(path: str, matrix: ch.AttentionMatrix) -> tuple[str, Tensor]:
        assert not torch.is_grad_enabled()
        return path, matrix.entropy()

    with watch(model) as matrices:
        model(x.requires_grad_())
        model(y)
    with watch(model, keep=entropy) as seen:
        output = model(x.requires_grad_())
        model(y)
    assert output.requires_grad
    assert repr(watch(model, keep=entropy)) == "watch(Stack, keep='function')"
    for path in matrices:
        for (name, found), matrix in zip(seen.calls(path), matrices.calls(path), strict=True):
            assert name == path
            assert not found.requires_grad
            torch.testing.assert_close(found, matrix.entropy(), rtol=0, atol=0)
    with pytest.raises(SelectionError, match="a result is of one call; calls"):
        seen["first"]
    with watch(model, keep=lambda path, matrix: matrix.max()) as seen:
        model(x)
    assert seen["first"].shape == (1, 2, 5)
    assert "Tensor [1, 2, 5]" in repr(seen)
    with watch(model, keep=lambda path, matrix: None) as seen:
        model(x)
    assert seen["first"] is None
    assert "None" in repr(seen)
    assert seen._repr_html_() == f"<pre>{seen!r}</pre>"


def test_a_function_that_fails_or_keeps_the_matrix() -> None:
    x, kept = inputs(1, 2)[0], []
    model = Stack()
    with pytest.raises(WatchError) as caught, watch(model, keep=lambda path, matrix: 1 / 0):
        model(x)
    assert str(caught.value) == (
        "[watch.function] keep= raised for 'first': ZeroDivisionError: division by zero"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    text = (
        "[watch.function] keep= must return numbers of the matrix, which is gone when the call runs; "
        'it was kept. keep="matrix" keeps matrices.'
    )
    for keep in (lambda path, matrix: matrix, lambda path, matrix: kept.append(matrix)):
        with pytest.raises(WatchError, match=f"^{re.escape(text)}$"), watch(model, keep=keep):
            model(x)


def test_results_are_not_read_as_attention(tmp_path: Path) -> None:
    x, model = inputs(1, 2)[0], Stack()
    with watch(model, keep=lambda path, matrix: 0) as seen:
        model(x)
    with watch(model) as matrices:
        model(x)
    for verb, given in (
        ("table", ()),
        ("find", (0,)),
        ("plot", ()),
        ("to_html", ("",)),
        ("save", ("",)),
    ):
        call = getattr(seen, verb)
        assert_refused(lambda: call(*given), "watch.results", f"{verb} // 'function'")  # noqa: B023
    assert_refused(lambda: ch.view(seen), "watch.results", "view // 'function'")
    with pytest.raises(ArgumentError, match=r"watch\.results"):
        matrices.to_html(tmp_path / "page.html", other=seen)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_computed_again_for_the_gradient_is_seen_once(use_reentrant: bool) -> None:
    x = inputs(1, 2)[0].requires_grad_()
    model = Stack()
    with watch(model) as seen:
        output = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant)
        assert isinstance(output, Tensor)
        output.sum().backward()
    assert [len(seen.calls(name)) for name in seen] == [1, 1]


def test_a_watch_that_is_entered_again_begins_anew() -> None:
    model, x = Stack(), inputs(1, 2)[0]
    watching = watch(model)
    with watching as first:
        model(x)
    with watching as second:
        model(x)
    assert first is not second
    assert [len(each.calls("first")) for each in (first, second)] == [1, 1]
    with pytest.raises(WatchError) as caught, watching:
        pass
    assert caught.value.code == "watch.not-run"
    with watching as third:
        model(x)
    assert len(third) == 2


def test_a_watch_is_entered_once_at_a_time() -> None:
    model = Stack()
    watching = watch(model)
    with watching:
        model(inputs(1, 2)[0])
        assert_refused(watching.__enter__, "watch.entered")


def test_a_watch_takes_the_calls_of_its_context_or_of_all_threads() -> None:
    model, barrier = Stack(), threading.Barrier(3)
    lengths: dict[int, list[int]] = {}

    def run(tokens: int) -> None:
        barrier.wait()
        model(inputs(1, 2, query_len=tokens, kv_len=tokens)[0])
        barrier.wait()

    def request(tokens: int) -> None:
        with watch(model) as seen:
            run(tokens)
        lengths[tokens] = [call.kv_len for call in seen.calls("first")]

    with watch(model) as own, watch(model, threads="all") as every:
        copied = partial(contextvars.copy_context().run, run)
        threads = [
            threading.Thread(target=target, args=(tokens,))
            for target, tokens in ((request, 3), (run, 5), (copied, 7))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model(inputs(1, 2, query_len=2, kv_len=2)[0])
    assert lengths == {3: [3]}
    assert [call.kv_len for call in own.calls("first")] == [7, 2]
    assert sorted(call.kv_len for call in every.calls("first")) == [2, 3, 5, 7]


def test_tasks_of_one_thread_are_apart() -> None:
    model = Stack()

    async def request(tokens: int) -> list[int]:
        with watch(model) as seen:
            await asyncio.sleep(0)  # the other one enters
            model(inputs(1, 2, query_len=tokens, kv_len=tokens)[0])
            await asyncio.sleep(0)
        return [call.kv_len for call in seen.calls("first")]

    async def both() -> list[list[int]]:
        return list(await asyncio.gather(request(3), request(7)))

    assert asyncio.run(both()) == [[3], [7]]


def test_a_watch_that_another_thread_enters_again_is_of_that_thread() -> None:
    model = Stack()
    watching = watch(model)
    with watching:
        model(inputs(1, 2, query_len=3, kv_len=3)[0])
    found: list[list[int]] = []
    entered, left = threading.Event(), threading.Event()

    def again() -> None:
        with watching as seen:
            model(inputs(1, 2, query_len=5, kv_len=5)[0])
            entered.set()
            left.wait()
        found.append([call.kv_len for call in seen.calls("first")])

    thread = threading.Thread(target=again)
    thread.start()
    entered.wait()
    model(inputs(1, 2, query_len=7, kv_len=7)[0])
    left.set()
    thread.join()
    assert found == [[5]]


def test_a_model_that_only_another_thread_runs_is_refused_by_name() -> None:
    model, x = Stack(), inputs(1, 2)[0]
    thread = threading.Thread(target=model, args=(x,))
    with pytest.raises(WatchError, match=r'threads="all"'), watch(model):
        thread.start()
    thread.join()
    wrong: Any = "main"
    values = "threads", '"own", "all"', "'main'"
    assert_refused(lambda: watch(model, threads=wrong), "threads.value", *values)


def test_inference_mode_now_and_then() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    x = torch.randn(1, 5, 8)
    with watch(layer) as seen:
        with torch.inference_mode():
            layer(x)
        with torch.no_grad():
            layer(x)
    first, second = seen.calls("")
    assert torch.equal(first.dense(), second.dense())
    value = torch.randn(5, 3, requires_grad=True)
    (first @ value).sum().backward()
    assert value.grad is not None


def three_layers() -> nn.Sequential:
    return nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2) for _ in range(3)))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("1", ("1",)),
        ("[12]", ("1", "2")),
        (["0", "2"], ("0", "2")),
        (None, ("0", "1", "2")),
        (2, ("2",)),
        (["1", 2], ("1", "2")),
    ],
)
def test_some_layers(layers: Any, expected: tuple[str, ...]) -> None:
    model = three_layers()
    with watch(model, layers=layers) as seen:
        model(torch.randn(1, 5, 8))
    assert seen.layers == expected
    assert [seen.path(int(each)) for each in expected] == list(expected)


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        (["*", "encoder.*"], "has a path like 'encoder.*'"),
        ([0, 4], "is number 4, counted from 0"),
        ([-4], "is number -4, counted from the end"),
    ],
)
def test_layers_that_are_not_there(layers: Any, what: str) -> None:
    model = three_layers()
    text = f"[watch.layers] no module of Sequential that attended {what}; these attended: '0', '1', '2'."
    with (
        pytest.raises(WatchError, match=f"^{re.escape(text)}$"),
        watch(model, layers=layers),
    ):
        model(torch.randn(1, 5, 8))


test_what_watch_refuses = refusals(
    lambda options: watch(**{"model": Stack()} | options),
    ({"model": Stack}, "watch.model", "type"),
    ({"layers": 3.5}, "layers.type", "3.5"),
    ({"layers": b"encoder"}, "layers.type", "b'encoder'"),
    ({"layers": ["encoder", None]}, "layers.type", "['encoder', None]"),
    ({"layers": []}, "layers.value", "[]"),
    ({"heads": 3}, "heads.type", "3"),
    ({"heads": []}, "heads.value", " // []"),
    ({"heads": [1, 1]}, "heads.value", " // [1, 1]"),
    (
        {"keep": "weights"},
        "keep.value",
        'keep // "matrix", "gradients", "contexts", "summary", "total" or a function',
        "'weights'",
    ),
    ({"keep": "total", "values": True}, "values.keep", "'total'"),
    ({"values": 1}, "values.type", "values // 1"),
    ({"tokens": IDS}, "tokens.keep"),
    (
        {"keep": "summary", "tokens": [1, 2]},
        "tokens.type",
        "tokens // a tensor of ids, or None // list",
    ),
    ({"keep": "summary", "tokens": torch.zeros(3)}, "tokens.type", "torch.float32"),
    (
        {"keep": "summary", "tokens": torch.zeros(1, 2, 3, dtype=torch.int64)},
        "tokens.shape",
        "(1, 2, 3)",
    ),
)


@pytest.mark.parametrize("heads", [None, [2, 3], [0, 3]])
def test_the_value_of_a_call_is_kept_where_it_is_asked_for(heads: list[int] | None) -> None:
    sizes = (4, 5, 3), (2, 7, 3), (2, 7, 6)
    query, key, value = (torch.randn(2, *each, dtype=torch.float64) for each in sizes)
    model = Stack().first
    with watch(model, heads=heads, values=True) as seen:
        context = model(query, key, value, enable_gqa=True)
    matrix = seen[0]
    assert matrix.value is not None
    assert repr(matrix).endswith(" with value")
    close(matrix @ matrix.value, context if heads is None else context[:, heads])
    value.zero_()  # what was seen stays
    assert matrix.value.abs().min() > 0
    with watch(model, heads=heads) as seen, watch(model, values=True) as other:
        model(query, key, key, enable_gqa=True)
    assert seen[0].value is None
    assert "value" not in repr(seen[0])
    assert other[0].value is not None
    assert other[0].value.equal(key)
    keep: Any = lambda path, matrix: None if matrix.value is None else matrix.value.sum()  # noqa: E731
    with watch(model, keep=keep, values=True) as sums, watch(model, keep=keep) as none:
        model(query, key, key, enable_gqa=True)
    assert sums[0] == key.sum()
    assert none[0] is None


def test_a_value_that_is_not_finite_changes_no_weight() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 3).unbind()
    model = Stack().first
    value[0, 0, 1, 2] = torch.nan
    with watch(model, values=True) as seen:
        model(query, key, value)
    assert seen[0].dense().equal(ch.AttentionMatrix(query, key).dense())
    assert seen[0].entropy().isfinite().all()
    assert seen[0].logsumexp.isfinite().all()


def test_what_a_watch_says_of_itself() -> None:
    model = three_layers()
    assert repr(watch(model)) == "watch(Sequential, keep='matrix')"
    assert repr(watch(model, layers=["0", "1*"], heads=[2], keep="summary")) == (
        "watch(Sequential, keep='summary') of '0', '1*', heads [2]"
    )


def test_a_summary_is_that_of_the_matrix() -> None:
    model = three_layers()
    x = torch.randn(2, 71, 8)
    alone = model(x)
    with watch(model) as matrices, watch(model, keep="summary") as seen:
        assert torch.equal(model(x), alone)
    assert seen.layers == ("0", "1", "2")
    for name, matrix in matrices.items():
        expected = matrix.summary(top_k=8, pool=(64, 64))
        expected = dataclasses.replace(expected, roles=seen[name].roles)
        pairs = zip(tensors_of(seen[name]), tensors_of(expected), strict=True)
        assert all(torch.equal(found, wanted) for found, wanted in pairs)
        assert seen[name].roles is not None
    assert repr(seen).count("  Summary [batch=2, num_heads=4, query_len=71, kv_len=71]") == 3


def test_a_summary_keeps_no_query_and_no_key() -> None:
    layer = ch.MultiHeadAttention(512, num_heads=2)
    watching = watch(layer, keep="summary")
    with torch.no_grad(), watching as seen:
        layer(torch.randn(1, 67, 512))
    storages = [tensor.untyped_storage() for tensor in tensors_of(seen[0])]
    held = {each.data_ptr(): each.nbytes() for each in storages}
    assert sum(held.values()) < 67 * 512 * 4


def test_a_name_that_is_not_there() -> None:
    x = inputs(1, 2)[0]
    with watch(model := Stack()) as seen:
        model(x)
    assert (seen.get("third"), seen.get("third", 3)) == (None, 3)
    assert seen.get("first") is seen[0]


def test_a_long_generation_takes_memory_that_grows_with_tokens() -> None:
    model = Language()
    with torch.no_grad(), watch(model) as seen:
        for _ in range(101):
            model(IDS[:, :1])
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for call in seen.calls("attention")
        for tensor in (call.problem.query, call.problem.key)
    }
    assert sum(storages.values()) == 2 * 101 * 2 * 6 * 4  # query and key, of two samples
