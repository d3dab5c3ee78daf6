"""Everything that needs a device: kernels against the definition, nothing that waits, graphs.

`make gpu` runs it. TEST_DEVICE=cpu runs what has a meaning there, which shows that the tests themselves do.
"""

import functools
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.kernels import flex
from clearhead.testing import conformance
from clearhead.testing.suite import ConformanceCase
from tests.attention.kernels.definition import Tensors, draw
from tests.attention.kernels.test_agreement import MASKS
from tests.tolerances import assert_no_worse

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cuda"))
ON_CUDA = DEVICE.type == "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        ON_CUDA and not torch.cuda.is_available(), reason="no CUDA device: make gpu"
    ),
]
only_cuda = pytest.mark.skipif(not ON_CUDA, reason="only a CUDA device has it")


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """`attend` as the suite calls it."""
    masks = []
    if options.pop("causal", False):
        masks.append(ch.causal())
    if (window := options.pop("window", None)) is not None:
        masks.append(ch.sliding_window(left=window[0], right=window[1]))
    if (mask := options.pop("mask", None)) is not None:
        masks.append(ch.dense(mask))
    both = functools.reduce(operator.and_, masks) if masks else None
    return ch.attend(query, key, value, mask=both, **options)


FEATURES = {
    *("mask", "head_mask", "padding", "causal", "window", "grouped", "value_width", "scale"),
    *("softcap", "bias", "sinks", "empty_rows", "nan_behind_mask", "gradients", "bias_gradients"),
}


@pytest.mark.parametrize(
    "case",
    conformance(
        attention,
        features=FEATURES,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        device=DEVICE,
    )
    if not ON_CUDA or torch.cuda.is_available()
    else [],
    ids=str,
)
def test_attend_conforms(case: ConformanceCase) -> None:
    case.run()


@contextmanager
def nothing_waits() -> Iterator[None]:
    """On a GPU, an operation for which the host would wait is an error."""
    if not ON_CUDA:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def drawn(tokens: int = 300, heads: int = 4, width: int = 64) -> list[Tensor]:
    shape = (1, heads, tokens, width)
    return [torch.randn(shape).to(DEVICE, torch.bfloat16) for _ in range(3)]


def test_causal_attention_waits_for_nothing() -> None:
    tensors = drawn()
    ch.attend(*tensors, mask=ch.causal())
    with nothing_waits():
        ch.attend(*tensors, mask=ch.causal())
        ch.attend(*tensors)


def test_a_visible_nan_shows_and_a_hidden_one_stays_behind_a_window() -> None:
    """A NaN in the value of token 200 reaches its own lane alone. Plain causal is the kernel as it is."""
    query, key, value = drawn()
    value[0, 1, 200, 3] = torch.nan
    key[0, 2, 250] = torch.inf
    expected = torch.zeros_like(value, dtype=torch.bool)
    expected[0, 1, 200:, 3] = True
    expected[0, 2, 250:] = True
    bare = ch.attend(query, key, value, mask=ch.causal()).isnan()
    assert bare[expected].all()
    assert not bare[:, [0, 3]].any()
    window = ch.causal() & ch.sliding_window(left=120)
    assert torch.equal(ch.attend(query, key, value, mask=window).isnan(), expected)


