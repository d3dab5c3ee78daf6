import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.biases import SumOfBiases, as_bias
from clearhead.attention.problem import make_problem
from clearhead.masks.spans import Extent

CPU = torch.device("cpu")

QUERIES, KEYS = 3, 5
EXTENT = Extent(2, 4, QUERIES, KEYS, torch.device("cpu"))


class First(ch.Bias):
    """A bias of one's own, by the two methods that make one: a bonus for the first key."""

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        return (key_index == 0).float()

    def describe(self) -> str:
        return "first"


SHAPES = [
    (3, 5),
    (1, 5),
    (3, 1),
    (1, 1),
    (2, 4, 3, 5),
    (1, 4, 3, 5),
    (2, 1, 3, 5),
    (1, 1, 1, 5),
    (2, 4, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rectangle_of_a_tensor(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    part = as_bias(tensor).block(slice(1, 3), slice(2, 4), EXTENT)
    expected = tensor.expand(2, 4, 3, 5)[:, :, 1:3, 2:4]
    assert part.ndim == 4
    assert torch.equal(part.expand(expected.shape), expected)
    assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_a_bias_of_ones_own() -> None:
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    tensor = torch.zeros(3, 5)
    tensor[:, 0] = 1
    for kernel in ("eager", "fused"):
        found = ch.attend(query, key, value, bias=First(), kernel=kernel)
        assert torch.equal(found, ch.attend(query, key, value, bias=tensor, kernel=kernel))
    assert "bias=first" in make_problem(query, key, value, bias=First()).describe()


@pytest.mark.parametrize(
    "bias",
    [
        *(as_bias(torch.randn(shape)) for shape in SHAPES),
        ch.alibi(4),
        ch.alibi(slopes=torch.rand(4)),
        First(),
    ],
    ids=lambda bias: bias.describe(),
)
def test_the_bias_of_pairs_is_that_of_the_whole(bias: ch.Bias) -> None:
    whole = bias.to_dense(QUERIES, KEYS).expand(2, 4, QUERIES, KEYS)
    queries, keys = torch.tensor([0, 2, 2, 1]), torch.tensor([4, 0, 0, 3])
    found = bias.at(queries.view(1, 1, 1, -1), keys.view(1, 1, 1, -1), EXTENT)
    assert found.ndim == 4
    assert torch.equal(found.expand(2, 4, 1, 4)[:, :, 0], whole[:, :, queries, keys])
    # Other pairs in each sample, and one key for all.
    of_sample = torch.tensor([[0, 2, 1], [1, 1, 2]])
    key = torch.full((1, 1, 1, 1), 3)
    found = bias.at(of_sample.view(2, 1, 1, -1), key, EXTENT).expand(2, 4, 1, 3)
    for sample, row in enumerate(of_sample):
        assert torch.equal(found[sample, :, 0], whole[sample, :, row, 3])
    # A rectangle.
    found = bias.at(queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1), EXTENT)
    assert torch.equal(found.expand(2, 4, 4, 4), whole[:, :, queries[:, None], keys])
    nothing = torch.zeros(1, 1, 1, 0, dtype=torch.int64)
    assert bias.at(nothing, nothing, EXTENT).shape[-1] == 0


@pytest.mark.parametrize("kernel", ["eager", "fused", "blockwise"])
@pytest.mark.parametrize("own", [False, True])
def test_slopes_have_the_precision_of_the_scores(kernel: str, own: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 5, 61, 4, dtype=torch.float64).unbind()
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1], dtype=torch.float64)
    if own:
        slopes = torch.rand(5, dtype=torch.float64)
    distance = (torch.arange(61)[:, None] - torch.arange(61)).abs().double()
    expected = ch.attend(
        query, key, value, bias=(-slopes[:, None, None] * distance)[None], kernel="eager"
    )
    bias = ch.alibi(slopes=slopes) if own else ch.alibi(5)
    found = ch.attend(query, key, value, bias=bias, kernel=kernel)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    single = ch.attend(query.float(), key.float(), value.float(), bias=bias, kernel=kernel)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-5)


def test_slopes_of_float64_are_trained() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64).unbind()
    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda slopes: ch.attend(query, key, value, bias=ch.alibi(slopes=slopes)), slopes
    )


def test_slopes_that_float32_rounds_are_made_anew() -> None:
    bias = ch.alibi(24).within(torch.float64)
    assert bias.numbers is not None
    exact = torch.tensor([2.0 ** (-(head + 1) / 2) for head in range(16)], dtype=torch.float64)
    assert torch.equal(bias.numbers[:16], exact)
    assert ch.alibi(24).within(torch.bfloat16).numbers.dtype == torch.float32  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bias",
    [ch.alibi(6), ch.alibi(slopes=torch.rand(6)), ch.relative(torch.rand(6, 3)),
     as_bias(torch.rand(2, 6, 3, 1)), SumOfBiases(ch.alibi(6), as_bias(torch.rand(3, 5)))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bias_of_some_heads(bias: ch.Bias, dtype: torch.dtype) -> None:
    heads = torch.tensor([4, 1, 5])
    expected = bias.within(dtype).to_dense(3, 5)[:, heads]
    found = bias.of_heads(heads).within(dtype).to_dense(3, 5)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_slopes_of_some_heads_are_not_those_of_so_many_heads() -> None:
    some = ch.alibi(6).of_heads(torch.tensor([4, 1])).within(torch.float32).within(torch.float64)
    expected = ch.alibi(6).within(torch.float64).to_dense(3, 5)[:, [4, 1]]
    torch.testing.assert_close(some.to_dense(3, 5), expected, rtol=2**-23, atol=0)


@pytest.mark.parametrize("bias", [ch.relative(torch.rand(1, 5)), as_bias(torch.rand(2, 1, 3, 1))])
def test_some_heads_of_a_bias_that_is_the_same_for_all(bias: ch.Bias) -> None:
    assert bias.of_heads(torch.tensor([4, 1])) is bias
