"""What each head adds to a logit by itself: the residual stream of one run taken apart behind its last norm."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead._common.checks import as_int, as_ints, as_place
from clearhead._common.hints import with_hints
from clearhead._common.rows import MeasuredRows
from clearhead._common.text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, UnsupportedError
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import HeadResults
from clearhead.watching.projections import output_projection
from clearhead.watching.watch import watch


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
        >>> from clearhead.watching.logit_shares import LogitShare, LogitShares
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

    def _with(self, rows: Sequence[LogitShare]) -> Self:
        return type(self)(rows, self.logit, self.scale)

    @property
    def heads(self) -> Self:
        """The rows of heads, without the rest."""
        return self._with([row for row in self._rows if row.head is not None])

    @property
    def caption(self) -> str:
        """The logit of the run."""
        return f"logit: {', '.join(f'{each:.4f}' for each in self.logit[:8].tolist())}"


def called(model: nn.Module, inputs: object) -> Any:
    """Return the output of a model for named arguments, a tuple, or one tensor."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


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
    https://transformer-circuits.pub/2021/framework). Everything it rests on is read off the run and checked there: that
    each block adds its attention's output to the stream as it is, that the blocks follow each other, and that nothing
    stands behind the unembedding. The model runs once, without gradients, in the mode that it is in.

    Args:
        model: any PyTorch model that `watch` watches, of blocks, a last LayerNorm or RMSNorm, and an unembedding.
        inputs: what it is called with, a mapping of named arguments, a tuple, or one tensor.
        target: the number of the logit, or one for each sample, (batch,).
        against: of the logit to subtract, likewise; None for none.
        query: the position that the logit is made at; None for all of them, each by itself. Pad on the left for −1.

    Returns:
        `LogitShares`, a row for each layer, head and query, and for each query one for the rest.

    Raises:
        ArgumentTypeError: code `logits.model`, and `logits.target` for what is no number of a logit.
        ArgumentError: code `logits.target`, for a number that there is not, or not one for each sample.
        SelectionError: code `logits.query`.
        UnsupportedError: codes `logits.unembedding`, where the output is not that of a linear layer behind a norm,
            as with a softcap; `logits.stream`, where heads do not add to one stream, as with a norm behind them;
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
        >>> shares = ch.logits_of(model, x, target=3, against=7)
        >>> len(shares.heads), shares[-1].layer
        (4, 'the rest')
        >>> logits = model(x).detach()[0, -1]
        >>> abs(float(shares["logit"].sum() - (logits[3] - logits[7]))) < 1e-4
        True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "logits.model", f"model must be a torch.nn.Module; got {shown(model)}."
        )
    numbers = [_numbers(name, each) for name, each in (("target", target), ("against", against))]
    if query is not None and as_int(query) is None:
        raise SelectionError(
            "logits.query",
            f"query must be the number of a position, or None for all; got {shown(query)}.",
        )
    run = _Run(model, query)
    with torch.no_grad(), watch(model, keep="contexts") as seen, run:
        output = called(model, inputs)
    norm, unembedding = run.ending(output)
    stream, normed = norm.call
    batch, places = stream.shape[0], run.places(seen.layers)
    weight, bias = unembedding.weight.detach().double(), unembedding.bias
    direction, constant = weight.new_zeros(batch, weight.shape[1]), weight.new_zeros(batch)
    for sign, each, name in zip((1, -1), numbers, ("target", "against"), strict=True):
        if each is not None:
            picked = _picked(name, each, batch, weight.shape[0]).to(weight.device)
            direction = direction + sign * weight[picked]
            if bias is not None:
                constant = constant + sign * bias.detach().double()[picked]
    rest = (normed * direction[:, None]).sum(dim=-1) + constant[:, None]
    logit = rest.mean(dim=0)
    scale, gain, centred = _frozen(norm.module, stream, normed, _rounding(norm.output))
    direction = direction * gain
    if centred:
        direction = direction - direction.mean(dim=-1, keepdim=True)
    direction = direction[:, None] * scale[..., None]

    rows: list[LogitShare] = []
    before = None
    for path, context in ((path, run.at(seen[path].context)) for path in run.order):
        results = HeadResults(
            context, *output_projection(model, path, seen[path], context.shape[-1])
        )
        before = run.check_block(path, results.total(), before)
        found = results.along(direction)
        rest = rest - found.sum(dim=1)
        mean = found.mean(dim=0)
        for head, of_queries in zip(numbers_of_heads(seen[path]), mean.tolist(), strict=True):
            rows += [
                LogitShare(path, head, at, each)
                for at, each in zip(places, of_queries, strict=True)
            ]
    if before is None or not torch.equal(before, stream):
        raise _no_stream("", "the last norm reads something else than the last block gives")
    rows += [
        LogitShare("the rest", None, at, each)
        for at, each in zip(places, rest.mean(dim=0).tolist(), strict=True)
    ]
    return LogitShares(rows, logit, scale)


