"""The direct contribution of each head to a logit: the residual stream of one run, split before its last norm."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from clearhead._common.checks import as_int, as_ints
from clearhead._common.hints import with_hints
from clearhead._common.rows import MeasuredRows
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.watching.stream import EndedRun, check_asked


class LogitShare(NamedTuple):
    """What one head adds to a logit, or to the difference of two.

    Attributes:
        layer: the path of the module that attended; "the rest" for embeddings, MLPs and biases, as one.
        head: which query head; None for the rest.
        query: the position that the logit is made at.
        logit: the direct contribution, of several samples the mean.
    """

    layer: str
    head: int | None
    query: int
    logit: float


class LogitShares(MeasuredRows[LogitShare]):
    """The shares of all heads in the order of the layers, and of the rest; their sum is the logit.

    Attributes:
        logit: what the model made at each query, (query_len,), the mean over the samples; float64.
        scale: what the last norm multiplied with in the run, (batch, query_len); float64.

    Example:
        >>> from clearhead.reading.logit_shares import LogitShare, LogitShares
        >>> rows = [LogitShare("0", 0, 4, 0.25), LogitShare("the rest", None, 4, -1.0)]
        >>> shares = LogitShares(rows, torch.tensor([-0.75]), torch.ones(1, 1))
        >>> float(shares["logit"].sum()), shares.heads[0].layer
        (-0.75, '0')
    """

    ROW = LogitShare
    BY = "logit"
    DIGITS = 4

    def __init__(self, rows: Sequence[LogitShare], logit: Tensor, scale: Tensor) -> None:
        super().__init__(rows)
        self.logit, self.scale = logit, scale

    @property
    def heads(self) -> Self:
        """The shares of the heads, without the rows of the rest; a new object."""
        return self._with([row for row in self._rows if row.head is not None])

    @property
    def caption(self) -> str:
        """The logit of the run as text, at the first eight queries."""
        return f"logit: {', '.join(f'{each:.4f}' for each in self.logit[:8].tolist())}"


@with_hints
def logits_of(
    model: nn.Module,
    inputs: object,
    target: int | Tensor,
    against: int | Tensor | None = None,
    *,
    query: int | None = -1,
) -> LogitShares:
    """Return what each head adds directly to a logit, or to the difference of two, in one run of a model.

    The last norm is frozen at the scale that it had in the run, so that the logit is a sum over what was added to the
    residual stream (direct logit attribution: Elhage et al., 2021,
    https://transformer-circuits.pub/2021/framework). A norm of an attention's output is frozen too. Everything it rests
    on is read off the run and checked there: that each block adds its attention's output to the stream, that the blocks
    follow each other, and that nothing follows the unembedding. The model runs once, without gradients, in the mode
    that it is in.

    Args:
        model: any PyTorch model that `watch` watches, of blocks, a last LayerNorm or RMSNorm, and an unembedding.
        inputs: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        target: the number of the logit, or one for each sample, (batch,).
        against: the number of the logit to subtract, in the same form; None subtracts nothing.
        query: the position that the logit is made at; None for all of them, each by itself. Pad on the left for −1.

    Returns:
        `LogitShares`, a row for each layer, head and query, and for each query one for the rest.

    Raises:
        ArgumentTypeError: code `logits.model`, and `logits.target` for a target that is not an index.
        ArgumentError: code `logits.target`, for a number that there is not, or not one for each sample.
        SelectionError: code `logits.query`.
        UnsupportedError: codes `logits.unembedding`, where the output is not that of a linear layer after a norm,
            as with a softcap; `logits.stream`, where heads do not add to one stream, as with norms after the sum;
            `norms.projection`.

    Example:
        >>> import torch, clearhead as ch
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm = torch.nn.LayerNorm(8)
        ...         self.attention = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        ...     def forward(self, x):
        ...         return x + self.attention(self.norm(x))
        >>> parts = Block(), Block(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 20)
        >>> model, x = torch.nn.Sequential(*parts), torch.randn(1, 5, 8)
        >>> shares = ch.reading.logits_of(model, x, target=3, against=7)
        >>> len(shares.heads), shares[-1].layer
        (4, 'the rest')
        >>> logits = model(x).detach()[0, -1]
        >>> abs(float(shares["logit"].sum() - (logits[3] - logits[7]))) < 1e-4
        True
    """
    check_asked(model, query)
    numbers = [numbers_of(name, each) for name, each in (("target", target), ("against", against))]
    run = EndedRun(model, inputs, query)
    weight, bias = run.weight, run.bias
    batch = len(run.normed)
    direction = torch.zeros_like(run.normed[:, 0])
    constant = direction.new_zeros(batch)
    for sign, each, name in zip((1, -1), numbers, ("target", "against"), strict=True):
        if each is not None:
            rows_of = picked(name, each, batch, weight.shape[0]).to(weight.device)
            direction = direction + sign * weight[rows_of].double()
            if bias is not None:
                constant = constant + sign * bias[rows_of].double()
    rest = (run.normed * direction[:, None]).sum(dim=-1) + constant[:, None]
    logit = rest.mean(dim=0)
    direction = direction[:, None].expand_as(run.normed)

    parts: list[tuple[str, Sequence[int | None], Tensor]] = []
    for path, heads, results in run.layers():
        parts.append((path, heads, results.along(direction)))
        rest = rest - parts[-1][2].sum(dim=1)
    parts.append(("the rest", [None], rest[:, None]))
    rows = [
        LogitShare(path, head, at, each)
        for path, heads, added in parts
        for head, of_queries in zip(heads, added.mean(dim=0).tolist(), strict=True)
        for at, each in zip(run.places, of_queries, strict=True)
    ]
    return LogitShares(rows, logit, run.norm.scale)


def numbers_of(name: str, given: Any) -> Any:
    """Return a logit's number, given as an int or a tensor, as an int, or a tuple of one for each sample.

    None for None if `name` is "against". ArgumentTypeError, code `logits.target`, for anything else, lists included.
    """
    if given is None and name == "against":
        return None
    values = given.tolist() if isinstance(given, Tensor) else given
    numbers = (
        as_ints(values) if values is not given and isinstance(values, list) else as_int(values)
    )
    if numbers is None:
        raise ArgumentTypeError(
            "logits.target",
            f"{name} must be the number of a logit, or a tensor of one for each sample; got {shown(given)}.",
        )
    return numbers


def picked(name: str, given: Any, batch: int, size: int) -> Tensor:
    """Return each sample's logit number, int64, (batch,), from what `numbers_of` returned.

    Raises ArgumentError, code `logits.target`, for one that is not in [0, size), or not one for each sample.
    """
    every = given if isinstance(given, tuple) else (given,) * batch
    if len(every) != batch or not all(0 <= each < size for each in every):
        raise ArgumentError(
            "logits.target",
            f"{name} must be from 0 to {size - 1}, or one such number for each of {batch} samples; got {shown(given)}.",
        )
    return torch.tensor(every)
