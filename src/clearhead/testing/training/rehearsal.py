"""A training script on copies: its loss, its steps, and what they show of the model."""

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from clearhead._common.text import raised_words, shown
from clearhead.checking.subject.copying import duplicate, held_by
from clearhead.errors import ArgumentTypeError, ModelError

# Of the gradient of a cross-entropy the target has a half; a little less where labels are smoothed.
SHARE = 0.45


@dataclass(frozen=True)
class Script:
    """A training script, and what is declared of it; `assert_trains` says what each means.

    Attributes:
        parts: model, loss, optimizer, state, save, load, accumulate, generate; copied as one, so that
            what holds on to another still does.
        batch: as it was given.
        ids: the entry whose tokens are predicted; None for a batch that is these ids.
    """

    parts: Mapping[str, Any]
    batch: Any
    ids: str | None
    causal: bool
    padding: str | int | None
    documents: str | int | None

    @property
    def entries(self) -> dict[str, Tensor]:
        """The tensors of the batch by their names."""
        given = {"ids": self.batch} if self.ids is None else self.batch
        return {name: each for name, each in given.items() if isinstance(each, Tensor)}

    @property
    def tokens(self) -> dict[str, Tensor]:
        """The entries that hold tokens or labels: whole numbers that are no mask and no documents."""
        return {
            name: each
            for name, each in self.entries.items()
            if name not in (self.padding, self.documents)
            and not each.dtype.is_floating_point
            and each.ndim in (1, 2)
            and (name == self.ids or each.unique().numel() > 2 or each.ndim == 1)
            and each.dtype != torch.bool
        }

    @property
    def text(self) -> Tensor:
        """The tokens that are predicted, (batch, tokens)."""
        return self.entries[self.ids or "ids"]

    def with_entries(self, **changed: Tensor) -> Any:
        """The batch with other tensors in the place of some; copies, which a loss may write to."""
        whole = {name: each.clone() for name, each in {**self.entries, **changed}.items()}
        if self.ids is None:
            return whole["ids"]
        made = copy.copy(self.batch)
        made.update(whole)
        return made

    def real(self, tokens: Tensor) -> Tensor:
        """True where a token of an entry of this shape is no padding."""
        if isinstance(self.padding, str):
            mask = self.entries[self.padding]
            if mask.shape == tokens.shape:
                return mask.bool()
        elif self.padding is not None:
            return tokens != self.padding
        return torch.ones_like(tokens, dtype=torch.bool)

    def document(self) -> Tensor | None:
        """For each token the number of its document in the row; None if none are declared."""
        if self.documents is None or isinstance(self.documents, str):
            return None if self.documents is None else self.entries[self.documents]
        ends = (self.text == self.documents).long()
        return ends.cumsum(-1) - ends


@dataclass(frozen=True)
class LossCall:
    """One call of the loss, the output of the model in it, and what the model was called with.

    Attributes:
        loss: one number.
        output: the logits as the loss went by them, with their graph; None if there are none.
        logits: the same without a graph, (batch, tokens, vocabulary) or (batch, classes).
        arguments, keywords: of the model.
    """

    loss: Tensor
    output: Tensor | None
    logits: Tensor | None
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(frozen=True)
class Targets:
    """The tokens that a loss asks for, as its gradient with respect to the logits says.

    The gradient of a cross-entropy is weight · (softmax − target): the target alone is below zero.

    Attributes:
        ids: the target of each row of logits.
        weights: the weight of each row; 0 where it has no target.
        plain: whether it is the cross-entropy of the softmax, and nothing else of the logits.
    """

    ids: Tensor
    weights: Tensor
    plain: bool

    @property
    def used(self) -> Tensor:
        return self.weights > 0


def targets(seen: LossCall) -> Targets | None:
    """Read the targets of a call; None if its loss is no cross-entropy of the logits."""
    if seen.output is None or seen.logits is None:
        return None
    if not seen.output.requires_grad or not seen.loss.requires_grad:
        return None
    (found,) = torch.autograd.grad(seen.loss, seen.output, retain_graph=True, allow_unused=True)
    if found is None:
        return None
    logits = seen.logits.double()
    rows = found.detach().double().view_as(logits)
    size = rows.abs().sum(-1)
    used = size > 1e-6 * size.max()
    down, ids = rows.min(-1)
    clear = -down >= SHARE * size
    if not used.any() or clear[used].double().mean() < 0.99:
        return None
    left = 1 - logits.softmax(-1).gather(-1, ids[..., None])[..., 0].clamp_max(1 - 1e-12)
    plain = bool((rows.sum(-1).abs() <= 1e-3 * size)[used].all())
    if not plain and logits.logsumexp(-1).abs().max() < 1e-3:
        # The model takes the logarithm of the softmax itself, and the loss picks from it.
        left, plain = torch.ones_like(left), True
    return Targets(ids, torch.where(used, -down / left, 0.0), plain)


