"""Bad input is refused by name, with what was expected and what came, before any computation."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.masks.spans import Extent, Spans
from tests.masks.drawn import rows

# The sizes of the rows below: batch 2, length 5, dim 8, 2 heads of 4.
QUERY, KEY, VALUE = torch.randn(3, 2, 2, 5, 4, generator=torch.Generator()).unbind()
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


class Computation(TorchDispatchMode):
    """Records every operation that makes new floating numbers, which no refusal needs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(result)):
            self.operations += [] if func.is_view else [str(func)]
        return result


def any_(value: Any) -> Any:
    """An argument that the annotations would not let through."""
    return value


def given(**changes: Any) -> dict[str, Any]:
    """Good input, with some of it changed."""
    return {"query": QUERY, "key": KEY, "value": VALUE} | changes


def all_three(change: Callable[[Tensor], object]) -> dict[str, object]:
    return {"query": change(QUERY), "key": change(KEY), "value": change(VALUE)}


# What is wrong; the input; the code; words that the message must hold: the argument, what was
# expected, what came.
Row = tuple[str, dict[str, Any], str, list[str]]

SHAPES: list[Row] = [
    ("1a query and key of different width", given(key=KEY[..., :3]), "shape.head-dim",
     ["query and key", "same head_dim", "4 and 3"]),
    ("1b key longer than value", given(key=torch.randn(2, 2, 7, 4)), "shape.kv-len",
     ["key and value", "same kv_len", "7 and 5"]),
    ("1b key shorter than value, read past its end by others",
     given(key=KEY[:, :, :3], value=torch.randn(2, 2, 8, 4)), "shape.kv-len",
     ["key and value", "same kv_len", "3 and 8"]),
    ("1c batch 3 for 2", given(key=torch.randn(3, 2, 7, 4), value=torch.randn(3, 2, 7, 4)), "shape.batch",
     ["query, key and value", "same batch", "2, 3 and 3"]),
    ("1c batch 1 for 2, which is not spread out either", given(key=KEY[:1], value=VALUE[:1]), "shape.batch",
     ["same batch", "2, 1 and 1"]),
    ("1d one dimension", all_three(lambda t: t[0, 0, 0]), "shape.dimensions",
     ["query, key and value", "2 to 4", "1, 1 and 1"]),
    ("1d five dimensions", all_three(lambda t: t[None]), "shape.dimensions",
     ["query, key and value", "2 to 4", "5, 5 and 5"]),
    ("1d the batch missing from the key", given(key=KEY[0]), "shape.dimensions",
     ["same number of dimensions", "4, 3 and 4"]),
    ("4 three heads over two", given(query=torch.randn(2, 3, 5, 4)), "shape.kv-heads",
     ["num_heads", "multiple of num_kv_heads", "3 and 2"]),
    ("4 one head over two", given(query=QUERY[:, :1]), "shape.kv-heads", ["multiple of num_kv_heads", "1 and 2"]),
    ("4 heads of key and value differ", given(value=VALUE[:, :1]), "shape.value-heads",
     ["key and value", "same num_kv_heads", "2 and 1"]),
    ("no heads at all", all_three(lambda t: t[:, :0]), "shape.kv-heads", ["both 1 or more", "0 and 0"]),
    ("no heads in the query", given(query=QUERY[:, :0]), "shape.kv-heads", ["both 1 or more", "0 and 2"]),
    ("heads without width", given(query=QUERY[..., :0], key=KEY[..., :0]), "shape.head-dim",
     ["1 or more", "0 and 0"]),
    ("(batch, len, num_heads, head_dim), of different lengths",
     {"query": QUERY.mT, "key": torch.randn(2, 3, 4, 5), "value": torch.randn(2, 3, 4, 5)}, "shape.kv-heads",
     ["2 and 3", "(batch, len, num_heads, head_dim)", "transpose(1, 2)"]),
]  # fmt: skip