class _Call(NamedTuple):
    """One call of a module, at the queries that are asked for; float64."""

    given: Tensor | None
    made: Tensor
    rounding: float


class _Ending(NamedTuple):
    """A norm, whose output a linear layer may read."""

    module: nn.Module
    call: tuple[Tensor, Tensor]
    output: Tensor


class _Run:
    """What the modules of a model read and gave in one run."""

    def __init__(self, model: nn.Module, query: int | None) -> None:
        self._model, self._query = model, query
        self._calls: dict[str, list[_Call]] = {}
        self._norm: _Ending | None = None
        self._ending: tuple[_Ending, nn.Linear, Tensor] | None = None
        self._handles: list[Any] = []
        self._short: int | None = None
        self.order: list[str] = []

    def __enter__(self) -> None:
        for name, module in self._model.named_modules():
            hook = self._hook(name)
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def __exit__(self, *error: object) -> None:
        for each in self._handles:
            each.remove()

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given, made = _first((args, kwargs)), _first(output)
            if given is None or made is None or made.ndim != 3:
                return
            is_norm = getattr(getattr(module, "weight", None), "ndim", 0) == 1
            if self._query is not None and as_place(self._query, made.shape[1]) is None:
                self._short = made.shape[1]
                return
            norm = self._norm
            if isinstance(module, nn.Linear) and norm is not None and _is_same(given, norm.output):
                self._ending = norm, module, made
                return
            read = self.at(given, 1) if given.shape == made.shape else None
            call = _Call(read, self.at(made, 1), _rounding(made))
            self._calls.setdefault(name, []).append(call)
            if is_norm and read is not None:
                self._norm = _Ending(module, (read, call.made), made)

        return keep

    def at(self, tensor: Tensor, axis: int = 2) -> Tensor:
        """The queries that are asked for, float64, in memory of their own."""
        if self._query is not None:
            tensor = tensor.narrow(axis, self._query % tensor.shape[axis], 1)
        return tensor.detach().to(torch.float64, copy=True)

    def ending(self, output: object) -> tuple[_Ending, nn.Linear]:
        """The last norm and the unembedding that reads it."""
        if self._ending is None and self._short is not None:
            raise SelectionError(
                "logits.query", f"query must be one of {self._short} positions; got {self._query}."
            )
        reason = "no linear layer read the output of a norm"
        if self._ending is not None:
            norm, linear, made = self._ending
            leaves = [each for each in _pytree.tree_leaves(output) if isinstance(each, Tensor)]
            same = [each for each in leaves if each.shape == made.shape]
            if any(torch.equal(each.double(), made.double()) for each in same):
                return norm, linear
            reason = (
                "the output of the model is another than that of the last linear layer behind a norm, as with a "
                "softcap"
            )
        raise UnsupportedError(
            "logits.unembedding",
            f"a logit of {type(self._model).__name__} is no sum of what its heads add: {reason}.",
        )

    def places(self, layers: Sequence[str]) -> list[int]:
        """The positions of the queries; from here on the layers are in the order that they ran in."""
        assert self._norm is not None
        finished = {name: at for at, name in enumerate(self._calls)}
        self.order = sorted(layers, key=lambda path: finished.get(_parent(path), -1))
        length = self._norm.output.shape[1]
        return list(range(length)) if self._query is None else [self._query % length]

    def check_block(self, path: str, heads: Tensor, before: Tensor | None) -> Tensor:
        """Return the stream behind a block, which must be the stream before it, what its heads add, and at most
        the output of one more of its modules."""
        block = _parent(path)
        calls = self._calls.get(block, []) if path else []
        if len(calls) != 1 or calls[0].given is None or heads.shape != calls[0].made.shape:
            raise _no_stream(path, "it is not in a block that reads the stream and gives it")
        given, made, rounding = calls[0]
        assert given is not None
        if before is not None and not torch.equal(before, given):
            raise _no_stream(path, "its block reads something else than the one before gives")
        parts = [torch.zeros_like(made)]
        for name, some in self._calls.items():
            if _parent(name) == block and name != block and len(some) == 1:
                parts += [some[0].made] if some[0].made.shape == made.shape else []
        around = given.norm(dim=-1) + heads.norm(dim=-1)
        for part in parts:
            off = (made - given - heads - part).norm(dim=-1)
            if bool((off <= rounding * (around + part.norm(dim=-1))).all()):
                return made
        raise _no_stream(
            path,
            "its block adds something else than its heads' results and the output of one more module, as with a norm "
            "or a factor behind the attention",
        )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _first(tree: object) -> Tensor | None:
    found = (
        each
        for each in _pytree.tree_leaves(tree)
        if isinstance(each, Tensor) and each.is_floating_point()
    )
    return next(found, None)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _rounding(tensor: Tensor) -> float:
    """What sums of a dtype may be off by, as a share of what is added up."""
    return torch.finfo(tensor.dtype).eps * (4 if tensor.element_size() < 4 else 32)