class Rehearsal:
    """Copies of a script, to call and to train; the script itself is left as it is."""

    def __init__(self, script: Script, *, training: bool = False) -> None:
        self.script = script
        parts = dict(script.parts)
        parts["generators"] = {
            f"{part}.{name}": each
            for part in ("loss", "accumulate", "generate", "save", "load")
            for name, each in held_by(parts[part], torch.Generator).items()
        }
        try:
            made = duplicate(parts)
        except Exception as error:
            raise ModelError(
                "trains.copy",
                f"a rehearsal trains a copy, and the script could not be copied: {raised_words(error)}",
            ) from error
        self.model: nn.Module = made["model"]
        self.optimizer: torch.optim.Optimizer = made["optimizer"]
        self.state: dict[str, Any] = made["state"]
        self._made = made
        pairs = zip(script.parts["model"].parameters(), self.model.parameters(), strict=True)
        for mine, copied in pairs:
            copied.grad = None if mine.grad is None else mine.grad.detach().clone()
        self.model.train(training)

    def call(self, batch: Any = None, *, seed: int | None = 0) -> LossCall:
        """Call the loss; what is drawn in it hangs on the seed alone, or goes on without one."""
        draw_by(seed)
        for each in [*self._made["generators"].values(), *self.state.values()]:
            if seed is not None and isinstance(each, torch.Generator):
                each.manual_seed(seed)
        batch = self.script.with_entries() if batch is None else batch
        with self.listening() as calls:
            loss = self._made["loss"](self.model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ArgumentTypeError(
                "trains.loss",
                f"loss(model, batch) must return one number as a tensor; got {shown(got)}.",
            )
        arguments, keywords, output = calls[-1] if calls else ((), {}, None)
        logits = found = logits_of(output)
        if logits is not None and found is not None:
            samples = len(batch if self.script.ids is None else batch[self.script.ids])
            logits = found.detach()
            if self.script.causal and logits.ndim == 2 and len(logits) > samples:
                # All tokens of the batch in one axis, as a loss likes them.
                logits = logits.unflatten(0, (samples, -1)) if len(logits) % samples == 0 else None
        return LossCall(loss.reshape(()), found, logits, arguments, keywords)

    @contextmanager
    def listening(self) -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any], Any]]]:
        """Arguments, keywords and output of each call of the model."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []

        def hear(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls.append((args, kwargs, output))

        handle = self.model.register_forward_hook(hear, with_kwargs=True)
        try:
            yield calls
        finally:
            handle.remove()

    def step(self, *, seed: int | None = None) -> float:
        """One step of training: the loss, its gradients, the optimizer, its schedulers."""
        scalers = [each for each in self.state.values() if isinstance(each, torch.amp.GradScaler)]
        self.optimizer.zero_grad()
        loss = self.call(seed=seed).loss
        if scalers:
            scalers[0].scale(loss).backward()
            scalers[0].step(self.optimizer)
            scalers[0].update()
        else:
            loss.backward()
            self.optimizer.step()
        for each in self.state.values():
            if isinstance(each, ReduceLROnPlateau):
                each.step(loss.detach())
            elif isinstance(each, LRScheduler):
                each.step()
        return loss.item()

    def accumulated(self, batches: list[Any]) -> None:
        """Run the backward passes of several batches, as the script does."""
        draw_by(0)
        self._made["accumulate"](self.model, batches)

    def generated(self, batch: Any, tokens: int) -> Any:
        """Tokens that the script adds to a batch of prompts."""
        draw_by(0)
        return self._made["generate"](self.model, batch, tokens)

    def saved(self) -> Any:
        """All that the script saves; without a function of its own, the state of all that it named."""
        own: Callable[..., Any] | None = self._made["save"]
        if own is not None:
            return copy.deepcopy(own(self.model, self.optimizer, **self.state))
        drawn = torch.get_rng_state(), random.getstate()
        return copy.deepcopy((self.states(), drawn))

    def load(self, saved: Any) -> None:
        """Go on from what was saved, in what stands for a new process."""
        own: Callable[..., Any] | None = self._made["load"]
        if own is not None:
            own(saved, self.model, self.optimizer, **self.state)
            return
        states, drawn = saved
        torch.set_rng_state(drawn[0])
        random.setstate(drawn[1])
        for name, each in self._stateful().items():
            put = each.set_state if isinstance(each, torch.Generator) else each.load_state_dict
            put(states[name])

    def states(self) -> dict[str, Any]:
        """The state of the model, of the optimizer and of what else the script named."""
        return {
            name: each.get_state() if isinstance(each, torch.Generator) else each.state_dict()
            for name, each in self._stateful().items()
        }

    def _stateful(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, **self.state}


def draw_by(seed: int | None) -> None:
    """Seed what is drawn by the generators of PyTorch and of Python."""
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)


def same(one: Any, other: Any) -> bool:
    """Return True if two states hold the same, bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or callable(one))


def logits_of(output: Any) -> Tensor | None:
    """The logits of what a model returns: the tensor, what is called so, or the first that may be."""
    if isinstance(output, Tensor):
        found = output
    elif isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, list | tuple):
        of = (each for each in output if isinstance(each, Tensor) and each.ndim > 1)
        found = next(of, None)
    else:
        found = None
    right = isinstance(found, Tensor) and found.ndim in (2, 3) and found.is_floating_point()
    return found if right else None