TYPES: list[Row] = [
    ("6a int64", all_three(Tensor.long), "dtype.unsupported", ["must be float16", "got int64"]),
    ("bool", all_three(Tensor.bool), "dtype.unsupported", ["must be float16", "got bool"]),
    ("complex", all_three(lambda t: t.to(torch.complex64)), "dtype.unsupported",
     ["must be float16", "got complex64"]),
    ("float8", all_three(lambda t: t.to(torch.float8_e5m2)), "dtype.unsupported",
     ["must be float16", "got float8_e5m2"]),
    ("6b float32 and float64", given(key=KEY.double(), value=VALUE.double()), "dtype.mixed",
     ["query, key and value", "one dtype", "float32, float64 and float64"]),
    ("7a cpu and meta", given(key=KEY.to("meta"), value=VALUE.to("meta")), "device.mixed",
     ["query, key and value", "one device", "cpu, meta and meta"]),
    ("a list", given(query=QUERY.tolist()), "query.type", ["torch.Tensor", "got list"]),
    ("None", given(value=None), "value.type", ["torch.Tensor", "got NoneType"]),
    ("numpy", given(key=KEY.numpy()), "key.type", ["torch.Tensor", "got ndarray", "as_tensor"]),
    ("numpy, all of them", all_three(Tensor.numpy), "query.type", ["query", "got ndarray"]),
    ("sparse", all_three(Tensor.to_sparse), "query.layout", ["dense", "got", "sparse_coo"]),
    ("nested",
     all_three(lambda t: torch.nested.nested_tensor([t[0], t[1, :, :3]], layout=torch.jagged)), "query.layout",
     ["dense", "got a nested one", "padding(lengths)"]),
]  # fmt: skip

MASKS: list[Row] = [
    ("2a int64 0/1", given(mask=CAUSAL.long()), "mask.dtype", ["bool", "got torch.int64", ".bool"]),
    ("2b float 0/1, added to the scores by others", given(mask=CAUSAL.float()), "mask.dtype",
     ["bool", "got torch.float32", ".bool()", "bias="]),
    ("2c float64", given(mask=CAUSAL.double()), "mask.dtype", ["bool", "got torch.float64"]),
    ("3a 4 × 5 for 5 × 5", given(mask=CAUSAL[:4]), "mask.shape",
     ["mask has 4 × 5", "expected query_len=5 × kv_len=5"]),
    ("which keys of each row are real", given(mask=CAUSAL[:2]), "mask.shape",
     [
      "mask has 2 × 5",
       "two dimensions is (query_len, kv_len) at any batch size; which keys of each row are real is "
       "clearhead.padding(valid).",
     ]),
    ("3a 5 × 4 for 5 × 5", given(mask=CAUSAL[:, :4]), "mask.shape", ["5 × 4", "kv_len=5"]),
    ("3b one dimension", given(mask=CAUSAL[0]), "mask.dimensions", ["got (5,)", "padding(valid)"]),
    ("no dimension", given(mask=CAUSAL[0, 0]), "mask.dimensions", ["(query_len, kv_len)", "()"]),
    ("3c (batch, query_len, kv_len), read per head by others", given(mask=CAUSAL.expand(2, 5, 5)), "mask.ambiguous",
     ["(2, 5, 5)", "for each sample", "for each head", "mask[:, None]", "mask[None]"]),
    ("3e padding of shape (len, batch)", given(mask=ch.padding(torch.ones(5, 2).bool())), "mask.batch",
     ["padding(<valid 5 × 2>)", "batch of 5", "batch of 2"]),
    ("padding for other keys", given(mask=ch.padding(torch.ones(2, 4).bool())), "mask.kv-len",
     ["padding(<valid 2 × 4>)", "4 keys", "kv_len=5"]),
    ("lengths of a batch that is read as heads",
     all_three(lambda t: t[:, 0]) | {"mask": ch.padding([5, 3])}, "mask.batch",
     ["batch of 2", "batch of 1", "(num_heads, len, dim)"]),
    ("lengths beyond the keys", given(mask=ch.padding([5, 6])), "mask.length-over", ["6", "5"]),
    ("documents for other tokens", given(mask=ch.documents([0, 0, 1])), "mask.kv-len",
     ["documents([0, 0, 1])", "3 keys", "kv_len=5"]),
    ("a mask for other heads", given(mask=torch.ones(1, 3, 5, 5).bool()), "mask.heads", ["3 heads", "num_heads=2"]),
    ("7b a mask on another device, garbage elsewhere", given(mask=CAUSAL.to("meta")), "mask.device",
     ["mask", "on meta", "query on cpu"]),
    ("True", given(mask=True), "mask.type", ["a Mask, such as clearhead.causal(), or a bool tensor", "got bool"]),
    ("a name", given(mask="causal"), "mask.type", ["a Mask, such as clearhead.causal(), or a bool tensor", "got str"]),
    ("numpy", given(mask=CAUSAL.numpy()), "mask.type", ["got ndarray", "as_tensor"]),
    ("a list of masks", given(mask=[ch.causal()]), "mask.type", ["got list"]),
    ("causal, not called", given(mask=ch.causal), "mask.type", ["function causal", "causal(…)"]),
    ("a bias", given(mask=ch.alibi(2)), "mask.type", ["a Mask, such as", "got Alibi"]),
    ("sparse", given(mask=CAUSAL.to_sparse()), "mask.layout", ["dense", "sparse_coo"]),
]  # fmt: skip

