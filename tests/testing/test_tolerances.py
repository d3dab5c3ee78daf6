import pytest
import torch
from torch import Tensor

from clearhead.testing import assert_no_worse
from tests.refusals import refusals

NAN, INF = float("nan"), float("inf")


def softmax_three_ways(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A softmax in `dtype` with a summation of its own, the truth, and the plain softmax."""
    scores = torch.randn(7, 13).to(dtype)
    truth = scores.double().softmax(-1)
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True), truth, scores.softmax(-1)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_another_order_of_the_same_arithmetic_passes(dtype: torch.dtype) -> None:
    assert_no_worse(*softmax_three_ways(dtype))


@pytest.mark.parametrize(
    ("dtype", "slip"),
    [(torch.float64, 1e-14), (torch.float32, 1e-5), (torch.bfloat16, 0.1)],
    ids=str,
)
def test_an_error_in_one_number_fails(dtype: torch.dtype, slip: float) -> None:
    actual, truth, plain = softmax_three_ways(dtype)
    actual[3, 5] += slip
    with pytest.raises(AssertionError, match=r"(?s)the weights .* is wrong by .* at \[3, 5\]: "):
        assert_no_worse(actual, truth, plain, what="the weights")


def test_the_factor_counts() -> None:
    truth = torch.zeros(1, dtype=torch.float64)
    plain, actual = torch.tensor([1.0]), torch.tensor([2.5])
    assert_no_worse(actual, truth, plain)
    with pytest.raises(AssertionError, match=r"allowed is 2 = 2 × 1 "):
        assert_no_worse(actual, truth, plain, factor=2.0)


@pytest.mark.parametrize(
    ("actual", "truth"),
    [
        ([NAN, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [NAN, 1.0]),
        ([INF, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [-INF, 1.0]),
        ([INF, 1.0], [-INF, 1.0]),
        ([NAN, 1.0], [-INF, 1.0]),
        ([-INF, 1.0], [NAN, 1.0]),
    ],
)
def test_nan_and_infinity_must_stand_where_they_belong(
    actual: list[float], truth: list[float]
) -> None:
    reference = torch.tensor(truth, dtype=torch.float64)
    with pytest.raises(
        AssertionError, match=r"1 of 2 numbers are NaN or infinite .*\n  at \[0\]: "
    ):
        assert_no_worse(torch.tensor(actual), reference, reference.float())


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nan_and_infinity_in_their_place_pass(value: float) -> None:
    reference = torch.tensor([value, 1.0], dtype=torch.float64)
    assert_no_worse(reference.float(), reference, reference.float())
    assert_no_worse(reference.float()[:1], reference[:1], reference.float()[:1])


def test_shapes_must_agree() -> None:
    x = torch.zeros(2, 3)
    assert_no_worse(x[:0], x[:0].double(), x[:0])
    with pytest.raises(AssertionError, match=r"has shape \(3, 2\), expected \(2, 3\)"):
        assert_no_worse(x.mT, x.double(), x)


X = torch.zeros(2, 3)

test_the_measure_must_be_one = refusals(
    lambda given: assert_no_worse(*given),
    ((X, X.double(), X[0]), "tolerance.shape", "the result // (3,) // (2, 3)"),
    ((X, X, X), "tolerance.reference", "the result // torch.float32"),
    (
        (X, X.double(), X.double()),
        "tolerance.dtype",
        "the result // torch.float64 // torch.float32",
    ),
    ((X, X.double(), X + NAN), "tolerance.plain", "the result"),
)
