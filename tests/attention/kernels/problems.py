"""Random problems: any tensors that fit together, any mask, and any options."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from tests.attention.kernels.definition import Tensors, draw
from tests.masks.expressions import Sizes, expressions_for

Problem = tuple[Tensors, dict[str, Any]]

STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "heads after tokens": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "tokens along memory": lambda t: t.mT.contiguous().mT,
    "every second number": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "every second token": lambda t: t.repeat_interleave(2, dim=2)[:, :, ::2],
    "one sample, expanded": lambda t: t[:1].expand(t.shape),
    "one head, expanded": lambda t: t[:, :1].expand(t.shape),
    "one token, expanded": lambda t: t[:, :, :1].expand(t.shape),
    "one number, expanded": lambda t: t[..., :1].expand(t.shape),
    "in the middle of a larger one": lambda t: torch.nn.functional.pad(t, (1,) * 8)[
        1:-1, 1:-1, 1:-1, 1:-1
    ],
}


def biases(sizes: Sizes) -> st.SearchStrategy[ch.Bias | Tensor | None]:
    """None, by distance, or a tensor whose axes may be 1, with −∞ here and there."""

    def tensor(shape: tuple[int, ...], hides: bool) -> Tensor:
        drawn = torch.randn(*shape)
        return drawn.masked_fill(torch.rand(*shape) < 0.3, -torch.inf) if hides else drawn

    shapes = st.tuples(*(st.sampled_from(sorted({1, size})) for size in sizes))
    return st.one_of(
        st.none(),
        st.just(ch.alibi(sizes.heads)),
        st.builds(
            lambda width: ch.relative(torch.randn(sizes.heads, width)), st.sampled_from([1, 5])
        ),
        st.builds(tensor, shapes, st.booleans()),
    )


@st.composite
def problems(
    draw_: st.DrawFn,
    lengths: Sequence[int] = (0, 1, 2, 3, 5, 17, 37),
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """Any tensors that fit together, and any options."""
    heads = draw_(st.sampled_from([1, 2, 4]))
    query_len, kv_len = (draw_(st.sampled_from(lengths)) for _ in range(2))
    sizes = Sizes(draw_(st.integers(0, 3)), heads, query_len, kv_len)
    widths = draw_(st.tuples(st.sampled_from([1, 3, 8]), st.sampled_from([0, 1, 3, 8])))
    num_kv_heads = draw_(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    tensors = draw(*sizes[:2], num_kv_heads, *sizes[2:], *widths, dtype)
    strides = draw_(st.sampled_from([None, None, *STRIDES]))
    if strides:
        tensors = {name: STRIDES[strides](tensor) for name, tensor in tensors.items()}
    if draw_(st.booleans()):
        tensors["sinks"] = torch.randn(heads, dtype=dtype)
    options: dict[str, Any] = {
        "bias": draw_(biases(sizes)),
        "scale": draw_(st.none() | st.floats(-2, 2)),
        "softcap": draw_(st.none() | st.floats(0.1, 10)),
    }
    if sizes.batch:
        options["mask"] = draw_(st.none() | expressions_for(sizes).map(lambda each: each.mask))
    return tensors, options
