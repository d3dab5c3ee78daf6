"""The names of the axes, for messages.

`batch`, `num_heads` (of the queries), `num_kv_heads` (of keys and values), `query_len`, `kv_len`,
`head_dim` (width of a query and of a key) and `value_head_dim` (width of a value).
"""

from torch import Tensor

QUERY_AXES = ("batch", "num_heads", "query_len", "head_dim")
KEY_AXES = ("batch", "num_kv_heads", "kv_len", "head_dim")
VALUE_AXES = ("batch", "num_kv_heads", "kv_len", "value_head_dim")


def describe_tensor(tensor: Tensor, axes: tuple[str, ...]) -> str:
    """A tensor's sizes by the names of its axes, its dtype and its device, for a message.

    Fewer dimensions than names leave out the leading names, as everywhere in the package.

    Example:
        >>> import torch
        >>> describe_tensor(torch.zeros(3, 5, 8), QUERY_AXES)
        '[num_heads=3, query_len=5, head_dim=8] float32 cpu'
    """
    sizes = tuple(tensor.shape)
    names = axes[len(axes) - len(sizes) :] if len(sizes) <= len(axes) else ()
    if names:
        inside = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    else:
        inside = ", ".join(str(size) for size in sizes)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"[{inside}] {dtype} {tensor.device}"
