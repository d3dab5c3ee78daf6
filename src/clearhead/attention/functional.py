"""Attention as one function, and the plan of a call of it."""

from typing import Unpack

from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead.attention.biases import Bias
from clearhead.attention.planning import Plan, plan_for, run
from clearhead.attention.problem import Options, make_problem
from clearhead.attention.remembering import remembering
from clearhead.attention.sharded.attending import attend_across
from clearhead.attention.sharded.sharded_plan import plan_across
from clearhead.masks.base import Mask
from clearhead.sharding.sharding import Sharding


@remembering
@with_hints
def attend(
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
    kernel: str = "auto",
    across: Sharding | tuple[Sharding, Sharding] | None = None,
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762).

    The order is scores → scale → softcap → + bias → mask → softmax → dropout → context; `stages.py`
    is its definition. Sums are made in float32 for 16-bit inputs.

    Args:
        query: (batch, num_heads, query_len, head_dim). Leading dimensions may be left out, down to
            (query_len, head_dim); then key and value leave out the same.
        key: (batch, num_kv_heads, kv_len, head_dim). num_heads is a multiple of num_kv_heads, and
            neighbouring query heads share a key head (Ainslie et al., 2023).
        value: (batch, num_kv_heads, kv_len, value_head_dim).
        mask: which keys each query may attend to, a `Mask` or a bool tensor, True = may attend. A tensor of two
            dimensions is (query_len, kv_len), never (batch, kv_len), which is `padding(valid)`. A query that
            may attend to nothing gets zeros.
        bias: floating, (query_len, kv_len) or (batch, num_heads, query_len, kv_len) with 1 for any
            size; added to the scores. Or a `Bias`, such as `alibi(num_heads)`.
        scale: what the scores are multiplied by; None is 1/√head_dim.
        softcap: bound of the scaled scores, `softcap · tanh(score / softcap)`; None for no bound.
        sinks: (num_heads,), a score per head that takes a share of the weights and has no value.
        dropout: probability, in [0, 1), of dropping a weight; the others grow by 1/(1 − dropout).
            It is applied whenever it is given.
        kernel: "auto", or the name of one; that one runs, or raises with every reason.
        across: the ranks that share the tokens, of `clearhead.across`, or a pair, of the queries and
            of the keys. Query, key and value then have the tokens of this rank; mask and bias are
            those of all tokens. The loss is the sum of the losses of the ranks: gradients of key and
            value are summed, and those of bias and sinks are this rank's share.

    Returns:
        The context, (batch, num_heads, query_len, value_head_dim), with the query's dtype and as
        many dimensions as the query.

    Raises:
        ShapeError, DtypeError, DeviceError, MaskError, ArgumentError, ArgumentTypeError: for input
            that attention is not defined for, before anything is computed.
        UnsupportedError: code `kernel.refused`, if the kernel asked for cannot run this; codes
            `across.refused`, `across.dropout`, `across.transformed` and `dtensor.plain`.
        RankError: codes `across.rank`, `across.differ` and `across.lost`, on every rank.

    Example:
        >>> import torch, clearhead as ch
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
        >>> ch.attend(query, key, value, mask=ch.causal()).shape
        torch.Size([2, 4, 5, 8])
    """
    options: Options = {
        "mask": mask,
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": dropout,
    }
    if across is not None:
        return attend_across(query, key, value, across, kernel, **options)
    problem = make_problem(query, key, value, **options)
    return problem.restore(run(problem, kernel))


@with_hints
def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kernel: str = "auto",
    across: Sharding | tuple[Sharding, Sharding] | None = None,
    **options: Unpack[Options],
) -> Plan:
    """Return the plan of `attend` for these arguments, without computing anything.

    Args, shapes and errors are those of `attend`.

    Returns:
        The kernel, what it will do, and for each other kernel the reason against it; `print` it.
        With across=, also what each method of communication sends and holds; nothing is sent.

    Raises:
        ClearheadError: for the input that `attend` refuses.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = value = torch.zeros(1, 2, 5, 8)
        >>> print(ch.plan(query, key, value, mask=ch.causal()))
        fused: one fused call on cpu, with the causal flag
          query  [batch=1, num_heads=2, query_len=5, head_dim=8] float32 cpu
          key    [batch=1, num_kv_heads=2, kv_len=5, head_dim=8] float32 cpu
          value  [batch=1, num_kv_heads=2, kv_len=5, value_head_dim=8] float32 cpu
          mask=causal(), scale=0.353553
        not flex: it is compiled for CUDA; the tensors are on cpu
        not blockwise: it comes after fused; it would run 1 block of up to 5 queries × 5 keys; ...
        not eager: it comes after fused; it would run the stages one by one; ...
    """
    if across is not None:
        return plan_across(query, key, value, across, kernel, **options)
    return plan_for(make_problem(query, key, value, **options), kernel)