ADDED: list[Row] = [
    ("True", given(bias=True), "bias.type", ["floating tensor or a Bias", "got bool"]),
    ("a number", given(bias=1), "bias.type", ["floating tensor or a Bias", "got int"]),
    ("a mask", given(bias=ch.causal()), "bias.type", ["the mask causal()", "mask="]),
    ("a bool tensor", given(bias=CAUSAL), "bias.dtype", ["floating", "torch.bool", "mask="]),
    ("an int tensor", given(bias=CAUSAL.int()), "bias.dtype", ["floating", "got torch.int32"]),
    ("complex", given(bias=CAUSAL * 1j), "bias.dtype", ["floating", "got torch.complex64"]),
    ("float64 for float32", given(bias=torch.zeros(5, 5).double()), "bias.dtype",
     ["the query's dtype, torch.float32", "got torch.float64"]),
    ("float16 for float32", given(bias=torch.zeros(5, 5).half()), "bias.dtype", ["torch.float16"]),
    ("(kv_len,)", given(bias=torch.zeros(5)), "bias.dimensions", ["(query_len, kv_len)", "(5,)"]),
    ("(batch, query_len, kv_len)", given(bias=torch.zeros(2, 5, 5)), "bias.dimensions",
     ["(2, 5, 5)", "bias[:, None]", "bias[None]"]),
    ("(len, len) of others", given(bias=torch.zeros(4, 5)), "bias.shape", ["(2, 2, 5, 5)", "(1, 1, 4, 5)"]),
    ("by distance beside queries that are packed apart",
     given(bias=ch.alibi(2), mask=ch.documents(lengths=[2, 3], queries=[4, 1])), "bias.documents",
     ["stand apart", "alibi(2)", "documents(lengths=[2, 3], queries=[4, 1])"]),
    ("another device", given(bias=torch.zeros(5, 5, device="meta")), "bias.device", ["on meta", "query on cpu"]),
    ("alibi of other heads", given(bias=ch.alibi(3)), "bias.heads", ["3 heads", "num_heads=2"]),
    ("sinks: a list", given(sinks=[0.0, 0.0]), "sinks.type", ["(num_heads,)", "got list"]),
    ("sinks: a number", given(sinks=0.0), "sinks.type", ["(num_heads,)", "got float"]),
    ("sinks: three", given(sinks=torch.zeros(3)), "sinks.shape", ["(num_heads,) = (2,)", "(3,)"]),
    ("sinks: no dimension", given(sinks=torch.zeros(())), "sinks.shape", ["(2,)", "got ()"]),
    ("sinks: per sample", given(sinks=torch.zeros(2, 2)), "sinks.shape", ["(2,)", "(2, 2)"]),
    ("sinks: int", given(sinks=torch.zeros(2).int()), "sinks.dtype", ["float32", "int32"]),
    ("sinks: float64", given(sinks=torch.zeros(2).double()), "sinks.dtype", ["torch.float64"]),
    ("sinks: meta", given(sinks=torch.zeros(2, device="meta")), "sinks.device", ["meta", "cpu"]),
]  # fmt: skip

