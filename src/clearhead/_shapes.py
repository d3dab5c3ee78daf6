"""Types of tensors with shapes: those of jaxtyping where it is installed, otherwise annotated tensors.

The tests install jaxtyping, which then checks every shape at run time.
"""

try:
    from jaxtyping import Bool, Float
except ImportError:
    from typing import Annotated as Bool
    from typing import Annotated as Float

__all__ = ["Bool", "Float"]
