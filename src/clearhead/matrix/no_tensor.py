"""Errors for the tensor methods that an implicit matrix does not support."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Never, cast

from torch import Tensor

from clearhead._common.foreign_words import Answering, no_attribute
from clearhead.errors import ArgumentTypeError


class NoTensor(Answering):
    """Something that is indexed as a tensor is, and that nothing may take for one: it would all be computed."""

    def _ways(self, name: str = "") -> str:
        """Return advice on how to get a tensor, and on how to call `name` on it."""
        axes = len(cast(Any, self).shape)
        part = f"A[{', '.join([':'] * (axes - 2) + ['0', ':'])}]"
        return (
            f"index what is needed, such as {part}{name}, or take all of it with A.dense(){name}."
        )

    def _refuse(self, what: str) -> ArgumentTypeError:
        """Return the error for an object that is used as a tensor, with what to write instead."""
        kind = type(self).__name__
        article = "an" if kind[0] in "AEIOU" else "a"
        return ArgumentTypeError(
            "matrix.array",
            f"{article} {kind} is no {what}, since it is never in memory as a whole: {self._ways()}",
        )

    def __array__(self, *_: object, **__: object) -> Never:
        """Refuse to be an array, which NumPy would make of one object."""
        raise self._refuse("array")

    def __dlpack__(self, *_: object, **__: object) -> Never:
        """Refuse to be a tensor, which `torch.as_tensor` would make of its rows, one by one."""
        raise self._refuse("tensor")

    __dlpack_device__ = __dlpack__

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Never:
        """Refuse to be an argument of PyTorch's functions."""
        every = [each for one in args for each in (one if isinstance(one, list | tuple) else [one])]
        mine = next((each for each in every if isinstance(each, NoTensor)), None)
        if mine is None:
            raise ArgumentTypeError("matrix.array", f"a {cls.__name__} is no tensor.")
        raise mine._refuse("tensor")

    def __len__(self) -> int:
        """Refuse a length: what asks for one goes on to compute all of it."""
        raise self._refuse("sequence with a length but a shape")

    def __bool__(self) -> bool:
        return True

    if not TYPE_CHECKING:  # a type checker knows what is not there

        def __getattr__(self, name: str) -> Never:
            is_of_tensors = not name.startswith("_") and hasattr(Tensor, name)
            called = f".{name}" + "(…)" * callable(getattr(Tensor, name, None))
            way = f"it is no tensor: {self._ways(called)}" if is_of_tensors else ""
            raise no_attribute(self, name, way)