NUMBERS: list[Row] = [
    ("11a", given(dropout=-0.1), "dropout.value", ["a probability in [0, 1)", "got -0.1"]),
    ("11b", given(dropout=1.5), "dropout.value", ["a probability in [0, 1)", "got 1.5"]),
    ("of everything", given(dropout=1), "dropout.value", ["[0, 1)", "got 1.0"]),
    ("nan", given(dropout=math.nan), "dropout.value", ["[0, 1)", "got nan"]),
    ("True", given(dropout=True), "dropout.type", ["None for no dropout", "got bool"]),
    ("a tensor", given(dropout=torch.tensor(0.1)), "dropout.type", ["got Tensor"]),
    ("nan", given(scale=math.nan), "scale.value", ["a finite number", "got nan"]),
    ("inf", given(scale=-math.inf), "scale.value", ["a finite number", "got -inf"]),
    ("beyond floats", given(scale=10**400), "scale.value", ["a finite number", "got inf"]),
    ("True", given(scale=True), "scale.type", ["a finite number", "got bool"]),
    ("a tensor", given(scale=torch.tensor(0.5)), "scale.type", ["a finite number", "Tensor"]),
    ("a name", given(scale="auto"), "scale.type", ["1/√head_dim", "got str"]),
    ("0", given(softcap=0), "softcap.value", ["above 0", "None for no cap", "got 0.0"]),
    ("-1", given(softcap=-1.0), "softcap.value", ["above 0", "None for no cap", "got -1.0"]),
    ("nan", given(softcap=math.nan), "softcap.value", ["above 0", "got nan"]),
    ("inf", given(softcap=math.inf), "softcap.value", ["finite", "got inf"]),
    ("beyond floats", given(softcap=10**400), "softcap.value", ["finite", "got inf"]),
    ("True", given(softcap=True), "softcap.type", ["finite", "got bool"]),
]  # fmt: skip

ROWS = [*SHAPES, *TYPES, *MASKS, *ADDED, *NUMBERS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[2]} {row[0]}")
def test_bad_input_is_refused(row: Row) -> None:
    _, inputs, code, words = row
    arguments = dict(inputs)
    query, key, value = (arguments.pop(name) for name in ("query", "key", "value"))
    with Computation() as computed, pytest.raises(ch.errors.ClearheadError) as caught:
        ch.attend(query, key, value, **arguments)
    assert caught.value.code == code
    lacking = [word for word in words if word not in caught.value.message]
    assert not lacking, f"{caught.value.message!r} lacks {lacking}"
    named = [name for name in inputs if inputs[name] is not given().get(name)]
    assert any(name in caught.value.message for name in named)
    assert computed.operations == []


def test_computation_is_seen() -> None:
    with Computation() as computed:
        ch.attend(QUERY, KEY, VALUE)
    assert computed.operations


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda: ch.padding(torch.ones(2)), "mask.not-whole", ["lengths", "whole", "float32"]),
        (
            lambda: ch.padding(any_([2.0, 3.0])),
            "mask.not-whole",
            ["lengths", "whole", "[2.0, 3.0]"],
        ),
        (lambda: ch.padding(CAUSAL.long()), "mask.dtype", ["bool", "int64", ".bool()"]),
        (lambda: ch.padding([-1]), "mask.negative-length", ["lengths", "0 or more", "[-1]"]),
        (lambda: ch.sliding_window(left=-1), "window.negative", ["left", "None for no", "-1"]),
        (lambda: ch.sliding_window(right=any_(1.5)), "window.type", ["right", "whole", "float"]),
        (lambda: ch.causal(offset=any_(0.5)), "mask.not-whole", ["offset", "whole", "float"]),
        (lambda: ch.documents(any_([0.5])), "mask.ids", ["ids", "whole numbers", "float32"]),
        (
            lambda: ch.causal() & any_(CAUSAL),
            "mask.type",
            ["mask", "Tensor", "clearhead.dense(tensor)"],
        ),
    ],
)
def test_a_bad_description_is_refused_when_it_is_made(
    make: Callable[[], object], code: str, words: list[str]
) -> None:
    with pytest.raises(ch.errors.ClearheadError) as caught:
        make()
    assert caught.value.code == code
    assert all(word in caught.value.message for word in words)


