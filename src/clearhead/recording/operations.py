"""Operations of PyTorch by what becomes of the numbers that go in."""

from abc import abstractmethod
from typing import Any

from clearhead._common.torch_internals import DispatchMode

PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1)}
FUSED = "_scaled_dot_product_"
SOFTMAXES = ("_softmax", "_safe_softmax", "_log_softmax")
MOVES = {
    "clone", "contiguous", "cat", "stack", "index_select", "gather", "index", "roll", "flip",
    "constant_pad_nd", "repeat", "tril", "triu", "masked_select", "lift_fresh", "unfold",
    "select_scatter", "slice_scatter", "take_along_dim",
}  # fmt: skip
# Of the same shape as what goes in, and yet no number is where it was; or fewer numbers.
UNTRACED = {
    "sort", "topk", "cumsum", "cumprod", "logcumsumexp", "_fft_c2c", "_fft_r2c", "sum", "mean",
}  # fmt: skip
KEEPS = {"masked_fill", "masked_fill_", "index_put_", "_to_copy", "dropout"}
DRAWS = {"bernoulli_", "uniform_", "normal_", "exponential_", "random_"}
RANDOM = DRAWS | {
    "native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "multinomial",
    "randint", "randint_like",
}  # fmt: skip
# PyTorch adds these where a reference holds on to a tensor, as a recorder does.
UNCOUNTED = frozenset(("detach", "alias", "lift_fresh"))
SCALINGS = {"mul": 1, "mul_": 1, "div": -1, "div_": -1}


class Operations(DispatchMode):
    """Base of a mode that receives every operation of a call by name, and counts them in `count`."""

    count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name.rpartition("::")[2]
        self.count += name not in UNCOUNTED
        return self.operation(name, func, args, kwargs or {})

    @abstractmethod
    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result; subclasses record what they need of it.

        `name` is that of the operation without its namespace and overload; `count` includes it, unless it is in
        `UNCOUNTED`.
        """


class Unfilled(Operations):
    """Fill floating-point tensors from `torch.empty` and similar with a number instead of what memory held."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result, filled in place if it is an `empty` of a floating-point dtype."""
        found = func(*args, **kwargs)
        unfilled = name.removeprefix("new_").startswith("empty")
        return found.fill_(self.number) if unfilled and found.is_floating_point() else found
