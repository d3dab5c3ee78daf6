"""One validated call of attention, which every kernel and everything else reads.

Every check that does not depend on the kernel is made here, before anything is computed.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_dropout, check_number, check_tensor
from clearhead._common.torch_internals import (
    has_tangent,
    is_autocast,
    is_concrete,
    is_exporting,
    is_forward_mode,
    is_plain,
    is_tracing,
)
from clearhead.attention.biases import Bias, as_bias
from clearhead.attention.mismatches import (
    DTYPES,
    check_bias_fits_mask,
    check_sinks,
    listed,
    mismatch,
    shapes,
)
from clearhead.errors import ShapeError
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.dense import dense
from clearhead.masks.full import Full
from clearhead.masks.spans import Extent, Spans
from clearhead.sharding.dtensors import check_plain
from clearhead.sharding.matrix_part import MatrixPart
from clearhead.sharding.sharding import Sharding


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of attention: tensors of four dimensions, a mask, a bias and options.

    Attributes:
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, kv_len, head_dim).
        value: (batch, num_kv_heads, kv_len, value_head_dim).
        mask: which keys each query may attend to; None for all.
        bias: added to the scores after scale and softcap, or None.
        scale: factor of the scores.
        softcap: bound of the scaled scores, or None.
        sinks: one score per head that takes a share of the weights, or None.
        dropout: share of the weights to drop, or None.
        dims: number of dimensions of the user's query.
        keys_finite: True if key and value are known to be finite, as from a cache, so that no kernel checks again.
        part: the part of a matrix shared by ranks that this call computes; None for a whole matrix.
        cross: True if the keys belong to another text than the queries; it changes no result here.
        real_queries: (batch, query_len), bool: queries that are not padding, or None if the mask tells.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Bias | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    dropout: float | None
    dims: int
    keys_finite: bool = False
    part: MatrixPart | None = None
    cross: bool = False
    real_queries: Tensor | None = None

    @property
    def batch(self) -> int:
        """The batch size."""
        return self.query.shape[0]

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.query.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """The number of key heads."""
        return self.key.shape[1]

    @property
    def query_len(self) -> int:
        """The number of queries."""
        return self.query.shape[2]

    @property
    def kv_len(self) -> int:
        """The number of keys."""
        return self.key.shape[2]

    @property
    def device(self) -> torch.device:
        """The device of the query, and so of all tensors."""
        return self.query.device

    @property
    def extent(self) -> Extent:
        """The sizes of the call, as masks and biases take them."""
        query = self.query
        batch, num_heads, query_len, _ = query.shape
        return Extent(batch, num_heads, query_len, self.key.shape[2], query.device, query.dtype)

    @property
    def sharding(self) -> Sharding | None:
        """The sharding of the queries if other ranks hold the rest; None otherwise."""
        return None if self.part is None else self.part.sharding

    @property
    def rows(self) -> Tensor:
        """The index of each query among the queries of all ranks, int64, (query_len,)."""
        if self.sharding is None:
            return torch.arange(self.query_len, device=self.device)
        return self.sharding.positions.to(self.device)

    @property
    def all_queries(self) -> int:
        """The number of queries of all ranks."""
        return self.query_len if self.sharding is None else self.sharding.tokens

    @property
    def query_positions(self) -> Tensor:
        """The index of each query's own key, int64, (query_len,); the last query has the last key."""
        return self.rows + (self.kv_len - self.all_queries)

    @cached_property
    def spans(self) -> Spans | None:
        """The runs of keys that each query sees, computed once; None without a mask, or if the mask has no spans."""
        if self.mask is None:
            return None
        return self.mask.spans(self.extent)

    @property
    def tensors(self) -> list[Tensor]:
        """Query, key and value, and the sinks and the tensor of the bias if there are any."""
        bias = None if self.bias is None else self.bias.numbers
        return [x for x in (self.query, self.key, self.value, self.sinks, bias) if x is not None]

    @property
    def factor(self) -> float:
        """The largest factor of the scores before the softcap, at least 1, which must not make them overflow."""
        return stages.largest_factor(self.scale, self.softcap)

    @property
    def has_tangents(self) -> bool:
        """True if one of `tensors` has a forward-mode tangent; False while PyTorch traces."""
        if not is_forward_mode() or is_tracing():
            return False
        return any(map(has_tangent, self.tensors))

    @property
    def readable(self) -> bool:
        """True if the tensors are concrete: not under torch.compile or torch.func, nor on the meta device."""
        return all(is_plain(each) and is_concrete(each) for each in self.tensors)

    def replace(self, **changes: Any) -> "Problem":
        """Return a new problem with changed fields, which are not validated again.

        The cached spans are kept unless the mask, a length or the device changes.
        """
        if torch.compiler.is_compiling():  # Dynamo does not follow what holds the attributes
            return Problem(**{name: getattr(self, name) for name in FIELDS} | changes)
        other = _validated(**vars(self) | changes)
        if "spans" in vars(other):
            mine = self.query_len, self.kv_len, self.device
            if self.mask is not other.mask or mine != (other.query_len, other.kv_len, other.device):
                del other.__dict__["spans"]
        return other

    def with_value(self, value: Tensor) -> "Problem":
        """Return the problem with another value, which must have the heads and tokens of the key.

        Its key and value then count as unchecked: `keys_finite` is False.
        """
        return self.replace(value=value, keys_finite=False)

    def is_one_graph(self, numbers: int, most: int) -> bool:
        """Return True if PyTorch traces and all queries are computed at once, as a loop would be unrolled.

        A compiled or exported graph would then fit one length only. True while exporting, with gradients, or for
        `numbers` ≤ `most`.

        Args:
            numbers: the count of numbers that all queries at once hold in memory.
            most: the largest count allowed.
        """
        if not is_tracing():
            return False
        trained = any(each.requires_grad for each in (self.query, self.key, self.value))
        return is_exporting() or (torch.is_grad_enabled() and trained) or numbers <= most

    def restore(self, tensor: Tensor) -> Tensor:
        """Return a result, (batch, num_heads, …), without the leading axes, of size 1, that the user's query lacks."""
        return tensor if self.dims == 4 else tensor.reshape(tensor.shape[4 - self.dims :])

    def visible(self, queries: slice | None = None, keys: slice | None = None) -> Tensor | None:
        """Return the mask, or a rectangle of it: bool, (batch or 1, heads or 1, queries, keys); None without a mask."""
        return None if self.mask is None else self._rectangle(self.mask, queries, keys)

    def bias_block(self, queries: slice | None = None, keys: slice | None = None) -> Tensor | None:
        """Return the bias, or a rectangle of it, in four dimensions, any of size 1; None without a bias."""
        if self.bias is None:
            return None
        return self._rectangle(self.bias, queries, keys)

    def _rectangle(self, part: Mask | Bias, queries: slice | None, keys: slice | None) -> Tensor:
        """Return a rectangle of the mask or bias, of four dimensions; None for queries or keys means all."""
        extent = self.extent
        queries = slice(0, extent.query_len) if queries is None else queries
        keys = slice(0, extent.kv_len) if keys is None else keys
        return part.block(queries, keys, extent)

    def describe(self) -> str:
        """Return four lines: query, key and value with named sizes, then the scale and the options that are set."""
        options = [f"mask={self.mask.describe()}"] if self.mask is not None else []
        options += [f"bias={self.bias.describe()}"] if self.bias is not None else []
        options += [f"scale={self.scale:.6g}"]
        options += [f"softcap={self.softcap:g}"] if self.softcap is not None else []
        options += ["sinks"] if self.sinks is not None else []
        options += [f"dropout={self.dropout:g}"] if self.dropout is not None else []
        return "\n".join([*shapes(self.query, self.key, self.value), ", ".join(options)])