ANYTHING: list[object] = [
    None, True, False, 0, -1, 7, 2**70, 10**400, 0.5, math.nan, math.inf, 1j, "x", b"x", [], [1], (0.5, 0.5), {1},
    {"a": 1}, object(), int, len, np.ones((5, 5)), np.float32(0.5), Fraction(1, 3), torch.ones(()), torch.ones(2),
    torch.ones(0), torch.ones(5, 5), torch.ones(5, 5, dtype=torch.bool), torch.ones(2, 2, 5, 4, dtype=torch.int32),
    torch.ones(2, 2, 5, 4, device="meta"), torch.ones(2, 2, 5, 5, dtype=torch.bool, device="meta"),
    torch.ones(2, 2, 0, 4), torch.ones(0, 2, 5, 4), torch.ones(5, 5).to_sparse(), torch.ones(1, 1, 1, 1, 1),
    ch.causal(), ch.causal(offset=[1, 2, 3]), ch.alibi(2), ch.alibi(5),
]  # fmt: skip


@pytest.mark.parametrize(
    "argument", ["query", "key", "value", "mask", "bias", "scale", "softcap", "sinks", "dropout"]
)
def test_whatever_is_given_is_taken_or_refused_on_purpose(argument: str) -> None:
    """No AttributeError, IndexError or message from inside PyTorch."""
    for anything in ANYTHING:
        arguments: dict[str, Any] = given() | {argument: anything}
        query, key, value = (arguments.pop(name) for name in ("query", "key", "value"))
        try:
            context = ch.attend(query, key, value, **arguments)
        except ch.errors.ClearheadError:
            continue
        query_len = 0 if argument == "query" else 5
        assert context.shape in ((2, 2, 5, 4), (2, 2, query_len, 4)), f"{argument}={anything!r}"


def test_a_misspelt_keyword_is_named() -> None:
    """12"""
    misspelt: dict[str, Any] = {"maks": ch.causal()}
    with pytest.raises(TypeError, match="maks"):
        ch.attend(QUERY, KEY, VALUE, **misspelt)


def test_two_dimensions_are_one_head_of_one_sample() -> None:
    """1d"""
    one = ch.attend(QUERY[0, 0], KEY[0, 0], VALUE[0, 0], mask=CAUSAL)
    whole = ch.attend(QUERY[:1, :1], KEY[:1, :1], VALUE[:1, :1], mask=CAUSAL)
    assert one.shape == (5, 4)
    assert torch.equal(one, whole[0, 0])
    three = ch.attend(QUERY[0], KEY[0], VALUE[0], mask=CAUSAL)
    assert three.shape == (2, 5, 4)


@pytest.mark.parametrize("kernel", ["auto", "eager"])
def test_no_keys_give_zeros(kernel: str) -> None:
    """8"""
    context = ch.attend(QUERY, KEY[:, :, :0], VALUE[:, :, :0], kernel=kernel)
    assert torch.equal(context, torch.zeros(2, 2, 5, 4))


