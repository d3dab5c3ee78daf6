"""A mask as the tensor that the scores at hand need."""

from torch import Tensor

from clearhead.masks import Mask


def visible_pairs(
    mask: Mask | None, query: Tensor, key: Tensor, *, heads: bool = False
) -> Tensor | None:
    """True where a query may attend, of a shape that broadcasts to the scores; None for no mask.

    Args:
        mask: who may see whom.
        query: (query_len, head_dim), with `heads` (num_heads, …), and a batch before that or none.
        key: the same with kv_len.
        heads: whether query and key have an axis of heads.

    Raises:
        MaskError, DeviceError: if the mask was made for other sizes or another device.
    """
    if mask is None:
        return None
    *outer, query_len, _ = query.shape
    kv_len = key.shape[-2]
    num_heads = outer.pop() if heads else 1
    mask.check(outer[0] if outer else 1, num_heads, query_len, kv_len, query.device)
    visible = mask.to_dense(query_len, kv_len, device=query.device)
    if visible.ndim == 2:
        return visible
    if not heads:
        visible = visible[:, 0]
    return visible if outer else visible[0]
