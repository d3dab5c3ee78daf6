"""A mask of transformers that stays a description while it goes through a model."""

from typing import Any, cast

import torch
from torch import Tensor

from clearhead._common.torch_internals import private
from clearhead.errors import ModelError
from clearhead.masks.base import Mask

NAME = "clearhead"
"""The implementation of attention that runs on the kernels of this package."""

KNOWN = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "all", "any", "bitwise_and", "cat", "clone",
    "contiguous", "detach", "equal", "expand", "index", "index_select", "is_nonzero", "lift_fresh",
    "logical_and", "permute", "repeat", "reshape", "select", "slice", "split", "squeeze", "stack",
    "sum", "t", "transpose", "unsqueeze", "view", "_to_copy",
})  # fmt: skip
"""The operators that give a mask of the same meaning, or read it."""

_tree_map_only = private("utils._pytree.tree_map_only")


class Described(Tensor):
    """A mask as transformers hands it through a model, which is a description until it is used.

    It is a bool tensor of shape (batch, 1, query_len, kv_len), True = may attend, and takes no
    memory. What is computed with it is an ordinary tensor of queries × keys; `read_call` takes the
    description.

    Args:
        description: who may see whom.
        shape: (batch, 1, query_len, kv_len).
        device: where the tensor would be.

    Raises:
        ModelError: code `model.ignores-interface`, when a model computes something else with it than
            a part of it or what it has in common with another mask, as one does that keeps to its
            own code of attention.

    Example:
        >>> from clearhead.masks.causal import causal
        >>> mask = Described(causal(), (1, 1, 2, 3), torch.device("cpu"))
        >>> mask
        Described(causal(), (1, 1, 2, 3))
        >>> mask & torch.tensor([True, True, False])
        tensor([[[[ True,  True, False],
                  [ True,  True, False]]]])
    """

    description: Mask
    has_beginning: bool = False
    """True once the positions of its tokens were found to have the first of a text."""

    def __new__(
        cls, description: Mask, shape: tuple[int, int, int, int], device: torch.device
    ) -> "Described":
        """Make a bool tensor of this shape and device without storage, which carries its description."""
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        made.description = description
        return made

    def __init__(self, *_: object) -> None:
        """Do nothing with the arguments, which `__new__` reads."""
        super().__init__()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Described({self.description.describe()}, {tuple(self.shape)})"

    # What is computed with it is an ordinary tensor.
    __torch_function__ = private("_C._disabled_torch_function_impl")

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return the result of an operator on the materialised masks, an ordinary tensor.

        Raises ModelError, code `model.ignores-interface`, for an operator not in `KNOWN`, one in place, or another
        dtype.
        """
        # A model that works with the mask itself may read True the other way round, or as a number.
        as_number = (kwargs or {}).get("dtype") not in (None, torch.bool)
        if func.overloadpacket.__name__ not in KNOWN or func._schema.is_mutable or as_number:
            raise ModelError(
                "model.ignores-interface",
                f'the model must attend by its attn_implementation "{NAME}"; it works on the mask '
                f"itself ({func.overloadpacket.__name__}), so it keeps to its own code of "
                "attention.",
            )
        given, named = _tree_map_only(Described, Described._materialise, (args, kwargs or {}))
        return func(*given, **cast(dict[str, Any], named))

    def _materialise(self) -> Tensor:
        """Return the mask as an ordinary bool tensor of the same shape, rows shared by `expand` where equal."""
        _, _, query_len, kv_len = self.shape
        drawn = self.description.to_dense(query_len, kv_len, device=self.device)
        return drawn.expand(self.shape)
