"""How a subject of tokens is fed: how wide a token is, how many there are, and whether it runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.notes import Notes
from clearhead.checking.sizes import found, longest, width_in
from clearhead.checking.squareness import judge_square
from clearhead.checking.states import examine_globals
from clearhead.checking.subject import Subject
from clearhead.errors import ModelError

SPREAD = 2.0


@dataclass
class Tokens:
    """How a subject is fed: the width of a token, the lengths, and what was found of its heads."""

    width: int
    lengths: list[int]
    num_heads: int | None
    longest: int | None
    plain: bool

    def draw(self, tokens: int, seed: int, batch: int = 2) -> Tensor:
        """(batch, tokens, width), or (tokens, width) for a subject without a batch."""
        generator = torch.Generator().manual_seed(seed)
        shape = (tokens, self.width) if self.plain else (batch, tokens, self.width)
        return SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64)


def feed(subject: Subject, contract: Contract) -> Tokens:
    """The sizes to feed it with.

    Raises:
        ModelError: code `check.width`, if the width of a token cannot be found.
    """
    width = width_in(subject, contract)
    if width is None:
        width = _tried_width(subject)
    if width is None:
        raise ModelError(
            "check.width",
            f"{subject.name} does not say how wide a token is; give it: sizes=dict(d_in=…).",
        )
    limit = longest(subject, contract)
    if limit is None:
        lengths = [7, 5, 11, 1]
    else:
        lengths = sorted({min(each, limit) for each in (7, 5, 2)}, key=lambda n: abs(n - 7))
    heads = found("num_heads", subject, contract)
    fed = Tokens(width, lengths, heads, limit, subject.takes == "x2d")
    if subject.takes in ("x", "x2d") and not _takes(subject, fed, lengths[0]):
        # Learned positions may be fewer, or one length may be all that it takes.
        others = [each for each in (6, 5, 4, 3, limit) if each is not None]
        fitting = [each for each in others if _takes(subject, fed, each)]
        fed.lengths = fitting or lengths
    return fed


def _takes(subject: Subject, fed: Tokens, tokens: int) -> bool:
    return _works(subject, fed.draw(tokens, 0))


def _works(subject: Subject, x: Tensor) -> bool:
    try:
        subject(x)
    except Exception:  # whatever somebody's code raises
        return False
    return True


def shortened(subject: Subject, main: Tensor, tokens: int) -> Tensor:
    """The first tokens of an input, or all of it where one length is all that the subject takes."""
    short = main[..., :tokens, :]
    return short if _works(subject, short) else main


def _tried_width(subject: Subject) -> int | None:
    for width in (*range(1, 17), 32, 64, 128, 256, 512, 768):
        shape = (3, width) if subject.takes == "x2d" else (2, 3, width)
        try:
            subject(torch.zeros(shape, dtype=torch.float64))
        except Exception:  # a wrong width raises whatever it raises
            continue
        return width
    return None


def drawn_inputs(subject: Subject, fed: Tokens, seed: int) -> list[Tensor]:
    """One input for each length that the subject takes, the main one first."""
    made = []
    for index, tokens in enumerate(fed.lengths):
        x = fed.draw(tokens, seed + index, batch=2 + (index % 2))
        try:
            output = subject(x)
        except Exception:  # another length is not owed
            continue
        if output.shape[:-1] == x.shape[:-1]:
            made.append(x)
    return made


def runs(subject: Subject, fed: Tokens, main: Tensor, notes: Notes) -> bool:
    """Whether it can be called at all; two mistakes show in that it cannot."""
    try:
        output = subject(main)
    except Exception as error:
        if examine_globals(subject, error, notes):
            return False
        try:
            subject.use(torch.float32)
            output = subject(main)
        except Exception:
            subject.use(torch.float64)
            if judge_square(subject, fed.width, lambda other: other(main), error, notes):
                return False
            raise ModelError(
                "check.call",
                f"{subject.name} was called with takes={subject.takes!r}, {_handed(subject, main)}, "
                f"and raised {type(error).__name__}: {error}\n{_without_batch(subject, main)}"
                "If it needs other sizes, give them: sizes=dict(d_in=…, context_length=…). If it is "
                "called in another way, check a function that calls it: "
                f"lambda {subject.takes if 'mask' in subject.takes else 'x'}: attention(x, …).",
            ) from error
    output = subject.settled((main,), output)
    vectors = output.ndim == main.ndim and output.shape[:-1] == main.shape[:-1]
    if not vectors or _as_wide_as_long(subject, main, output):
        raise ModelError(
            "check.output",
            f"{subject.name} must give a vector for each token; from x {list(main.shape)} it gave "
            f"{list(output.shape)}. If the output is another part of what it returns, check a "
            "function that picks it: lambda x: attention(x)[1].",
        )
    return True


def _as_wide_as_long(subject: Subject, main: Tensor, output: Tensor) -> bool:
    """Whether what comes has a number for each other token, as weights have: they came first."""
    if output.shape[-1] != main.shape[-2]:
        return False
    short = shortened(subject, main, main.shape[-2] - 1)
    return short is not main and subject(short).shape[-1] == short.shape[-2]


def _handed(subject: Subject, main: Tensor) -> str:
    """What it was called with, in words."""
    beside = subject.beside(main)
    words = [f", mask {list(each.shape)} bool, True = a real token" for each in beside]
    return f"x {list(main.shape)}{''.join(words)}"


def _without_batch(subject: Subject, main: Tensor) -> str:
    """The advice to leave the batch out, if it then works."""
    if subject.takes != "x" or not _works(subject, main[0]):
        return ""
    return "It takes x without a batch: takes='x2d'.\n"
