"""The residual stream of one run: the inputs and outputs of blocks, last norm and unembedding."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from clearhead._common.checks import arguments_of, as_int, as_place
from clearhead._text import shown
from clearhead.errors import ArgumentTypeError, SelectionError, UnsupportedError
from clearhead.layers.converting.weights import weights_of, without_accelerate
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_results import HeadResults
from clearhead.watching.projections import output_projection
from clearhead.watching.watch import watch


def check_asked(model: object, query: object) -> None:
    """Raise ArgumentTypeError unless model is a module, SelectionError unless query is a whole number or None."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            "logits.model", f"model must be a torch.nn.Module; got {shown(model)}."
        )
    if query is not None and as_int(query) is None:
        raise SelectionError(
            "logits.query",
            f"query must be the number of a position, or None for all; got {shown(query)}.",
        )


def called(model: nn.Module, inputs: object) -> Any:
    """Return the output of a model for a mapping of named arguments, a tuple, or one tensor.

    Gradients are on or off as they are. Raises ArgumentTypeError, code `inputs.type`, for other inputs.
    """
    given, named = arguments_of(inputs)
    return model(*given, **named)


class BlockCall(NamedTuple):
    """Input (None if of another shape) and output of a module's call, at the requested queries, and its rounding."""

    given: Tensor | None
    made: Tensor
    rounding: float


class Ending(NamedTuple):
    """A norm, by its path, with input and output at the requested queries (`call`, float64), and its whole output."""

    path: str
    module: nn.Module
    call: tuple[Tensor, Tensor]
    output: Tensor


class FrozenNorm(NamedTuple):
    """A norm with frozen statistics: scale (batch, query_len) · gain (embed_dim,) · x, of x − mean(x) if centred."""

    scale: Tensor
    gain: Tensor
    centred: bool

    def of(self, results: HeadResults) -> HeadResults:
        """Return the norm of each head's results, as results without a bias; they sum to the norm of the heads' sum."""
        weight = results.weight
        if self.centred:
            weight = weight - weight.mean(dim=1, keepdim=True)
        weight = (weight * self.gain[:, None]).transpose(0, 1).flatten(1)
        return HeadResults(results.context * self.scale[:, None, :, None], weight, None)


