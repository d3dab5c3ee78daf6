"""PyTorch's nn.MultiheadAttention with our kernels under it: its arguments, its returns, its weights."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from clearhead._common.checks import check_tensor
from clearhead._common.hints import with_hints
from clearhead.attention.kernels import eager
from clearhead.attention.planning import run
from clearhead.attention.problem import make_problem, under_autocast
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from clearhead.layers.inputs import split_heads
from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.dense import and_masks, dense
from clearhead.masks.padding import padding

Module = TypeVar("Module", bound="MultiheadAttention")


@with_hints
class MultiheadAttention(nn.MultiheadAttention):
    """A drop-in replacement of torch.nn.MultiheadAttention, on the kernels of this package.

    Constructor, call, state dict and attributes are those of PyTorch's module, so that it goes where
    that one stands: (tokens, batch, width) unless `batch_first`, and masks in which True is *hidden*. For
    new code there is `clearhead.MultiHeadAttention`.

    What differs: a query that may attend to nothing gets zeros, where PyTorch gives NaN or zeros by
    the way that it takes; a key that is hidden gives nothing, not even a NaN. What is dropped in training
    is drawn elsewhere. Weights are made only for `need_weights=True`, which is PyTorch's default.
    In eval mode without gradients PyTorch's own `TransformerEncoderLayer` does not call its attention
    at all, but runs a kernel of its own on the weights; `torch.backends.mha.set_fastpath_enabled(False)`
    has it called.

    Raises:
        Errors of the constructor are PyTorch's.

    Example:
        >>> import torch, clearhead as ch
        >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> ours = ch.layers.MultiheadAttention(8, 2, batch_first=True)
        >>> ours.load_state_dict(theirs.state_dict())
        <All keys matched successfully>
        >>> x, hidden = torch.randn(3, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
        >>> output, weights = ours(x, x, x, attn_mask=hidden)
        >>> expected, _ = theirs(x, x, x, attn_mask=hidden)
        >>> torch.allclose(output, expected, atol=1e-6), weights.shape
        (True, torch.Size([3, 5, 5]))
    """

    @classmethod
    def sharing(cls: type[Module], module: nn.MultiheadAttention) -> Module:
        """Return a drop-in of a module, which is the same module in all but its class.

        Parameters, settings, hooks and the mode are those of the module, not copies of them.

        Raises:
            UnsupportedError: code `drop-in.class`, for a subclass, or a forward that was put in the
                place of its class's.
        """
        if type(module) is not nn.MultiheadAttention or "forward" in vars(module):
            raise UnsupportedError(
                "drop-in.class",
                "module must be a torch.nn.MultiheadAttention with the forward of that class; its own "
                f"one may do anything else: {type(module).__name__}.",
            )
        same = cls.__new__(cls)
        same.__dict__ = module.__dict__
        return same

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from query to key and value, as torch.nn.MultiheadAttention does.

        Args:
            query: (query_len, batch, embed_dim), (batch, query_len, embed_dim) with `batch_first`, or
                (query_len, embed_dim).
            key: the same, of width kdim.
            value: the same, of width vdim.
            key_padding_mask: (batch, kv_len), or (kv_len,) without a batch: bool, True = padding, or a
                number that is added to the scores.
            need_weights: whether the weights are returned.
            attn_mask: (query_len, kv_len) or (batch · num_heads, query_len, kv_len): bool, True =
                hidden, or a number that is added to the scores.
            average_attn_weights: whether the weights are the mean of the heads.
            is_causal: a hint that attn_mask is the causal one, which then need not be read.

        Returns:
            The output, in the form of the query; and the weights after dropout, (batch, query_len,
            kv_len and the keys that the module appends), with num_heads after the batch unless averaged; or None.

        Raises:
            ShapeError: codes `drop-in.shape`, `drop-in.attn_mask`, `drop-in.key_padding_mask`.
            ArgumentTypeError: code `drop-in.mask-type`, for a mask of whole numbers; `….type` for what is
                no tensor.
            ArgumentError: code `drop-in.is-causal`, for the hint without a mask.
        """
        given = {"query": query, "key": key, "value": value}
        self._check_inputs(given)
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "drop-in.is-causal",
                "is_causal=True is a hint about attn_mask, as in PyTorch; give that mask as well.",
            )
        is_batched = query.ndim == 3
        if not is_batched:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        queries, keys, values = self._heads(query, key, value)
        # As PyTorch does, the hint is taken where no padding and no weights are in the way.
        hinted = is_causal and not need_weights and key_padding_mask is None and self._extra == 0
        mask, bias = self._masks(
            queries,
            keys,
            None if hinted else attn_mask,
            key_padding_mask if is_batched or key_padding_mask is None else key_padding_mask[None],
        )
        problem = make_problem(
            *under_autocast(queries, keys, values),
            mask=causal(offset=0) if hinted else mask,
            bias=bias,
            dropout=(self.dropout or None) if self.training else None,
        )
        weights = None
        if not need_weights:
            context = run(problem)
        else:
            stages = eager.compute(problem)
            # What is dropped must be the same in both.
            context = run(problem) if problem.dropout is None else stages.context
            weights = stages.dropped_weights.to(query.dtype)
        merged = context.to(queries.dtype).transpose(1, 2).flatten(2)
        output = linear(merged, self.out_proj.weight, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    @property
    def _extra(self) -> int:
        """The number of keys that the module appends, 0 to 2: its bias and its zero."""
        return (self.bias_k is not None) + bool(self.add_zero_attn)

    def _check_inputs(self, given: dict[str, Any]) -> None:
        """Raise ShapeError, code `drop-in.shape`, unless the module fits query, key and value: `given`, in this order.

        Raises ArgumentTypeError, code `NAME.type`, for what is no tensor.
        """
        for name, each in given.items():
            check_tensor(name, each)
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        shapes = {name: tuple(each.shape) for name, each in given.items()}
        query, key, value = given.values()
        axis = 0 if self.batch_first else 1
        fits = (
            query.ndim in (2, 3)
            and query.ndim == key.ndim == value.ndim
            and all(each.shape[-1] == widths[name] for name, each in given.items())
            and key.shape[:-1] == value.shape[:-1]
            and (query.ndim == 2 or query.shape[axis] == key.shape[axis])
        )
        if not fits:
            layout = "(batch, tokens, width)" if self.batch_first else "(tokens, batch, width)"
            raise ShapeError(
                "drop-in.shape",
                f"query, key and value must have shape {layout} or (tokens, width), with widths "
                f"{', '.join(map(str, widths.values()))}, one batch, and as many values as keys "
                f"(batch_first={self.batch_first}); got "
                f"{', '.join(f'{name} {shape}' for name, shape in shapes.items())}.",
            )

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each (batch, num_heads, tokens, head_dim), projected.

        The bias key and the zero key that the module may append come last in key and value. Raises ShapeError,
        `layer.projected`, for a changed projection of another width.
        """
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = [
            linear(each, weight, None if bias is None else bias.to(weight.dtype))
            for each, weight, bias in zip((query, key, value), weights, biases, strict=True)
        ]
        if self.bias_k is not None and self.bias_v is not None:
            batch = len(query)
            for place, more in ((1, self.bias_k), (2, self.bias_v)):
                row = more.to(projected[place].dtype).expand(batch, 1, -1)
                projected[place] = torch.cat([projected[place], row], dim=1)
        heads = [split_heads(each, self.num_heads, self.head_dim, "in_proj") for each in projected]
        if self.add_zero_attn:
            heads[1:] = (nn.functional.pad(each, (0, 0, 0, 1)) for each in heads[1:])
        return heads[0], heads[1], heads[2]

    def _masks(
        self, query: Tensor, key: Tensor, attn_mask: Tensor | None, padded: Tensor | None
    ) -> tuple[Mask | None, Tensor | None]:
        """Return the mask from bool masks, and the tensor to add to the scores from floating ones.

        Each is None if there is none. `attn_mask` and `padded` are those of `forward`, with a batch; query and key are
        heads. Keys that the module appends are visible to all. Raises as `_check_mask` does.
        """
        batch, heads, query_len, _ = query.shape
        kv_len = key.shape[2] - self._extra
        whole = (batch * heads, query_len, kv_len)
        mask, bias = None, None
        for name, given, shapes in (
            (
                "attn_mask",
                attn_mask,
                {"query_len, kv_len": whole[1:], "batch · num_heads, …": whole},
            ),
            ("key_padding_mask", padded, {"batch, kv_len": (batch, kv_len)}),
        ):
            if given is None:
                continue
            _check_mask(name, given, shapes)
            given = nn.functional.pad(given, (0, self._extra))
            if name == "key_padding_mask":
                given = given[:, None, None]
            else:
                given = given.unflatten(0, (batch, heads)) if given.ndim == 3 else given[None, None]
            if given.dtype == torch.bool:
                hides = dense(~given) if name == "attn_mask" else padding(~given[:, 0, 0])
                mask = and_masks(mask, hides)
            else:
                bias = given.to(query.dtype) + (0 if bias is None else bias)
        return mask, bias


def _check_mask(name: str, mask: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ArgumentTypeError unless a mask is bool or floating, ShapeError unless it has one of the shapes.

    `shapes` are the allowed ones, by their axes as text.
    """
    check_tensor(name, mask)
    assert isinstance(mask, Tensor)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentTypeError(
            "drop-in.mask-type",
            f"{name} must be bool, True = hidden, or floating, added to the scores; got {mask.dtype}.",
        )
    if tuple(mask.shape) not in shapes.values():
        raise ShapeError(
            f"drop-in.{name}",
            f"{name} must have shape {' or '.join(f'({axes}) = {shape}' for axes, shape in shapes.items())}; "
            f"got {tuple(mask.shape)}.",
        )