@pytest.mark.parametrize("kernel", ["auto", "eager"])
@pytest.mark.parametrize("mask", [None, ch.causal(), ~ch.full()], ids=str)
def test_empty_axes_give_empty_results(kernel: str, mask: ch.Mask | None) -> None:
    """9"""
    nobody = [each[:0] for each in (QUERY, KEY, VALUE)]
    assert ch.attend(*nobody, mask=mask, kernel=kernel).shape == (0, 2, 5, 4)
    no_query = ch.attend(QUERY[:, :, :0], KEY, VALUE, mask=mask, kernel=kernel)
    assert no_query.shape == (2, 2, 0, 4)
    no_width = ch.attend(QUERY, KEY, VALUE[..., :0], mask=mask, kernel=kernel)
    assert no_width.shape == (2, 2, 5, 0)


@pytest.mark.parametrize("kernel", ["fused", "eager"])
def test_a_nan_shows_where_it_may_be_seen_and_nowhere_else(kernel: str) -> None:
    """5"""
    key = KEY.clone()
    key[0, 0, 3, 1] = torch.nan
    context = ch.attend(QUERY, key, VALUE, mask=ch.causal(), kernel=kernel)
    expected = torch.zeros(2, 2, 5, 4, dtype=torch.bool)
    expected[0, 0, 3:] = True
    assert torch.equal(context.isnan(), expected)
    hidden = ch.attend(QUERY, key, VALUE, mask=ch.padding(3), kernel=kernel)
    assert torch.isfinite(hidden).all()


@pytest.mark.parametrize("kernel", ["fused", "eager"])
def test_causal_and_another_mask_both_apply(kernel: str) -> None:
    """10a"""
    other = rows("● · ● ● ●").expand(5, 5)
    both = ch.attend(QUERY, KEY, VALUE, mask=ch.causal() & ch.dense(other), kernel=kernel)
    by_hand = ch.attend(QUERY, KEY, VALUE, mask=CAUSAL & other, kernel=kernel)
    assert torch.equal(both, by_hand)


def test_true_is_may_attend() -> None:
    """3d"""
    keep = torch.tensor([[True, True, True, False, False]] * 2)
    context = ch.attend(QUERY, KEY, VALUE, mask=ch.padding(keep))
    assert torch.equal(context, ch.attend(QUERY, KEY, VALUE, mask=ch.padding([3, 3])))
    assert torch.isfinite(context).all()


@pytest.mark.parametrize(
    "number",
    [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)],
    ids=lambda n: type(n).__name__,
)
def test_a_number_of_any_kind_is_a_number(number: Any) -> None:
    problem = make_problem(QUERY, KEY, VALUE, scale=number, softcap=number, dropout=number)
    for found in (problem.scale, problem.softcap, problem.dropout):
        assert type(found) is float
        assert found == 0.5


def test_what_changes_nothing_is_left_out() -> None:
    problem = make_problem(QUERY, KEY, VALUE, mask=ch.full(), dropout=0.0)
    assert problem.mask is None
    assert problem.dropout is None
    assert problem.scale == 0.5
    assert problem.visible() is None
    assert problem.bias_block() is None


def test_tensors_are_taken_as_they_are() -> None:
    problem = make_problem(QUERY, KEY, VALUE)
    assert problem.query is QUERY
    assert problem.key is KEY
    assert problem.value is VALUE


def test_the_sizes_by_name() -> None:
    problem = make_problem(
        torch.zeros(2, 6, 3, 8), torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 5, 7)
    )
    assert (problem.batch, problem.num_heads, problem.num_kv_heads) == (2, 6, 3)
    assert (problem.query_len, problem.kv_len) == (3, 5)
    assert problem.device == torch.device("cpu")


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_a_result_gets_the_dimensions_of_the_query(dims: int) -> None:
    inputs = [torch.zeros(2, 2, 5, 4)[(0,) * (4 - dims)] for _ in range(3)]
    problem = make_problem(*inputs)
    assert problem.query.ndim == problem.key.ndim == problem.value.ndim == 4
    full = torch.zeros(*problem.query.shape[:3], 7)
    assert problem.restore(full).shape == (*inputs[0].shape[:-1], 7)