class StreamRun:
    """One run of a model, without gradients: the inputs and outputs of its modules.

    Attributes:
        seen: the contexts of the layers.
        output: what the model returned.
        ending: the last norm, the unembedding that reads it, and its output; None if there is none.
        places: the positions of the queries.
        order: the layers on the stream, as they ran.

    Raises:
        SelectionError: code `logits.query`, for a query that the tokens do not have.
    """

    ending: tuple[Ending, nn.Module, Tensor] | None = None

    def __init__(self, model: nn.Module, inputs: object, query: int | None) -> None:
        """Run the model; `query` is the requested position, negative from the end, or None for all."""
        self._model, self._query = model, query
        self._calls: dict[str, list[BlockCall]] = {}
        self._norm: Ending | None = None
        self._before: tuple[str, Tensor] | None = None
        with torch.no_grad(), watch(model, keep="contexts") as self.seen, ExitStack() as hooks:
            for name, module in model.named_modules():
                hook = module.register_forward_hook(self._hook(name), with_kwargs=True)
                hooks.enter_context(hook)
            self.output = called(model, inputs)
        self.places: list[int] = []
        self.order: list[str] = []
        if self.ending is not None:
            norm, _, made = self.ending
            length = made.shape[1]
            if query is not None and as_place(query, length) is None:
                raise SelectionError(
                    "logits.query", f"query must be one of {length} positions; got {query}."
                )
            self.places = list(range(length)) if query is None else [query % length]
            finished = {name: at for at, name in enumerate(self._calls)}
            layers = sorted(self.seen.layers, key=lambda path: finished.get(parent_of(path), -1))
            self.order = self._of_stream(layers, norm.path)

    def _hook(self, name: str) -> Any:
        """Return a forward hook that stores the input and output of the module `name` if they may be a stream.

        It also stores the last norm, and the linear layer that reads it.
        """

        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            """Store input and output of a call; no-op unless a tensor was given and the output has three dimensions."""
            made = _first(output)
            given = _first(args)
            given = _first(kwargs) if given is None else given
            if given is None or made is None or made.ndim != 3:
                return
            norm = self._norm
            is_linear = hasattr(module, "in_features")
            if is_linear and norm is not None and _is_same(given, norm.output):
                self.ending = norm, module, made
                return
            read = self.at(given, 1).clone() if given.shape == made.shape else None
            call = BlockCall(read, self.at(made, 1).clone(), rounding_of(made))
            self._calls.setdefault(name, []).append(call)
            if is_norm(module) and read is not None:
                self._norm = Ending(name, module, (read.double(), call.made.double()), made)

        return keep

    def at(self, tensor: Tensor, axis: int = 2) -> Tensor:
        """Return a detached view of a tensor at the requested query, along `axis`; of all if none was requested."""
        if self._query is not None:
            tensor = tensor.narrow(axis, self._query % tensor.shape[axis], 1)
        return tensor.detach()

    def _of_stream(self, layers: Sequence[str], norm: str) -> list[str]:
        """Return the layers of the part of the model that has the last norm (by path), without a vision tower.

        All of them where the first of that part reads what another one gives.
        """
        part = norm
        while part and not any(path.startswith(f"{part}.") for path in layers):
            part = parent_of(part)
        inside = [path for path in layers if not part or path.startswith(f"{part}.")]
        blocks = {path: self._calls.get(parent_of(path), []) for path in layers}
        given = [each.given for path in inside[:1] for each in blocks[path]]
        made = [each.made for path in blocks.keys() - inside for each in blocks[path]]
        goes_on = any(a is not None and torch.equal(a, b) for a in given for b in made)
        return list(layers) if goes_on else inside

    def follow(self, path: str) -> tuple[Tensor, Tensor, float]:
        """Return the stream before and after the block around a layer, at the run's queries, float64, and a tolerance.

        The tolerance is `rounding_of` the output. Stores the output; UnsupportedError, `logits.stream`, unless the
        block ran once, on the output stored before, if any.
        """
        block = parent_of(path)
        calls = self._calls.get(block, []) if path else []
        given, made, rounding = calls[0] if len(calls) == 1 else (None, None, 0.0)
        before, last = self._before or ("", None)
        if made is None:
            reason = f"ran {len(calls)} times with a tensor of (batch, tokens, width) as its output"
        elif given is None:
            reason = f"gives another shape than it reads, {tuple(made.shape)}"
        elif last is None or torch.equal(last, given.double()):
            self._before = block, made.double()
            return given.double(), self._before[1], rounding
        else:
            reason = f"reads something else than {shown(before)} gives"
        raise no_stream(path, f"its block {shown(block or 'the model')} {reason}")

    def check_end(self, last: Tensor) -> None:
        """Raise UnsupportedError, code `logits.stream`, unless `last` is the output of the last block."""
        if self._before is None or not torch.equal(self._before[1], last):
            before = "any block" if self._before is None else shown(self._before[0])
            raise no_stream("", f"the last norm reads something else than {before} gives")

    def added(self, path: str, results: HeadResults) -> HeadResults:
        """Return what each head of a block adds to the stream: its results, after a norm if one reads their sum.

        UnsupportedError unless the block adds that and at most one module's output; calls `follow`.
        """
        block, (given, made, rounding) = parent_of(path), self.follow(path)
        heads = results.total()
        if heads.shape != made.shape:
            sizes = tuple(heads.shape), tuple(made.shape)
            raise no_stream(path, f"its heads add {sizes[0]} and its block gives {sizes[1]}")
        parts = {"": torch.zeros_like(made)}
        attention = [each.made for each in self._calls.get(path, ())]
        for name, ((read, part, _), *more) in self._calls.items():
            if name == block or parent_of(name) != block or more or part.shape != made.shape:
                continue
            parts[name.removeprefix(f"{block}.")] = part
            module = self._model.get_submodule(name)
            if is_norm(module) and any(
                read is not None and torch.equal(read, a) for a in attention
            ):
                results = frozen(module, heads, part.double(), rounding).of(results)
                heads = part.double()
        around = given.norm(dim=-1) + heads.norm(dim=-1)
        for part in parts.values():
            size = around + part.double().norm(dim=-1)
            off = (made - given - heads - part.double()).norm(dim=-1)
            if bool((off <= rounding * size).all()):
                return results
        raise no_stream(
            path,
            "its block gives something else than what it reads, its heads' results and the output of at most "
            f"one of its modules ({', '.join(filter(None, parts))})",
        )


