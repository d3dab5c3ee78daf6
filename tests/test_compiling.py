"""Under PyTorch's transformations: the compiler, vmap, functional gradients.

There a kernel cannot look at the numbers, and goes other ways. These tests are apart from those of
the kernels, which run with the shapes checked as well: a checked function cannot be compiled.
"""

import importlib
import sys
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import clearhead as ch
from tests.attention.kernels.definition import draw, outcome
from tests.layers.test_parts import DIM, EMBED, HEADS, PARTS

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": ch.causal()},
    "causal and padding": {"mask": ch.causal() & ch.padding([37, 9])},
    "window": {"mask": ch.sliding_window(left=3, right=1)},
    "alibi": {"mask": ch.causal(), "bias": ch.alibi(4)},
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kernel", ["auto", "eager"])
def test_vmap_and_functional_gradients(kernel: str, name: str) -> None:
    tensors = {name: torch.stack([t, -t, 2 * t]) for name, t in draw(2, 4, 2, 37).items()}

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, **OPTIONS[name], kernel=kernel)

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attended(query, key, value).square().sum()

    each = [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]
    expected = torch.stack([attended(**given) for given in each])
    torch.testing.assert_close(torch.vmap(attended)(*tensors.values()), expected)
    gradient = torch.vmap(torch.func.grad(loss))(*tensors.values())
    for index, one in enumerate(each):
        leaf = one["query"].clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf, one["key"], one["value"]), leaf)
        torch.testing.assert_close(gradient[index], expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_hidden_from_vmap_and_from_the_compiler() -> None:
    """There nothing can be looked at, and the kernel goes its other way."""
    mask = ch.causal() & ch.padding([7, 3])
    tensors = draw(2, 2, 2, 7, 7, 4, 4)
    tensors["key"][:, :, 5] = torch.nan
    tensors["value"][1, :, 3:] = torch.nan

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ch.attend(query, key, value, mask=mask, kernel="fused")

    expected = ch.attend(**tensors, mask=mask, kernel="eager")
    assert expected.isnan().any()
    assert expected.isfinite().any()
    stacked = [tensor[None] for tensor in tensors.values()]
    actual = torch.vmap(attended)(*stacked)[0]
    torch.testing.assert_close(actual, expected, equal_nan=True)
    torch._dynamo.reset()
    compiled = torch.compile(attended, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**tensors), expected, equal_nan=True)


