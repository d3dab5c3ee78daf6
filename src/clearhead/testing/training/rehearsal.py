"""A training script on copies: its loss, its steps, its state."""

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from clearhead._text import raised_words, shown
from clearhead.checking.subject.copying import duplicate, held_by
from clearhead.errors import ArgumentTypeError, ModelError


@dataclass(frozen=True)
class Script:
    """A training script, and what is declared of it; `check_training` says what each means.

    Attributes:
        parts: model, loss, optimizer, state, save, load, accumulate, generate; copied together, so that
            references between them are kept.
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
    def name(self) -> str:
        """The name of the entry whose tokens are predicted."""
        return self.ids or "ids"

    @property
    def entries(self) -> dict[str, Tensor]:
        """The tensors of the batch by their names."""
        given = {"ids": self.batch} if self.ids is None else self.batch
        return {name: each for name, each in given.items() if isinstance(each, Tensor)}

    @property
    def tokens(self) -> dict[str, Tensor]:
        """The entries of tokens or labels: integers that are neither a mask nor documents."""
        return {
            name: each
            for name, each in self.entries.items()
            if name not in (self.padding, self.documents)
            and is_whole(each)
            and each.ndim in (1, 2)
            and (name == self.ids or each.unique().numel() > 2 or each.ndim == 1)
        }

    @property
    def text(self) -> Tensor:
        """The tokens that are predicted, (batch, tokens)."""
        return self.entries[self.name]

    @property
    def aligned(self) -> dict[str, Tensor]:
        """The entries with the shape of the text."""
        return {n: each for n, each in self.entries.items() if each.shape == self.text.shape}

    def with_entries(self, **changed: Tensor) -> Any:
        """A copy of the batch with other entries."""
        entries = {name: each.clone() for name, each in {**self.entries, **changed}.items()}
        if self.ids is None:
            return entries["ids"]
        made = copy.copy(self.batch)
        made.update(entries)
        return made

    def having(self, **changed: Tensor) -> "Script":
        """The script with other entries in its batch."""
        return replace(self, batch=self.with_entries(**changed))

    def samples(self, rows: Tensor) -> "Script":
        """The script with some samples of its batch."""
        size = len(self.text)
        entries = self.entries.items()
        return self.having(
            **{n: each[rows] for n, each in entries if each.ndim and len(each) == size}
        )

    def real(self, tokens: Tensor) -> Tensor:
        """True at the tokens of an entry of this shape that are not padding."""
        if isinstance(self.padding, str):
            mask = self.entries[self.padding]
            if mask.shape == tokens.shape:
                return mask.bool()
        elif self.padding is not None:
            return tokens != self.padding
        return torch.ones_like(tokens, dtype=torch.bool)


@dataclass(frozen=True)
class LossCall:
    """One call of the loss, and the call of the model in it.

    Attributes:
        loss: one number.
        output: the logits that the loss read, with their graph; None if there are none.
        logits: the same without a graph, (batch, tokens, vocabulary) or (batch, classes).
        inputs: the arguments and keywords of the model.
    """

    loss: Tensor
    output: Tensor | None
    logits: Tensor | None
    inputs: tuple[tuple[Any, ...], dict[str, Any]]


class Rehearsal:
    """Copies of a script, to call and to train; the script itself does not change."""

    def __init__(self, script: Script, *, training: bool = False) -> None:
        self.script = script
        parts = dict(script.parts)
        parts["generators"] = [
            each
            for part in ("loss", "accumulate", "generate", "save", "load")
            for each in held_by(parts[part], torch.Generator).values()
        ]
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
        for given, copied in pairs:
            copied.grad = None if given.grad is None else given.grad.detach().clone()
        self.model.train(training)

    def call(self, script: Script | None = None, *, seed: int | None = 0) -> LossCall:
        """Call the loss on the batch of a script; generators are seeded unless the seed is None."""
        draw_by(seed, *self._made["generators"], *self.state.values())
        script = script or self.script
        with self.listening() as calls:
            loss = self._made["loss"](self.model, script.with_entries())
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ArgumentTypeError(
                "trains.loss",
                f"loss(model, batch) must return one number as a tensor; got {shown(got)}.",
            )
        arguments, keywords, output = calls[-1] if calls else ((), {}, None)
        output = logits_of(output)
        logits = None if output is None else output.detach()
        samples = len(script.text)
        if script.causal and logits is not None and logits.ndim == 2 and len(logits) > samples:
            # All tokens of the batch in one axis, as cross_entropy takes them.
            logits = logits.unflatten(0, (samples, -1)) if len(logits) % samples == 0 else None
        return LossCall(loss.reshape(()), output, logits, (arguments, keywords))

    @contextmanager
    def listening(self) -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any], Any]]]:
        """Arguments, keywords and output of each call of the model."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        handle = self.model.register_forward_hook(
            lambda module, args, kwargs, output: calls.append((args, kwargs, output)),
            with_kwargs=True,
        )
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

    def run(self, part: str, *arguments: Any) -> Any:
        """Call `accumulate` or `generate` of the script, seeded."""
        draw_by(0)
        return self._made[part](self.model, *arguments)

    def gradient(self) -> Tensor:
        """All gradients in one vector; 0 where there is none."""
        grads = ((each, each.grad) for each in self.model.parameters())
        zeroed = [torch.zeros_like(each) if grad is None else grad for each, grad in grads]
        return torch.cat([each.flatten().double() for each in zeroed])

    def saved(self) -> Any:
        """All that the script saves; without a function for it, the state of all its parts."""
        if (save := self._made["save"]) is not None:
            return copy.deepcopy(save(self.model, self.optimizer, **self.state))
        return copy.deepcopy((self.states(), torch.get_rng_state(), random.getstate()))

    def load(self, saved: Any) -> None:
        """Load what was saved, as a new process does."""
        if (load := self._made["load"]) is not None:
            load(saved, self.model, self.optimizer, **self.state)
            return
        states, torch_state, python_state = saved
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        for name, each in self._stateful().items():
            put = each.set_state if isinstance(each, torch.Generator) else each.load_state_dict
            put(states[name])

    def states(self) -> dict[str, Any]:
        """The state of the model, of the optimizer and of the named parts of the script."""
        return {
            name: each.get_state() if isinstance(each, torch.Generator) else each.state_dict()
            for name, each in self._stateful().items()
        }

    def _stateful(self) -> dict[str, Any]:
        """Return the objects with a state: model, optimizer and those declared."""
        return {"model": self.model, "optimizer": self.optimizer, **self.state}


def draw_by(seed: int | None, *held: Any) -> None:
    """Seed the generators of PyTorch and of Python, and those among `held`; None seeds nothing."""
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
        for each in held:
            if isinstance(each, torch.Generator):
                each.manual_seed(seed)


def same(one: Any, other: Any) -> bool:
    """Return True if two states are equal, bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or callable(one))


def is_whole(tensor: Tensor) -> bool:
    """True if a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def logits_of(output: Any) -> Tensor | None:
    """The logits of what a model returns: the tensor, the entry `logits`, or the first that may be."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, list | tuple):
        several = (each for each in output if isinstance(each, Tensor) and each.ndim > 1)
        output = next(several, None)
    found = getattr(output, "logits", output)
    right = isinstance(found, Tensor) and found.ndim in (2, 3) and found.is_floating_point()
    return found if right else None