def _frozen(
    module: nn.Module, stream: Tensor, normed: Tensor, rounding: float
) -> tuple[Tensor, Tensor, bool]:
    """What a norm was in a run: its scale, (batch, query_len), its weight, whether it takes the mean away."""
    # Models of float64 work their norms out in float32.
    rounding = max(rounding, _rounding(torch.empty(0, dtype=torch.float32)))
    weight: Any = module.weight
    bias: Any = getattr(module, "bias", None)
    weight = weight.detach().double()
    shift = torch.zeros_like(weight) if bias is None else bias.detach().double()
    made = normed - shift
    for centred in (False, True):
        plain = stream - stream.mean(dim=-1, keepdim=True) if centred else stream
        # Gemma's weight is what is added to one.
        for gain in (weight, weight + 1):
            ready = plain * gain
            scale = (made * ready).sum(dim=-1) / ready.square().sum(dim=-1)
            off = (made - scale[..., None] * ready).norm(dim=-1)
            if bool((off <= rounding * (made.norm(dim=-1) + shift.norm())).all()):
                return scale, gain, centred
    raise UnsupportedError(
        "logits.unembedding",
        f"a logit is no sum of what heads add: the last norm, {type(module).__name__}, is no LayerNorm or RMSNorm.",
    )


def _numbers(name: str, given: Any) -> Any:
    """A number of a logit, or one for each sample; None for none where that may be."""
    if given is None and name == "against":
        return None
    if isinstance(given, Tensor):
        some = as_ints(given.tolist()) if given.ndim == 1 else None
        if some is not None:
            return some
        given = as_int(given.item()) if given.ndim == 0 else given
    number = as_int(given)
    if number is None:
        raise ArgumentTypeError(
            "logits.target",
            f"{name} must be the number of a logit, or a tensor of one for each sample; got {shown(given)}.",
        )
    return number


def _picked(name: str, given: Any, batch: int, size: int) -> Tensor:
    """The rows of the unembedding, (batch,)."""
    every = given if isinstance(given, tuple) else (given,) * batch
    if len(every) != batch or not all(0 <= each < size for each in every):
        raise ArgumentError(
            "logits.target",
            f"{name} must be from 0 to {size - 1}, or one such number for each of {batch} samples; got {shown(given)}.",
        )
    return torch.tensor(every)


def _no_stream(path: str, reason: str) -> UnsupportedError:
    return UnsupportedError(
        "logits.stream",
        f"what {shown(path) if path else 'the model'} adds to a logit is not known: {reason}.",
    )