def test_rectangles_of_mask_and_bias() -> None:
    mask, bias = torch.rand(2, 1, 5, 5) > 0.5, torch.randn(1, 2, 5, 5)
    problem = make_problem(QUERY, KEY, VALUE, mask=mask, bias=bias)
    for whole, part in ((mask, problem.visible), (bias, problem.bias_block)):
        for queries, keys in ((None, None), (slice(1, 3), None), (slice(0, 5), slice(2, 4))):
            found = part(queries, keys)
            assert found is not None
            expected = whole[:, :, queries or slice(None), keys or slice(None)]
            assert torch.equal(found, expected)


def test_the_description_names_everything_that_was_asked_for() -> None:
    problem = make_problem(
        QUERY,
        KEY,
        VALUE,
        mask=ch.causal(),
        bias=torch.zeros(5, 5),
        softcap=30,
        sinks=torch.zeros(2),
        dropout=0.1,
    )
    assert problem.describe() == (
        "query  [batch=2, num_heads=2, query_len=5, head_dim=4] float32 cpu\n"
        "key    [batch=2, num_kv_heads=2, kv_len=5, head_dim=4] float32 cpu\n"
        "value  [batch=2, num_kv_heads=2, kv_len=5, value_head_dim=4] float32 cpu\n"
        "mask=causal(), bias=<1 × 1 × 5 × 5>, scale=0.5, softcap=30, sinks, dropout=0.1"
    )


def test_autocast_is_what_pytorch_makes_of_it() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert make_problem(QUERY, KEY, VALUE).query.dtype == torch.bfloat16
        assert make_problem(QUERY.half(), KEY.half(), VALUE.half()).key.dtype == torch.bfloat16
        assert (
            make_problem(QUERY.double(), KEY.double(), VALUE.double()).value.dtype == torch.float64
        )
        with pytest.raises(ch.errors.DtypeError, match="got int64"):
            make_problem(QUERY.long(), KEY.long(), VALUE.long())


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.padding([3, 5])], ids=str)
def test_shapes_can_be_worked_out_without_numbers(mask: ch.Mask | None) -> None:
    meta = [each.to("meta") for each in (QUERY, KEY, VALUE)]
    context = ch.attend(*meta, mask=mask)
    assert (context.shape, context.device.type) == ((2, 2, 5, 4), "meta")


class CountedMask(ch.Mask):
    """A causal mask that counts how often its spans are asked for."""

    def __init__(self) -> None:
        self.times = 0

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return ch.causal().visible(query_index, key_index, extent)

    def spans(self, extent: Extent) -> Spans | None:
        self.times += 1
        return ch.causal().spans(extent)

    def describe(self) -> str:
        return "counted()"


@pytest.mark.parametrize("tokens", [200, 1024])
def test_spans_are_computed_once_a_call(tokens: int) -> None:
    """With gradients too, where a kernel that defers reads the mask before the one that runs."""
    mask = CountedMask()
    query = torch.randn(1, 2, tokens, 8, requires_grad=True)
    ch.attend(query, query, query, mask=mask).sum().backward()
    assert mask.times == 1


def test_a_changed_problem_keeps_the_spans_where_they_are_the_same() -> None:
    mask = CountedMask()
    problem = make_problem(*torch.randn(3, 1, 2, 7, 8).unbind(), mask=mask)
    spans = problem.spans
    assert problem.with_value(problem.key).spans is spans
    assert problem.replace(dropout=0.5, query=problem.query * 2).spans is spans
    assert mask.times == 1
    shorter = problem.replace(key=problem.key[:, :, :5], value=problem.value[:, :, :5])
    assert shorter.spans is not None
    assert int(shorter.spans.stop.max()) == 5
    assert problem.replace(mask=None).spans is None


def test_another_value_is_not_known_to_be_finite() -> None:
    problem = make_problem(*torch.randn(3, 1, 2, 7, 8).unbind()).replace(keys_finite=True)
    other = problem.with_value(problem.value * 2)
    assert (problem.keys_finite, other.keys_finite) == (True, False)
    assert other.query is problem.query
