"""The examination of an object that decodes with a cache: reset(), step(x), full(x)."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.contract import Contract
from clearhead.checking.enclosing import duplicate
from clearhead.checking.feeding import feed
from clearhead.checking.matching import distance
from clearhead.checking.notes import Notes
from clearhead.checking.probes import cache
from clearhead.checking.refusals import first_line
from clearhead.checking.report import drawn
from clearhead.checking.subject import Subject
from clearhead.errors import ArgumentTypeError, ModelError

ROPE_NAMES = ("rope", "rotary", "rotat", "inv_freq", "freqs", "cos", "polar")


def examine_decoder(
    subject: Subject, contract: Contract, notes: Notes, seed: int
) -> dict[str, int]:
    """Token by token, in chunks and with a prefill, all against full(x)."""
    for name in ("reset", "step", "full"):
        if not callable(getattr(subject.run, name, None)):
            raise ArgumentTypeError(
                "check.decode",
                f"takes='decode' wants an object with reset(), step(x) and full(x); "
                f"{subject.name} has no {name}.",
            )
    decoder = _Typed(subject.run)
    fed = feed(subject, contract)
    reach = contract.window[0] if contract.window is not None and contract.window[0] else 0
    tokens = max(11, 2 * reach + 7)
    tokens = min(tokens, fed.longest or tokens)
    x = fed.draw(tokens, seed)
    try:
        whole = decoder.full(x)
    except Exception as error:
        raise ModelError(
            "check.call",
            f"{subject.name}.full was called with x {list(x.shape)} and raised "
            f"{type(error).__name__}: {error}",
        ) from error
    wrong: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    for name, chunks in cache.schedules(tokens).items():
        try:
            # A cache that is fresh, since reset() is asked about by itself.
            fresh = _Typed(duplicate(subject.run)) if subject.copied else decoder
            found = cache.stepped(fresh, x, chunks)
        except Exception as error:
            refused[name] = first_line(error)
            continue
        if found.shape != whole.shape or distance(found, whole) > 1e-5:
            wrong[name] = found
    generator = torch.Generator().manual_seed(seed)
    if wrong:
        _judge_wrong(subject, decoder, x, whole, wrong, contract, reach, notes, generator)
    else:
        notes.right("decoding with the cache")
    for name, words in refused.items():
        notes.tell(f"{name} is refused: {words}")
    _judge_reset(subject, decoder, x, contract, notes)
    _judge_full(decoder, x, contract, notes, generator)
    return {"d_in": fed.width}


class _Typed:
    """A decoder that is handed tensors of the dtype of its own weights."""

    def __init__(self, run: Any) -> None:
        self.run = run
        weights = [each for each in _parameters(run) if each.is_floating_point()]
        self.dtype = weights[0].dtype if weights else torch.float64

    def reset(self) -> None:
        self.run.reset()

    def step(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run.step(x.to(self.dtype)).double()

    def full(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run.full(x.to(self.dtype)).double()


def _parameters(run: Any) -> list[Tensor]:
    if isinstance(run, nn.Module):
        return list(run.parameters())
    held = list(vars(run).values()) if hasattr(run, "__dict__") else []
    found = [each for each in held if isinstance(each, Tensor) and each.is_floating_point()]
    for each in held:
        if isinstance(each, nn.Module):
            found += list(each.parameters())
    return found


def _judge_wrong(
    subject: Subject,
    decoder: _Typed,
    x: Tensor,
    whole: Tensor,
    wrong: dict[str, Tensor],
    contract: Contract,
    reach: int,
    notes: Notes,
    generator: torch.Generator,
) -> None:
    """Which of the ways is wrong, from which token on, and what it sees there."""
    name, found = next(iter(wrong.items()))
    chunks = cache.schedules(x.shape[1])[name]
    measured = f"{name} ≠ full: shapes {list(found.shape)} and {list(whole.shape)}"
    first = 0
    if found.shape == whole.shape:
        gap = (found - whole).abs().nan_to_num(torch.inf).amax((0, -1))
        first = int((gap > 1e-6 * whole.abs().max()).nonzero()[0])
        measured = f"{name} ≠ full: by up to {gap.max():.3g}, first at token {first}"
    full = cache.dependency(decoder.full, x, generator)
    steps = cache.dependency(lambda each: cache.stepped(decoder, each, chunks), x, generator)
    measured += f"\n{name} moves with\n{drawn(steps.tolist())}"
    band = 0 if reach else _band(full)
    if (reach or band) and _right_inside(subject, decoder, x[:, : max(reach or band, 2)]):
        notes.found(
            "cache.window",
            "with a window, decoding is wrong only past it: the cache drops keys that are still needed",
            measured,
            "append first, attend then, and drop what no later query sees last; a chunk of n tokens "
            "needs window + n keys",
        )
    elif not torch.equal(full, steps):
        notes.found(
            "cache.offset",
            "with a cache, a query sees other keys than without",
            measured,
            "the mask must count from the cached length: query i of a chunk sits at past_len + i, and "
            "sees keys 0 … past_len + i",
        )
    elif contract.rope is not None or _rotates(subject.run):
        notes.found(
            "rope.offset",
            "positions restart in cached decoding: each chunk is rotated as if it came first",
            measured,
            "rotate the new query and key at past_len + i, and cache the rotated key",
        )
    else:
        notes.found(
            "cache.offset",
            "with a cache, tokens get other positions than without; whether they are rotated does "
            "not show, hence two names",
            measured,
            "give the token its position: past_len + i",
            ("rope.offset",),
        )


def _right_inside(subject: Subject, decoder: _Typed, x: Tensor) -> bool:
    """Whether decoding is right as long as no token has left the window."""
    tokens = x.shape[1]
    whole = decoder.full(x)
    for chunks in ([1] * tokens, [2, *([1] * (tokens - 2))], [tokens]):
        if sum(chunks) != tokens:
            continue
        fresh = _Typed(duplicate(subject.run)) if subject.copied else decoder
        found = cache.stepped(fresh, x, chunks)
        if found.shape != whole.shape or distance(found, whole) > 1e-5:
            return False
    return True


def _band(moves: Tensor) -> int:
    """How far back outputs reach, if that is less than everything; 0 for no limit."""
    last = moves[-1].nonzero()
    reach = moves.shape[0] - 1 - int(last[0]) if len(last) else 0
    return reach if 0 < reach < moves.shape[0] - 1 else 0


def _rotates(run: Any) -> bool:
    """Whether anything in the object, or in the code of its methods, is named as rotations are."""
    names = set(vars(run)) if hasattr(run, "__dict__") else set()
    if isinstance(run, nn.Module):
        names |= {name for name, _ in run.named_buffers()}
        names |= {name for name, _ in run.named_modules()}
    for kind in type(run).__mro__:
        if kind.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for method in vars(kind).values():
            code = getattr(method, "__code__", None)
            names |= set() if code is None else {method.__name__, *code.co_names}
    return any(word in name.lower() for name in names for word in ROPE_NAMES)


def _judge_reset(
    subject: Subject, decoder: _Typed, x: Tensor, contract: Contract, notes: Notes
) -> None:
    """A second run after reset() against the first on a fresh copy."""
    if not subject.copied:
        return
    for name, chunks in cache.schedules(x.shape[1]).items():
        try:
            first = cache.stepped(_Typed(duplicate(subject.run)), x, chunks)
        except Exception:  # a way that is refused is told of elsewhere
            continue
        used = _Typed(duplicate(subject.run))
        gap = torch.inf
        measured = "the same tokens after reset()"
        try:
            cache.stepped(used, x.flip(1) * 1.5, chunks)
            again = cache.stepped(used, x, chunks)
            if first.shape == again.shape:
                gap = distance(again, first)
            measured += f" differ by up to {gap:.3g} of the largest number, {name}"
        except Exception as error:  # a cache that is full after one run has not been reset
            measured += f" fail, {name}: {first_line(error)}"
        if gap > 1e-6:
            notes.found(
                "cache.stale",
                "the cache survives a reset: the second run sees keys or positions of the first",
                measured,
                "reset() must empty keys, values and the position, in every layer",
            )
            return
    notes.right("reset")


def _judge_full(
    decoder: _Typed, x: Tensor, contract: Contract, notes: Notes, generator: torch.Generator
) -> None:
    moves = cache.dependency(decoder.full, x, generator)
    if contract.causal and moves.triu(1).any():
        notes.found(
            "mask.missing",
            "full(x) sees the future",
            drawn(moves.tolist()),
            "hide torch.triu(…, diagonal=1) before the softmax",
        )
    elif not moves.triu(1).any():
        notes.right("causal")