class Each(nn.ModuleList):
    """The outputs of several layers: compiling takes long for each graph, and less for what is in it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self])


def test_layers_as_one_graph() -> None:
    layers = Each(
        ch.MultiHeadAttention(8, num_heads=4, num_kv_heads=2, mask=mask)
        for mask in (None, ch.causal(), ch.padding([5, 2]) & ch.causal())
    )
    x = torch.randn(2, 5, 8)
    grad = torch.randn(3, 2, 5, 8)
    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    expected = outcome(layers, {"x": x}, grad)
    for of, tensor in outcome(compiled, {"x": x}, grad).items():
        torch.testing.assert_close(tensor, expected[of], msg=lambda text, of=of: f"{of}: {text}")


OF_ANY_LENGTH: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": ch.causal()},
    "window": {"mask": ch.causal() & ch.sliding_window(left=3), "parts": [ch.layers.Rotary(4)]},
    "prefix, softcap": {"mask": ch.causal() | ch.prefix(2), "parts": [ch.layers.Softcap(3.0)]},
    "relative": {"mask": ch.causal(), "parts": [ch.layers.RelativeBias(2)]},
    "alibi, sinks": {"parts": [ch.layers.ScoreBias(ch.alibi(2)), ch.layers.Sinks(2)]},
    "relative, sinks": {"parts": [ch.layers.RelativeBias(2), ch.layers.Sinks(2)]},
}
# Without gradients another kernel runs a window, and another way of the kernel runs sinks.
WITH_GRADIENTS = [(name, True) for name in OF_ANY_LENGTH]
WITH_GRADIENTS += [("window", False), ("alibi, sinks", False)]
# Compiling takes seconds: each is compiled with padding, or exported with it, or compiled without, and
# nothing alone that is compiled with something else.
FEW_GRAPHS = [
    ("causal", True, False),
    ("prefix, softcap", True, False),
    ("relative", True, False),
    ("alibi, sinks", False, False),
    ("window", False, True),
    ("alibi, sinks", True, True),
]
EXPORTED = [("window", True), ("relative", False)]


class Padded(nn.Module):
    """A layer whose padding is given by place."""

    def __init__(self, layer: ch.MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.layer(x, valid=valid)


def padded(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """A batch with padding on the left of its rows, and in the midst of the last one."""
    valid = torch.arange(tokens) >= torch.randint(0, tokens, (batch, 1))
    valid[-1] = torch.arange(tokens) % 3 != 1
    return torch.randn(batch, tokens, 8), valid


SIZES = ((3, 5), (2, 11), (5, 3), (7, 13))


# The compiler makes an instance of an autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(("name", "with_gradients", "with_padding"), FEW_GRAPHS)
def test_any_batch_and_length_are_few_graphs(
    name: str, with_gradients: bool, with_padding: bool
) -> None:
    layer = Padded(ch.MultiHeadAttention(8, num_heads=2, **OF_ANY_LENGTH[name]))
    counter = CompileCounter()
    torch._dynamo.reset()
    # One is compiled for the first sizes as well, as any is for a user; of the others that takes seconds more.
    own = name == "causal"
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=None if own else True)
    with torch.set_grad_enabled(with_gradients):
        for batch, tokens in SIZES:
            given = padded(batch, tokens)[: 1 + with_padding]
            torch.testing.assert_close(compiled(*given), layer(*given))
    # One for the first sizes, and at most two for all others.
    assert counter.frame_count <= (1 if with_padding else 2) + own


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(("name", "with_gradients"), EXPORTED)
def test_padding_of_any_batch_and_length_is_exported(name: str, with_gradients: bool) -> None:
    layer = Padded(ch.MultiHeadAttention(8, num_heads=2, **OF_ANY_LENGTH[name]))
    size = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2)}
    with torch.set_grad_enabled(with_gradients):
        dynamic = {"x": size, "valid": size}
        exported = torch.export.export(layer, padded(2, 5), dynamic_shapes=dynamic).module()
        for batch, tokens in SIZES:
            x, valid = padded(batch, tokens)
            torch.testing.assert_close(exported(x, valid), layer(x, valid))


def test_symbolic_sizes_and_a_symbolic_scale_are_one_graph() -> None:
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(ch.attend, fullgraph=True, dynamic=True, backend=counter)
    # The first scale is a constant of its graph, another one is not.
    for scale, length, graphs in ((0.1, 5, 1), (0.1, 7, 1), (0.2, 7, 2)):
        query, key, value = torch.randn(3, 2, 4, length, 8).unbind()
        expected = ch.attend(query, key, value, scale=scale)
        torch.testing.assert_close(compiled(query, key, value, scale=scale), expected)
        assert counter.frame_count == graphs


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "with_gradients"), WITH_GRADIENTS)
def test_a_traced_layer_fits_any_batch_and_any_length(name: str, with_gradients: bool) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2, **OF_ANY_LENGTH[name])
    with torch.set_grad_enabled(with_gradients):
        traced: Any = torch.jit.trace(layer, (torch.randn(2, 5, 8),))
        for batch, tokens in SIZES:
            x = torch.randn(batch, tokens, 8)
            torch.testing.assert_close(traced(x), layer(x))
    # What is trained gets its gradient.
    if with_gradients:
        x = torch.randn(3, 7, 8)
        found, expected = (
            torch.autograd.grad(run(x).square().sum(), list(layer.parameters()))
            for run in (traced, layer)
        )
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # What was finite while tracing was not recorded as finite for ever.
    if name == "causal":
        x = torch.randn(1, 5, 8)
        x[:, 3] = torch.nan
        torch.testing.assert_close(traced(x), layer(x), equal_nan=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_sinks_and_a_trained_bias_under_functional_gradients() -> None:
    tensors = draw(2, 4, 2, 7)
    options = {"sinks": torch.randn(4), "bias": torch.randn(1, 4, 7, 7)}
    for name, numbers in options.items():

        def loss(numbers: Tensor, query: Tensor, name: str = name) -> Tensor:
            given: dict[str, Any] = {**tensors, "query": query, name: numbers}
            return ch.attend(**given, mask=ch.causal()).square().sum()

        own, query = (each.clone().requires_grad_() for each in (numbers, tensors["query"]))
        expected = torch.autograd.grad(loss(own, query), (own, query))
        found = torch.func.grad(loss, argnums=(0, 1))(numbers, tensors["query"])
        torch.testing.assert_close(found, expected)
        each = [torch.stack([tensor, 2 * tensor]) for tensor in (numbers, tensors["query"])]
        mapped = torch.vmap(loss)(each[0], each[1])
        torch.testing.assert_close(mapped[1], loss(each[0][1], each[1][1]))


FAKE: dict[str, Any] = {
    "none": dict,
    "window": lambda: {"mask": ch.causal() & ch.sliding_window(left=2), "bias": ch.alibi(4)},
    "lengths": lambda: {"mask": ch.padding([5, 3]), "bias": ch.relative(torch.randn(4, 5))},
    "valid": lambda: {"mask": ch.padding(torch.ones(2, 5).bool()), "bias": torch.randn(5, 5)},
    "documents": lambda: {"mask": ch.documents([0, 0, 1, 1, 1]), "bias": ch.alibi(4)},
    "documents apart": lambda: {
        "mask": ch.documents(lengths=[2, 3], queries=[4, 1], mask=ch.causal()),
    },
}


@pytest.mark.parametrize("name", FAKE)
def test_tensors_without_numbers_have_their_shapes_computed(name: str) -> None:
    """As those do that estimate the memory of a model."""
    with FakeTensorMode():
        query, key, value = torch.randn(3, 2, 4, 5, 8).requires_grad_().unbind()
        context = ch.attend(query, key, value, **FAKE[name]())
        assert context.shape == (2, 4, 5, 8)
        context.sum().backward()


def test_lengths_without_numbers_are_refused() -> None:
    for name in ("lengths", "offsets"):
        with FakeTensorMode():
            options: dict[str, Any] = {name: torch.tensor([0, 2, 5])}
            with pytest.raises(ch.errors.DeviceError, match=r"FakeTensorMode") as refused:
                ch.documents(**options)
        assert refused.value.code == f"{name}.meta"


@pytest.mark.parametrize("name", ["causal", "window", "prefix, softcap"])
def test_layers_and_caches_without_numbers_have_their_shapes_computed(name: str) -> None:
    with FakeTensorMode(), torch.no_grad():
        layer = ch.MultiHeadAttention(8, num_heads=2, **OF_ANY_LENGTH[name])
        x = torch.randn(2, 5, 8)
        for cache in (
            ch.layers.GrowingCache(),
            ch.layers.StaticCache(9),
            ch.layers.SlidingCache(4),
        ):
            layer(x, cache=cache)
            assert layer(x[:, :1], cache=cache).shape == (2, 1, 8)


def test_a_layer_made_on_the_meta_device_is_filled_later() -> None:
    def make() -> ch.MultiHeadAttention:
        parts = [ch.layers.ScoreBias(ch.alibi(4)), ch.layers.Rotary(8)]
        return ch.MultiHeadAttention(32, num_heads=4, mask=ch.padding([6, 4]), parts=parts)

    expected = make()
    with torch.device("meta"):
        layer = make()
    layer.load_state_dict(expected.state_dict(), assign=True)
    x = torch.randn(2, 6, 32)
    assert torch.equal(layer(x), expected(x))


def test_another_default_device_than_that_of_the_tensors() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    valid = torch.tensor([[False, True, True, True, True], [True] * 5])
    with torch.device("meta"):
        assert ch.attend(query, key, value, dropout=0.5).device.type == "cpu"
        for cache in (ch.layers.GrowingCache(), ch.layers.SlidingCache(9)):
            cache.append(key, value, valid=valid)
            cache.reorder([1, 0])
            assert cache.append(key, value)[0].device.type == "cpu"


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("before", [False, True], ids=["compiled inside", "compiled before"])
def test_a_compiled_model_runs_as_if_nobody_watched(before: bool) -> None:
    model = nn.TransformerEncoderLayer(8, nhead=2, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    expected = model(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    if before:
        assert torch.equal(compiled(x), expected)
    output = None
    with (
        pytest.raises(ch.errors.WatchError, match=r"torch\.compile has compiled is not seen"),
        ch.watch(model),
    ):
        output = compiled(x)
    assert output is not None
    assert torch.equal(output, expected)
    assert torch.equal(compiled(x), expected)


# The compiler makes an instance of an autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_layers_with_parts() -> None:
    names = "norm", "sinks", "gate of each head", "all"
    layers = Each(
        ch.MultiHeadAttention(EMBED, num_heads=HEADS, head_dim=DIM, parts=PARTS[name]())
        for name in names
    )
    torch._dynamo.reset()
    compiled = torch.compile(layers, backend="eager", fullgraph=True)
    x = torch.randn(2, 7, EMBED)
    for name, found, expected in zip(names, compiled(x), layers(x), strict=True):
        torch.testing.assert_close(found, expected, msg=lambda text, n=name: f"{n}: {text}")


@torch.no_grad()
def test_steps_with_a_static_cache_are_one_graph_for_any_length() -> None:
    parts = [ch.layers.Rotary(8)]
    layer = ch.MultiHeadAttention(16, num_heads=2, mask=ch.causal(), parts=parts).eval()
    x, counter, cache = torch.randn(1, 12, 16), CompileCounter(), ch.layers.StaticCache(16)
    torch._dynamo.reset()
    step = torch.compile(lambda x, cache: layer(x, cache=cache), fullgraph=True, backend=counter)
    steps = [layer(x[:, :4], cache=cache)]
    steps += [step(token, cache) for token in x[:, 4:].split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    # One for the first length, and one for all others.
    assert counter.frame_count <= 2


STEPS: dict[str, Any] = {
    "plain": lambda: ch.MultiHeadAttention(16, num_heads=2, mask=ch.causal()),
    "window, rotary": lambda: ch.MultiHeadAttention(
        16,
        num_heads=2,
        num_kv_heads=1,
        mask=ch.causal() & ch.sliding_window(left=20),
        parts=[ch.layers.Rotary(8)],
    ),
    "latents": lambda: ch.layers.LatentAttention(
        16, num_heads=2, head_dim=8, rotary_dim=4, latent_dim=6, mask=ch.causal(),
        parts=[ch.layers.Rotary(4)],
    ),
}  # fmt: skip


# Without padding the others are exported, and compiled with another cache.
@pytest.mark.parametrize(
    ("name", "padded"), [("plain", False), ("window, rotary", True), ("latents", True)]
)
@torch.no_grad()
def test_64_steps_with_a_fixed_cache_are_one_graph(name: str, padded: bool) -> None:
    layer, x = STEPS[name]().eval(), torch.randn(2, 70, 16)
    valid = torch.arange(6) >= torch.tensor([[2], [0]]) if padded else None
    counter, cache = CompileCounter(), ch.layers.FixedCache(80)
    torch._dynamo.reset()
    step = torch.compile(lambda x, cache: layer(x, cache=cache), fullgraph=True, backend=counter)
    steps = [layer(x[:, :6], cache=cache, valid=valid)]
    steps += [step(token, cache) for token in x[:, 6:].split(1, dim=1)]
    plain = ch.layers.GrowingCache()
    expected = [layer(x[:, :6], cache=plain, valid=valid), layer(x[:, 6:], cache=plain)]
    torch.testing.assert_close(torch.cat(steps, dim=1), torch.cat(expected, dim=1))
    assert counter.frame_count == 1
    assert len(cache) == 70


class Step(nn.Module):
    """A step whose cache goes in and comes out, as an exported program has it."""

    def __init__(self, layer: ch.MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        cache = ch.layers.FixedCache.of(*state)
        output = self.layer(x, cache=cache)
        return (output, *cache.state())


@torch.no_grad()
def test_an_exported_step_runs_64_times() -> None:
    layer, x = STEPS["window, rotary"]().eval(), torch.randn(2, 70, 16)
    cache = ch.layers.FixedCache(80)
    steps = [layer(x[:, :6], cache=cache)]
    state = tuple(each.clone() for each in cache.state())
    step: Any = torch.export.export(Step(layer), (x[:, 6:7], *state)).module()
    for token in x[:, 6:].split(1, dim=1):
        output, *state = step(token, *state)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))


class Frozen(nn.Module):
    """A step that holds its cache, which an exported program would not carry on."""

    def __init__(self, layer: ch.MultiHeadAttention, cache: ch.layers.Cache) -> None:
        super().__init__()
        self.layer, self.cache = layer, cache

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, cache=self.cache)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "cache", [ch.layers.GrowingCache(), ch.layers.FixedCache(9), ch.layers.SlidingCache(9)]
)
@torch.no_grad()
def test_an_exported_step_that_would_stand_still_is_refused(cache: ch.layers.Cache) -> None:
    layer, x = STEPS["plain"]().eval(), torch.randn(2, 3, 16)
    step = Frozen(layer, cache)
    with pytest.raises(ch.errors.UnsupportedError) as raised:
        torch.export.export(step, (x,), strict=False)
    assert str(raised.value) == (
        "[cache.export] an exported call would hold this cache as it is now, and not go on. Give "
        "the tensors of a FixedCache to the call: FixedCache.of(keys, values, length)."
    )
    with pytest.raises(ch.errors.UnsupportedError, match=r"cache\.export"):
        torch.jit.trace(step, (x,), check_trace=False)


FIRST_USE = """
import torch
import clearhead as ch

@torch.compile(fullgraph=True, backend="eager")
def attended(x):
    return ch.attend(x, x, x, mask=ch.causal())

x = torch.randn(1, 2, 7, 8)
torch.testing.assert_close(attended(x), ch.attend(x, x, x, mask=ch.causal()))
"""


def test_a_name_may_be_used_first_inside_a_compiled_function() -> None:
    """`ch.attend` is imported when it is first used, which is then while PyTorch traces."""
    torch._dynamo.reset()
    names: dict[str, Any] = {}
    # As in a process that has imported nothing of it yet, which takes seconds to start. The compiler keeps what it
    # has imported.
    kept = "torch._dynamo.symbolic_convert._import_module"
    with mock.patch.dict(sys.modules), mock.patch(kept, importlib.import_module):
        for name in [name for name in sys.modules if name.partition(".")[0] == "clearhead"]:
            del sys.modules[name]
        exec(FIRST_USE, names)
    assert names["ch"] is not ch