class ScoreOptions(TypedDict, total=False):
    """The options that weights depend on, apart from query and key, as `attend` takes them."""

    mask: Mask | Tensor | None
    bias: Bias | Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


class Options(ScoreOptions, total=False):
    """The options that the context depends on as well."""

    dropout: float | None


FIELDS = tuple(each.name for each in fields(Problem))


def _validated(**values: Any) -> Problem:
    """Return a Problem from all of its fields, unchecked; `__init__` takes as long as all checks."""
    if torch.compiler.is_compiling():
        return Problem(**values)
    problem = object.__new__(Problem)
    problem.__dict__.update(values)
    return problem


def make_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float | None = None,
    keys_finite: bool = False,
) -> Problem:
    """Return the validated problem of a call, or raise an error that names the argument, before any computation.

    Tensors get four dimensions and the dtype of autocast. A full mask and a dropout of 0 become None; `keys_finite` is
    not verified.

    Raises:
        ShapeError, DtypeError, DeviceError, MaskError, ArgumentError, ArgumentTypeError, UnsupportedError: by argument.

    Example:
        >>> import torch
        >>> print(make_problem(torch.zeros(3, 5, 8), torch.zeros(3, 7, 8), torch.zeros(3, 7, 2)).describe())
        query  [batch=1, num_heads=3, query_len=5, head_dim=8] float32 cpu
        key    [batch=1, num_kv_heads=3, kv_len=7, head_dim=8] float32 cpu
        value  [batch=1, num_kv_heads=3, kv_len=7, value_head_dim=2] float32 cpu
        scale=0.353553
    """
    check_tensor("query", query)
    check_tensor("key", key)
    check_tensor("value", value)
    if not type(query) is type(key) is type(value) is Tensor:
        by_flag = type(mask) is Causal and not query.is_cpu
        options = {"mask": None if by_flag else mask, "bias": bias, "sinks": sinks}
        given = [name for name, option in options.items() if option is not None]
        check_plain(query, (key, value), ", ".join(given))
    dims = query.ndim
    if is_autocast(query):
        query, key, value = under_autocast(query, key, value)
    if dims != 4 or key.ndim != 4 or value.ndim != 4:
        query, key, value = _four_dimensions(query, key, value)
    check_fit(query, key, value)
    batch, num_heads, query_len, head_dim = query.shape
    kv_len, dtype, device = key.shape[2], query.dtype, query.device
    if mask is not None and not (type(mask) is Causal and mask.offset is None):  # which fits any
        mask = mask if isinstance(mask, Mask) else dense(mask)
        mask.check(Extent(batch, num_heads, query_len, kv_len, device))
        mask = None if type(mask) is Full else mask
    if bias is not None:
        bias = as_bias(bias)
        bias.check(Extent(batch, num_heads, query_len, kv_len, device, dtype))
        check_bias_fits_mask(mask, bias)
        bias = bias.within(dtype)
    if scale is None:
        scale = 1.0 / math.sqrt(head_dim)
    else:
        scale = check_number(
            "scale",
            scale,
            "a finite number, or None for 1/√head_dim",
            lambda factor: -math.inf < factor < math.inf,
        )
    if softcap is not None:
        expected = "a finite number above 0, or None for no cap"
        softcap = check_number("softcap", softcap, expected, lambda bound: 0 < bound < math.inf)
    if dropout is not None:
        dropout = check_dropout(dropout) or None
    if sinks is not None:
        check_sinks(sinks, num_heads, dtype, device)
    return _validated(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        dims=dims,
        keys_finite=keys_finite,
        cross=mask is not None and mask.cross,
    )


