"""Types of tensors with shapes: those of jaxtyping where it is installed, otherwise plain tensors.

The tests install jaxtyping, which then checks every shape at run time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
else:
    try:
        from jaxtyping import Bool, Float
    except ImportError:

        class Float:
            """Stand-in: `Float[Tensor, "batch len dim"]` is Tensor."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float

__all__ = ["Bool", "Float"]
