"""A training script, and copies of it to call, to train and to save."""

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from clearhead._text import raised_words, shown
from clearhead.checking.subject.copying import duplicate, held_by
from clearhead.errors import ArgumentTypeError, ModelError
from clearhead.recording.attempt import attempt

FUNCTIONS = ("loss", "save", "load", "accumulate")


@dataclass(frozen=True)
class Script:
    """A training script with its declarations; `check_training` documents each of them.

    Attributes:
        parts: model, loss, optimizer, state, save, load, accumulate; copied together, so that
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
        """The tensors of the batch by name, {"ids": batch} for a batch that is the ids; other values are left out."""
        given = {"ids": self.batch} if self.ids is None else self.batch
        return {name: entry for name, entry in given.items() if isinstance(entry, Tensor)}

    @property
    def tokens(self) -> dict[str, Tensor]:
        """The entries of tokens or labels: integers with one or two axes that are neither a mask nor document numbers.

        An entry of two axes with at most two values counts as a mask, unless it is the predicted one.
        """
        return {
            name: entry
            for name, entry in self.entries.items()
            if name not in (self.padding, self.documents)
            and is_whole(entry)
            and entry.ndim in (1, 2)
            and (name == self.ids or entry.unique().numel() > 2 or entry.ndim == 1)
        }

    @property
    def text(self) -> Tensor:
        """The tokens that are predicted, (batch, tokens)."""
        return self.entries[self.name]

    def with_entries(self, **changed: Tensor) -> "Script":
        """Return the script with a copy of its batch, in which the given entries are replaced.

        All tensors are cloned.
        """
        entries = {name: entry.clone() for name, entry in {**self.entries, **changed}.items()}
        if self.ids is None:
            return replace(self, batch=entries["ids"])
        batch = copy.copy(self.batch)
        batch.update(entries)
        return replace(self, batch=batch)

    def samples(self, rows: Tensor) -> "Script":
        """Return the script with the samples at these row indices; entries of another first size are kept whole."""
        size, entries = len(self.text), self.entries.items()
        return self.with_entries(**{n: e[rows] for n, e in entries if e.ndim and len(e) == size})

    def real(self, tokens: Tensor) -> Tensor:
        """Return bool, True at the tokens of an entry that are not padding.

        All True without declared padding, or if the padding mask has another shape than `tokens`.
        """
        if isinstance(self.padding, str):
            mask = self.entries[self.padding]
            if mask.shape == tokens.shape:
                return mask.bool()
        elif self.padding is not None:
            return tokens != self.padding
        return torch.ones_like(tokens, dtype=torch.bool)


@dataclass(frozen=True)
class LossCall:
    """One call of the loss, and the last call of the model in it.

    Attributes:
        loss: a tensor without axes, with its graph.
        output: the logits that the loss read, with their graph, (batch, tokens, vocabulary) or (batch, classes); None
            if the loss did not call the model, or it returned none.
        inputs: the arguments and keywords of the model; empty if it was not called.
    """

    loss: Tensor
    output: Tensor | None
    inputs: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def logits(self) -> Tensor | None:
        """The logits without their graph; None if there are none."""
        return None if self.output is None else self.output.detach()


class Rehearsal:
    """Copies of the parts of a script, without gradients; the script itself does not change.

    Raises ModelError, code `trains.copy`, if a part cannot be copied. The model copy is in eval mode unless `training`.
    """

    def __init__(self, script: Script, *, training: bool = False) -> None:
        self.script, parts = script, dict(script.parts)
        parts["generators"] = [
            generator
            for name in FUNCTIONS
            for generator in held_by(parts[name], torch.Generator).values()
        ]
        copied, error = attempt(duplicate, parts)
        if error is not None:
            words = f"the laws train a copy, and the script cannot be copied: {raised_words(error)}"
            raise ModelError("trains.copy", words) from error
        assert copied is not None
        self.parts: dict[str, Any] = copied
        self.model: nn.Module = copied["model"]
        self.optimizer: torch.optim.Optimizer = copied["optimizer"]
        self.state: dict[str, Any] = copied["state"]
        self.model.train(training)

    def call(self, script: Script | None = None, *, seed: int | None = 0) -> LossCall:
        """Call the loss on a copy of the batch of a script (None: the own one), and return what it computed.

        Python's and PyTorch's global generators and those of the script are seeded, unless the seed is None. Raises
        ArgumentTypeError, code `trains.loss`, unless the loss is a tensor of one number.
        """
        draw_by(seed, *self.parts["generators"], *self.state.values())
        script, calls = script or self.script, list[Any]()
        handle = self.model.register_forward_hook(
            lambda module, *call: calls.append(call), with_kwargs=True
        )
        try:
            loss = self.parts["loss"](self.model, script.with_entries().batch)
        finally:
            handle.remove()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ArgumentTypeError(
                "trains.loss",
                f"loss(model, batch) must return one number as a tensor; got {shown(got)}.",
            )
        arguments, keywords, output = calls[-1] if calls else ((), {}, None)
        return LossCall(loss.reshape(()), logits_of(output), (arguments, keywords))

    def step(self, *, seed: int | None = None) -> float:
        """Make one step of training, as a loop with zero_grad, backward and optimizer.step does, and return its loss.

        Schedulers in the state make a step, and a GradScaler scales the loss. Generators are not seeded if the seed is
        None. Raises as `call` does.
        """
        scalers = [part for part in self.state.values() if isinstance(part, torch.amp.GradScaler)]
        self.optimizer.zero_grad()
        loss = self.call(seed=seed).loss
        if scalers:
            scalers[0].scale(loss).backward()
            scalers[0].step(self.optimizer)
            scalers[0].update()
        else:
            loss.backward()
            self.optimizer.step()
        for part in self.state.values():
            if isinstance(part, ReduceLROnPlateau):
                part.step(loss.detach())
            elif isinstance(part, LRScheduler):
                part.step()
        return loss.item()

    def gradient(self) -> Tensor:
        """Return the gradients of all parameters as one float64 vector; 0 for a parameter without one."""
        pairs = ((parameter, parameter.grad) for parameter in self.model.parameters())
        filled = [torch.zeros_like(one) if grad is None else grad for one, grad in pairs]
        return torch.cat([grad.flatten().double() for grad in filled])

    def saved(self) -> Any:
        """Return a deep copy of what the script's `save` returns.

        Without it: (states of all parts, state of PyTorch's generator, state of Python's generator).
        """
        if (save := self.parts["save"]) is not None:
            return copy.deepcopy(save(self.model, self.optimizer, **self.state))
        return copy.deepcopy((self.states(), torch.get_rng_state(), random.getstate()))

    def load(self, saved: Any) -> None:
        """Load what `saved` returned into the copies.

        Without the script's `load`, the global generators are set too.
        """
        if (load := self.parts["load"]) is not None:
            load(saved, self.model, self.optimizer, **self.state)
            return
        states, torch_state, python_state = saved
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        for name, part in self._stateful().items():
            put = part.set_state if isinstance(part, torch.Generator) else part.load_state_dict
            put(states[name])

    def states(self) -> dict[str, Any]:
        """Return the states of the model ("model"), the optimizer ("optimizer") and the named parts, by name.

        Not copied.
        """
        return {
            name: part.get_state() if isinstance(part, torch.Generator) else part.state_dict()
            for name, part in self._stateful().items()
        }

    def _stateful(self) -> dict[str, Any]:
        """Return the objects with a state by name: model, optimizer and the declared parts."""
        return {"model": self.model, "optimizer": self.optimizer, **self.state}


def draw_by(seed: int | None, *held: Any) -> None:
    """Seed the global generators of PyTorch and Python, and the torch.Generators among `held`; None seeds nothing."""
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
        for part in held:
            if isinstance(part, torch.Generator):
                part.manual_seed(seed)


def same(one: Any, other: Any) -> bool:
    """Return True if two nested states are equal bit for bit; tensors with NaN are not, functions always are."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or callable(one))


def is_whole(tensor: Tensor) -> bool:
    """Return True if a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a model's output, (…, …) or (…, …, …) of floats; None without them.

    They are the tensor itself, its entry or attribute `logits`, or the first tensor of a tuple with two axes or more.
    """
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, list | tuple):
        output = next((x for x in output if isinstance(x, Tensor) and x.ndim > 1), None)
    logits = getattr(output, "logits", output)
    right = isinstance(logits, Tensor) and logits.ndim in (2, 3) and logits.is_floating_point()
    return logits if right else None