def check_fit(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ShapeError, DtypeError or DeviceError for the first mismatch of four-dimensional query, key and value."""
    batch, num_heads, _, head_dim = query.shape
    key_batch, num_kv_heads, kv_len, key_dim = key.shape
    value_batch, value_heads, value_len, _ = value.shape
    dtype, device = query.dtype, query.device
    if not (
        key_batch == batch == value_batch
        and key_dim == head_dim
        and head_dim > 0
        and value_heads == num_kv_heads
        and value_len == kv_len
        and 0 < num_kv_heads <= num_heads
        and num_heads % num_kv_heads == 0
        and dtype == key.dtype == value.dtype
        and dtype in DTYPES
        and device == key.device == value.device
    ):
        raise mismatch(query, key, value)


def under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the autocast dtype; unchanged without autocast, or if one is float64 or not floating.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     under_autocast(torch.ones(1))
        (tensor([1.], dtype=torch.bfloat16),)
    """
    if not is_autocast(tensors[0]):
        return tensors
    if any(each.dtype == torch.float64 or not each.is_floating_point() for each in tensors):
        return tensors
    target = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(each.to(target) for each in tensors)


def _four_dimensions(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all with leading axes of size 1, up to four axes; raise ShapeError unless all have the same 2 to 4."""
    dims = query.ndim
    if not 2 <= dims <= 4 or key.ndim != dims or value.ndim != dims:
        raise ShapeError(
            "shape.dimensions",
            "query, key and value must have the same number of dimensions, 2 to 4: "
            "(batch, num_heads, len, dim), (num_heads, len, dim) or (len, dim); got "
            f"{dims}, {key.ndim} and {value.ndim}." + listed(query, key, value),
        )
    missing = (None,) * (4 - dims)
    return query[missing], key[missing], value[missing]
