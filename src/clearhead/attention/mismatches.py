"""Errors for query, key, value, bias and sinks that do not fit each other."""

import torch
from torch import Tensor

from clearhead._common.checks import KEY_AXES, QUERY_AXES, VALUE_AXES, check_tensor, describe_tensor
from clearhead.attention.biases import Bias, DenseBias
from clearhead.errors import DeviceError, DtypeError, ShapeError, UnsupportedError
from clearhead.masks.base import Mask

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def shapes(query: Tensor, key: Tensor, value: Tensor) -> list[str]:
    """Return three lines, for query, key and value: the name, the named sizes, the dtype and the device."""
    return [
        f"query  {describe_tensor(query, QUERY_AXES)}",
        f"key    {describe_tensor(key, KEY_AXES)}",
        f"value  {describe_tensor(value, VALUE_AXES)}",
    ]


def listed(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Return the lines of `shapes` as one text; each line is indented by two spaces and follows a line break."""
    return "".join(f"\n  {line}" for line in shapes(query, key, value))


def mismatch(query: Tensor, key: Tensor, value: Tensor) -> ShapeError | DtypeError | DeviceError:
    """Return, without raising it, the error for the first mismatch of query, key and value of four dimensions.

    The order is: dtype, device, batch, head_dim, kv_len, value heads. If all of these fit, it is the error for
    num_heads that is no multiple of num_kv_heads: the caller must know that something is wrong.
    """
    shapes = listed(query, key, value)
    batch, num_heads, _, head_dim = query.shape
    _, num_kv_heads, kv_len, _ = key.shape
    dtypes = [str(t.dtype).removeprefix("torch.") for t in (query, key, value)]
    if len(set(dtypes)) > 1:
        return DtypeError(
            "dtype.mixed",
            "query, key and value must have one dtype; got {}, {} and {}.".format(*dtypes) + shapes,
        )
    if query.dtype not in DTYPES:
        return DtypeError(
            "dtype.unsupported",
            "query, key and value must be float16, bfloat16, float32 or float64; got "
            f"{dtypes[0]}." + shapes,
        )
    if not query.device == key.device == value.device:
        return DeviceError(
            "device.mixed",
            "query, key and value must be on one device; got "
            f"{query.device}, {key.device} and {value.device}." + shapes,
        )
    if not batch == key.shape[0] == value.shape[0]:
        return ShapeError(
            "shape.batch",
            "query, key and value must have the same batch; got "
            f"{batch}, {key.shape[0]} and {value.shape[0]}." + shapes,
        )
    if head_dim != key.shape[3] or head_dim == 0:
        return ShapeError(
            "shape.head-dim",
            "query and key must have the same head_dim, 1 or more; got "
            f"{head_dim} and {key.shape[3]}." + shapes,
        )
    if value.shape[2] != kv_len:
        return ShapeError(
            "shape.kv-len",
            f"key and value must have the same kv_len; got {kv_len} and {value.shape[2]}." + shapes,
        )
    if value.shape[1] != num_kv_heads:
        return ShapeError(
            "shape.value-heads",
            "key and value must have the same num_kv_heads; got "
            f"{num_kv_heads} and {value.shape[1]}." + shapes,
        )
    hint = ""
    if query.shape[2] == key.shape[2] and num_heads != num_kv_heads:
        hint = (
            "\nIf the tensors are (batch, len, num_heads, head_dim), turn them: "
            "tensor.transpose(1, 2)."
        )
    return ShapeError(
        "shape.kv-heads",
        "num_heads must be a multiple of num_kv_heads, both 1 or more; got "
        f"{num_heads} and {num_kv_heads}." + shapes + hint,
    )


def check_bias_beside(mask: Mask | None, bias: Bias | None) -> None:
    """Raise an error for a bias that is not a tensor, with a mask whose queries and keys are different texts (`cross`).

    Nothing is raised if either is None.

    Raises:
        UnsupportedError: code `bias.documents`.
    """
    if mask is not None and mask.cross and bias is not None and not isinstance(bias, DenseBias):
        raise UnsupportedError(
            "bias.documents",
            "a bias by distance counts through the whole row, where queries and keys of one document "
            f"stand apart; got {bias.describe()} with {mask.describe()}. A bias that is a tensor works.",
        )


def check_sinks(sinks: Tensor, num_heads: int, dtype: torch.dtype, device: torch.device) -> None:
    """Check that sinks has shape (num_heads,), the dtype of the query or float32, and the query's device.

    Raises:
        ArgumentTypeError, ShapeError, DtypeError, DeviceError: codes `sinks.type`, `sinks.layout`,
            `sinks.shape`, `sinks.dtype` and `sinks.device`.
    """
    check_tensor("sinks", sinks, "a tensor of shape (num_heads,)")
    if sinks.shape != (num_heads,):
        raise ShapeError(
            "sinks.shape",
            f"sinks must have shape (num_heads,) = ({num_heads},); got {tuple(sinks.shape)}.",
        )
    if sinks.dtype not in (dtype, torch.float32):
        raise DtypeError(
            "sinks.dtype",
            f"sinks must have the query's dtype, {dtype}, or float32; got {sinks.dtype}.",
        )
    if sinks.device != device:
        raise DeviceError(
            "sinks.device",
            f"sinks must be on the query's device; they are on {sinks.device}, the query on "
            f"{device}.",
        )
