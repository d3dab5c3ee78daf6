"""Memory as bytes, and memory that is not there, in words."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from clearhead._text import raised_words
from clearhead.errors import TooLargeError

# PyTorch's allocator on the CPU raises a plain RuntimeError.
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory|not enough memory", re.IGNORECASE)
# More than there are addresses, which PyTorch says in errors of four types.
BEYOND = re.compile(
    "overflow when unpacking|calculation overflowed|int too big to convert", re.IGNORECASE
)


def bytes_of(tensor: Tensor) -> bytes:
    """Return the values of a tensor as bytes, in row-major order whatever its strides, without numpy.

    Example:
        >>> import torch
        >>> list(bytes_of(torch.tensor([1, 2], dtype=torch.int8)))
        [1, 2]
    """
    numbers = tensor.detach().cpu().contiguous()
    return ctypes.string_at(numbers.data_ptr(), numbers.nbytes)


def within_memory(instead: str) -> AbstractContextManager[None]:
    """Return a context that raises TooLargeError, with advice, for memory errors inside the block.

    A no-op while compiling.

    Args:
        instead: a sentence that says what fits.

    Raises:
        TooLargeError: code `memory.full`; other errors pass unchanged.
    """
    # A compiler has no memory to run out of.
    return nullcontext() if torch.compiler.is_compiling() else _as_too_large(instead)


@contextmanager
def _as_too_large(instead: str) -> Iterator[None]:
    """Turn errors of a full memory that are raised in the block into a TooLargeError that ends with `instead`.

    A TooLargeError, and any other error, passes unchanged.
    """
    try:
        yield
    except TooLargeError:
        raise
    except (MemoryError, RuntimeError, OverflowError, TypeError, ValueError) as error:
        full = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error))
        if not (full or isinstance(error, MemoryError) or BEYOND.search(str(error))):
            raise
        raise TooLargeError(
            "memory.full", f"there is not enough memory. {instead}\n  {raised_words(error)}"
        ) from error
