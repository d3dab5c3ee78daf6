"""How a subject of tokens is fed: how wide a token is, how many there are, and whether it runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.conformance.contract import Contract
from clearhead.conformance.notes import Notes
from clearhead.conformance.sizes import found, longest, width_in
from clearhead.conformance.squareness import judge_square
from clearhead.conformance.states import examine_globals
from clearhead.conformance.subject import Subject
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
    try:
        subject(fed.draw(tokens, 0))
    except Exception:  # whatever somebody's code raises
        return False
    return True


def shortened(subject: Subject, main: Tensor, tokens: int) -> Tensor:
    """The first tokens of an input, or all of it where one length is all that the subject takes."""
    short = main[..., :tokens, :]
    try:
        subject(short)
    except Exception:  # another length is not owed
        return main
    return short


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
                f"{subject.name} was called with takes={subject.takes!r}, x {list(main.shape)}, and "
                f"raised {type(error).__name__}: {error}\n"
                "If it needs other sizes, give them: sizes=dict(d_in=…, context_length=…).",
            ) from error
    output = subject.settled((main,), output)
    if output.ndim != main.ndim or output.shape[:-1] != main.shape[:-1]:
        raise ModelError(
            "check.output",
            f"{subject.name} must give a vector for each token; from x {list(main.shape)} it gave "
            f"{list(output.shape)}.",
        )
    return True