class EndedRun:
    """One run of a model, with its last norm and its unembedding.

    Attributes:
        norm: the last norm as it was, at the requested queries.
        normed: what it gave there, (batch, query_len, embed_dim); float64.
        weight, bias: of the linear layer that reads it.
        places: the positions of these queries.

    Raises:
        SelectionError: code `logits.query`, as `StreamRun`.
        UnsupportedError: code `logits.unembedding`, unless the output is that of a linear layer after a norm.
    """

    def __init__(self, model: nn.Module, inputs: object, query: int | None) -> None:
        """Run the model, and read its last norm and its unembedding; arguments as of `StreamRun`."""
        self._model, self._run = model, StreamRun(model, inputs, query)
        ending, unembedding, made = _checked_ending(model, self._run)
        self._stream, self.normed = ending.call
        self.places = self._run.places
        rounding = rounding_of(ending.output)
        self.norm = frozen(ending.module, self._stream, self.normed, rounding)
        read = weights_of(unembedding)
        if isinstance(read, str):
            raise _no_logits(model, f"its unembedding {read}")
        self.weight, self.bias = read
        x, kind = self.normed[:, :1].to(self.weight), type(unembedding)
        off = (nn.functional.linear(x, *read) - self._run.at(made, 1)[:, :1]).norm()
        if not off <= rounding * x.norm() * self.weight.norm():
            name, share = f"{kind.__module__}.{kind.__name__}", float(off / made.norm())
            raise _no_logits(
                model, f"its unembedding, a {name}, rounds: a logit is off by {share:.2g}"
            )

    def layers(self) -> Iterator[tuple[str, tuple[int, ...], HeadResults]]:
        """Yield the layers of the stream: path, numbers of the heads, and the last norm of what they added, float64.

        Raises:
            UnsupportedError: codes `logits.stream` and `norms.projection`.
        """
        for path in self._run.order:
            kept = self._run.seen[path]
            context = self._run.at(kept.context).double()
            projection = output_projection(self._model, path, kept, context.shape[-1])
            added = self._run.added(path, HeadResults(context, *projection))
            yield path, numbers_of_heads(kept), self.norm.of(added)
        self._run.check_end(self._stream)


def _checked_ending(model: nn.Module, run: StreamRun) -> tuple[Ending, nn.Module, Tensor]:
    """Return the last norm, the unembedding, and its output; UnsupportedError unless the model returns that."""
    ending = run.ending
    reason = "no linear layer read the output of a norm"
    if ending is not None:
        norm, linear, made = ending
        same = [each for each in tensors_in(run.output) if each.shape == made.shape]
        if any(bool((each == made).all()) for each in same):
            return ending
        reason = (
            f"no output of the model is that of the {type(linear).__name__} that reads its last norm, "
            f"{shown(norm.path)}; " + ("its numbers are others" if same else "none has its shape")
        )
    raise _no_logits(model, reason)


def _no_logits(model: nn.Module, reason: str) -> UnsupportedError:
    """Return the UnsupportedError, code `logits.unembedding`, for a model and the reason against it."""
    return UnsupportedError(
        "logits.unembedding",
        f"a logit of {type(model).__name__} is no sum of what its heads add: {reason}.",
    )


def parent_of(path: str) -> str:
    """Return the path of the module that holds a module; "" for the model."""
    return path.rpartition(".")[0]


def tensors_in(tree: object) -> list[Tensor]:
    """Return the tensors among arguments or outputs, in order; [] if there are none."""
    return [each for each in _pytree.tree_leaves(tree) if isinstance(each, Tensor)]


def _first(tree: object) -> Tensor | None:
    """Return the first floating-point tensor of arguments or outputs; None if there is none."""
    first = tree[0] if isinstance(tree, tuple) and tree else tree
    if isinstance(first, Tensor) and first.is_floating_point():  # as nearly always
        return first
    return next((each for each in tensors_in(tree) if each.is_floating_point()), None)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and share their memory."""
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


def is_norm(module: nn.Module) -> bool:
    """Return True if the weight of a module is a vector, as that of LayerNorm and RMSNorm."""
    return getattr(getattr(module, "weight", None), "ndim", 0) == 1


def rounding_of(tensor: Tensor) -> float:
    """Return the relative rounding error of sums in the dtype of a tensor."""
    return torch.finfo(tensor.dtype).eps * (4 if tensor.element_size() < 4 else 32)


def frozen(module: nn.Module, stream: Tensor, normed: Tensor, rounding: float) -> FrozenNorm:
    """Return a norm with the statistics of a run, from its input and output there.

    Raises:
        UnsupportedError: code `logits.unembedding`, for another kind of norm.
    """
    # Models of float64 work their norms out in float32.
    rounding = max(rounding, rounding_of(torch.empty(0, dtype=torch.float32)))
    norm: Any = without_accelerate(module)
    weight, bias = norm.weight, getattr(norm, "bias", None)
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
                return FrozenNorm(scale, gain, centred)
    raise UnsupportedError(
        "logits.unembedding",
        f"a logit is no sum of what heads add: the norm {type(module).__name__} is no LayerNorm or RMSNorm.",
    )


def no_stream(path: str, reason: str) -> UnsupportedError:
    """Return the UnsupportedError, code `logits.stream`, for a layer, or "" for the model."""
    return UnsupportedError(
        "logits.stream",
        f"what {shown(path) if path else 'the model'} adds to a logit is not known: {reason}.",
    )
