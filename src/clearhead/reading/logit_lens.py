"""The logits that a model would make after each of its layers."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead._common.rows import MeasuredRows
from clearhead.errors import UnsupportedError
from clearhead.reading.logit_shares import numbers_of, picked
from clearhead.watching.stream import (
    StreamRun,
    called,
    check_asked,
    rounding_of,
    tensors_in,
)


class LensToken(NamedTuple):
    """A likely next token by the residual stream after a layer.

    Attributes:
        layer: the path of the module that attended in it.
        sample: which sample.
        query: the position that the logit is made at.
        token: the number of the logit.
        rank: the number of higher logits.
        logit: the logit.
        probability: its share of the softmax.
    """

    layer: str
    sample: int
    query: int
    token: int
    rank: int
    logit: float
    probability: float


class Lens(MeasuredRows[LensToken]):
    """The highest tokens after each layer, or one token after each, in the order of the layers.

    Attributes:
        logits: all of them, (layers, batch, query_len, vocabulary), in the dtype of the model; the last layer's are
            those of its output.

    Example:
        >>> from clearhead.reading.logit_lens import Lens, LensToken
        >>> rows = Lens([LensToken("0", 0, 4, 7, 0, 2.5, 0.75)], torch.zeros(1, 1, 1, 20))
        >>> rows["token"], rows.top(1)[0].layer
        (tensor([7]), '0')
    """

    ROW = LensToken
    BY = "probability"

    def __init__(self, rows: Sequence[LensToken], logits: Tensor) -> None:
        super().__init__(rows)
        self.logits = logits


@with_hints
def lens(
    model: nn.Module,
    inputs: object,
    *,
    query: int | None = -1,
    top: int = 5,
    target: int | Tensor | None = None,
) -> Lens:
    """Return the logits of a model after each of its layers, as if that were the last.

    The logit lens (nostalgebraist, 2020, https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens):
    the residual stream after each block goes through the last norm and all that the model does after it, a softcap
    of the logits too. The model runs twice, without gradients, in the mode that it is in: once for the streams and
    its own logits, which are those of the last layer, and once for those of the others.

    Args:
        model: any PyTorch model that `watch` watches, of blocks, a last norm, and an unembedding.
        inputs: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        query: the position that the logits are made at; None for all of them, in memory for layers × batch ×
            tokens × vocabulary. Pad on the left for −1.
        top: how many tokens after each layer.
        target: the number of a logit, or one for each sample, (batch,), whose rows are returned instead.

    Returns:
        `Lens`, rows for each layer, sample and query.

    Raises:
        ArgumentTypeError: codes `logits.model`, `logits.target` for a target that is not an index, and `argument.type`.
        ArgumentError: codes `logits.target`, for a number that there is not, or not one for each sample, and
            `argument.size`.
        SelectionError: code `logits.query`.
        UnsupportedError: codes `lens.unembedding`, where no linear layer after a norm makes the logits, and
            `logits.stream`, where blocks do not follow each other up to that norm, as with norms after the sum.

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
        >>> found = ch.reading.lens(model, x, top=3)
        >>> len(found), found[0].layer, found.logits.shape
        (6, '0.attention', torch.Size([2, 1, 1, 20]))
        >>> torch.equal(found.logits[-1], model(x)[:, -1:])
        True
    """
    check_asked(model, query)
    check_sizes(top=top)
    asked = None if target is None else numbers_of("target", target)
    run = StreamRun(model, inputs, query)
    ending = run.ending
    own = None if ending is None else _tensor_of_shape(ending[2].shape, run.output)
    if ending is None or own is None:
        raise _no_unembedding(model, "no linear layer that reads the output of a norm makes them")
    norm, unembedding, _ = ending
    own = own[:, run.places]
    streams = [run.follow(path)[1] for path in run.order]
    run.check_end(norm.call[0])

    def all_at_once(module: nn.Module, args: object) -> Tensor:
        """Return the normed streams of all layers, (layers · batch, query_len, width), as the unembedding's input."""
        return norm.module(torch.cat(streams).to(norm.output.dtype))

    with torch.no_grad(), unembedding.register_forward_pre_hook(all_at_once):
        output = called(model, inputs)
    batch, size = own.shape[0], own.shape[-1]
    every = _tensor_of_shape((len(streams) * batch, len(run.places), size), output)
    if every is None:
        raise _no_unembedding(model, "what the model gives for several streams is not of that size")
    logits = every.unflatten(0, (len(streams), batch)).clone()
    off = (logits[-1].double() - own.double()).norm(dim=-1)
    if not bool((off <= rounding_of(own) * own.double().norm(dim=-1)).all()):
        share = float((off / own.double().norm(dim=-1)).max())
        raise _no_unembedding(model, f"made again of the last stream, they are off by {share:.2g}")
    logits[-1] = own
    tokens = (
        logits.topk(min(top, size), dim=-1).indices
        if asked is None
        else picked("target", asked, batch, size).to(logits.device)[None, :, None, None]
    )
    return Lens(_rows(logits, tokens, run.order, run.places), logits)


def _rows(
    logits: Tensor, tokens: Tensor, layers: Sequence[str], places: Sequence[int]
) -> list[LensToken]:
    """Return a row for each layer, sample, query and token, in this order.

    Args:
        logits: (layers, batch, query_len, vocabulary).
        tokens: int64, broadcasts to (layers, batch, query_len, tokens).
        layers: the path of each layer.
        places: the position of each query.
    """
    tokens = tokens.expand(*logits.shape[:-1], tokens.shape[-1])
    values = logits.gather(-1, tokens)
    shares = (values.double() - logits.double().logsumexp(dim=-1, keepdim=True)).exp()
    rows: list[LensToken] = []
    for at in product(*map(range, tokens.shape[:-1])):
        layer, sample, place = at
        for token, value, share in zip(tokens[at], values[at], shares[at], strict=True):
            rank = int((logits[at] > value).sum())
            row = layers[layer], sample, places[place], int(token), rank, float(value), float(share)
            rows.append(LensToken(*row))
    return rows


def _tensor_of_shape(shape: Sequence[int], output: object) -> Tensor | None:
    """Return the first tensor of this shape in the output of a model; None if there is none."""
    return next((each for each in tensors_in(output) if each.shape == tuple(shape)), None)


def _no_unembedding(model: nn.Module, reason: str) -> UnsupportedError:
    """Return, without raising it, the error for a model whose logits after a layer are unknown, with the reason."""
    return UnsupportedError(
        "lens.unembedding",
        f"the logits of {type(model).__name__} after a layer are not known: {reason}.",
    )
