"""Errors for the tensor methods that an implicit matrix does not support."""

from typing import TYPE_CHECKING, Never

from torch import Tensor

from clearhead._common.foreign_names import Answering, no_attribute
from clearhead.errors import ArgumentTypeError

ADVICE = "index what is needed, such as A[..., 0, :]{0}, or take all of it with A.dense(){0}."
"""What to write instead, with the call of a method, such as ".sum(…)", in the place of {0}."""


class NoTensor(Answering):
    """An object that is indexed as a tensor.

    Use as a tensor or array, which would compute all of it, raises an error.
    """

    @classmethod
    def _refuse(cls, what: str) -> ArgumentTypeError:
        """Return, without raising it, the error for an object that is used as a `what`, with what to write instead."""
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        return ArgumentTypeError(
            "matrix.array",
            f"{article} {cls.__name__} is no {what}, since it is never in memory as a whole: "
            + ADVICE.format(""),
        )

    def __array__(self, *_: object, **__: object) -> Never:
        """Raise ArgumentTypeError: NumPy would make an array of one object."""
        raise self._refuse("array")

    def __dlpack__(self, *_: object, **__: object) -> Never:
        """Raise ArgumentTypeError: `torch.as_tensor` would make a tensor of its rows, one by one."""
        raise self._refuse("tensor")

    __dlpack_device__ = __dlpack__

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> Never:
        """Raise ArgumentTypeError: it is not an argument of PyTorch's functions."""
        raise cls._refuse("tensor")

    def __len__(self) -> int:
        """Raise ArgumentTypeError: code that asks for a length would go on to compute all rows."""
        raise self._refuse("sequence with a length but a shape")

    def __bool__(self) -> bool:
        """Return True, so that `if matrix:` does not ask for its length."""
        return True

    if not TYPE_CHECKING:  # a type checker knows what is not there

        def __getattr__(self, name: str) -> Never:
            """Raise NoAttributeError; for a name that tensors have, it says what to write instead."""
            is_of_tensors = not name.startswith("_") and hasattr(Tensor, name)
            called = f".{name}" + "(…)" * callable(getattr(Tensor, name, None))
            way = f"it is no tensor: {ADVICE.format(called)}" if is_of_tensors else ""
            raise no_attribute(self, name, way)