def test_a_sweep_reads_the_device_before_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = drawn()
    from clearhead.matrix import sweep

    matrix = ch.AttentionMatrix(query, key, mask=ch.causal() & ch.sliding_window(left=40))
    expected = matrix.summary(value=value, top_k=3)
    ordinary = sweep._is_ordinary(matrix.problem)
    monkeypatch.setattr(sweep, "_is_ordinary", lambda problem: ordinary)
    monkeypatch.setattr(sweep, "DEVICE_BUFFER", 1 << 14)
    with nothing_waits():
        found = matrix.summary(top_k=3)
    for name in ("entropy", "received", "distance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


FLEX: dict[str, dict[str, Any]] = {
    "causal": {"mask": ch.causal()},
    "a window": {"mask": MASKS["window, itself"]},
    "softcap": {"mask": ch.causal(), "softcap": 5.0},
    "alibi": {"mask": ch.causal(), "bias": ch.alibi(6)},
    "sinks": {"mask": ch.causal(), "sinks": torch.linspace(-1, 1, 6)},
}


def placed(given: Tensors, where: torch.device | torch.dtype) -> Tensors:
    """The tensors among these on a device, or in a dtype."""
    return {
        name: each.to(where) if isinstance(each, Tensor) else each for name, each in given.items()
    }


@only_cuda
@pytest.mark.parametrize("name", FLEX)
def test_flex_compiled(name: str) -> None:
    tensors = draw(num_heads=6, query_len=300, head_dim=64)
    options = FLEX[name]
    given, there = placed(tensors, DEVICE), placed(options, DEVICE)
    found = ch.attend(**given, **there, kernel=flex.NAME)
    exact, wide = placed(tensors, torch.float64), placed(options, torch.float64)
    assert_no_worse(
        found.cpu(),
        ch.attend(**exact, **wide, kernel="eager"),
        ch.attend(**tensors, **options, kernel="eager"),
    )


PIECES: dict[str, ch.Mask] = {
    "a window": ch.causal() & ch.sliding_window(left=70),
    "documents": ch.causal() & ch.documents(lengths=[256] * 4),
    "other documents": ch.documents(lengths=[100, 700, 224]),
    "padding": ch.causal() & ch.padding([1000]),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_a_mask(name: str) -> None:
    """In pieces, forward and backward, and without a wait once its kernels have been loaded."""
    tensors = draw(1, 6, 2, query_len=1024, head_dim=64)
    exact, given = placed(tensors, torch.float64), placed(tensors, DEVICE)
    results: list[list[Tensor]] = []
    for some, kernel in ((given, "fused"), (exact, "eager"), (tensors, "eager")):
        leaves = {each: tensor.requires_grad_() for each, tensor in some.items()}
        context = ch.attend(**leaves, mask=PIECES[name], kernel=kernel)
        results.append([context, *torch.autograd.grad(context.sum(), [*leaves.values()])])
    for found, truth, plain in zip(*results, strict=True):
        # Ten times, as the suite allows for gradients.
        assert_no_worse(found.cpu(), truth, plain, factor=10.0)
    with torch.no_grad(), nothing_waits():
        ch.attend(**given, mask=PIECES[name], kernel="fused")


def _layer() -> Callable[[], Tensor]:
    layer = (
        ch.MultiHeadAttention(64, num_heads=4, mask=ch.causal()).to(DEVICE, torch.bfloat16).eval()
    )
    x = torch.randn(1, 100, 64).to(DEVICE, torch.bfloat16)
    return lambda: layer(x)


def _causal() -> Callable[[], Tensor]:
    tensors = drawn()
    return lambda: ch.attend(*tensors, mask=ch.causal())


def _window() -> Callable[[], Tensor]:
    tensors = drawn()
    mask = ch.causal() & ch.sliding_window(left=40)
    return lambda: ch.attend(*tensors, mask=mask)


def _step() -> Callable[[], Tensor]:
    """One token behind 99 others, always the same one."""
    layer = (
        ch.MultiHeadAttention(64, num_heads=4, mask=ch.causal()).to(DEVICE, torch.bfloat16).eval()
    )
    length = torch.tensor(99, device=DEVICE)
    keys, values = torch.randn(2, 1, 4, 128, 16).to(DEVICE, torch.bfloat16).unbind()
    cache = ch.layers.FixedCache.of(keys, values, length)
    token = torch.randn(1, 1, 64).to(DEVICE, torch.bfloat16)

    def step() -> Tensor:
        length.fill_(99)
        return layer(token, cache=cache)

    return step


GRAPHS = {"causal": _causal, "layer": _layer, "window": _window, "step": _step}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_captured_waits_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.layers.caches import fixed

    call = GRAPHS[name]()
    with torch.no_grad():
        expected = call()
        monkeypatch.setattr(fixed, "is_capturing", lambda tensor: True)
        with nothing_waits():
            found = call()
    torch.testing.assert_close(found, expected)


@only_cuda
@pytest.mark.parametrize("make", [*GRAPHS.values()], ids=[*GRAPHS])
def test_captured_as_a_graph(make: Callable[[], Callable[[], Tensor]]) -> None:
    call = make()
    with torch.no_grad():
        expected = call()
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            call()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()
        graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected)
