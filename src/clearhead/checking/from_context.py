"""The examination of cross-attention: f(x, context)."""

import torch
from torch import Tensor, nn

from clearhead.checking.common import (
    examine_gradients,
    examine_inputs,
    examine_repetition,
    examine_training,
)
from clearhead.checking.contract import Contract
from clearhead.checking.feeding import Tokens, feed
from clearhead.checking.from_tokens import judge_outside, judge_reading
from clearhead.checking.making import size_of
from clearhead.checking.notes import Notes
from clearhead.checking.probes import dependency
from clearhead.checking.reading import role
from clearhead.checking.report import drawn
from clearhead.checking.sizes import found
from clearhead.checking.squareness import judge_square
from clearhead.checking.subject import Subject
from clearhead.errors import ModelError

NAMES = ("x", "context")
SIDES = "queries come from x, keys and values from the context: self.W_key(context), self.W_value(context)"


def examine_cross(subject: Subject, contract: Contract, notes: Notes, seed: int) -> dict[str, int]:
    """Which side moves what, then the definition on its own projections."""
    fed = feed(subject, contract)
    width = _context_width(subject, contract, fed)
    x, context = _inputs(fed, width, 5, 7, seed)
    alike = False
    try:
        output = subject(x, context)
    except Exception as error:
        found = _without_batch(subject, fed, width, seed)
        if found is not None:
            x, context, output = found
            notes.tell("x and context go in without a batch")
        else:
            # Sides that are swapped in part fit each other only where the lengths are equal.
            sides = x, context
            x, context = _inputs(fed, width, 7, 7, seed)
            try:
                alike, output = True, _called(subject, x, context, error)
            except ModelError:

                def again(other: Subject) -> Tensor:
                    return other(sides[0], _as_wide(sides[1], other))

                if judge_square(subject, fed.width, again, error, notes):
                    return {"d_in": fed.width, "d_context": width}
                raise
    used = {"d_in": fed.width, "d_context": width}
    if not examine_repetition(subject, (x, context), contract, notes):
        return used
    if output.shape[-2] != x.shape[-2]:
        notes.found(
            "context.swapped",
            "the output has a vector for each token of the context, not for each of x",
            f"x has {x.shape[-2]} tokens, the context {context.shape[-2]}, the output {output.shape[-2]}",
            SIDES,
        )
        return used
    pairs = [(x, context), _inputs(fed, width, 7, 5, seed + 1)][: 1 if alike else 2]
    # Heads and softmax can mix tokens as well, so that what is read comes first.
    explanation = judge_reading(subject, pairs, fed, contract, notes)
    if explanation is None or explanation.right:
        _judge_sides(subject, x, context, alike, notes, seed, fed.plain)
    if explanation is not None:
        judge_outside(subject, pairs, fed, contract, explanation, notes)
    examine_inputs(subject, (x, context), NAMES, notes)
    examine_gradients(subject, (x, context), NAMES, notes, seed)
    constant = [each[..., :1, :].expand_as(each).contiguous() for each in (x, context)]
    examine_training(subject, (x, context), constant, contract, notes)
    return used


def _context_width(subject: Subject, contract: Contract, fed: Tokens) -> int:
    width = found("d_context", subject, contract)
    if width is not None:
        return width
    for name, part in subject.module.named_modules() if subject.module is not None else ():
        if role(name) in ("k", "kv") and isinstance(part, nn.Linear):
            return part.in_features
    return fed.width


def _inputs(fed: Tokens, width: int, tokens: int, others: int, seed: int) -> tuple[Tensor, Tensor]:
    x = fed.draw(tokens, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (*x.shape[:-2], others, width)
    return x, 2.0 * torch.randn(shape, generator=generator, dtype=torch.float64)


def _as_wide(context: Tensor, subject: Subject) -> Tensor:
    """The context in the width that an instance was made for."""
    args = subject.args or {}
    width = next((args[name] for name in args if size_of(name) == "d_context"), context.shape[-1])
    return context.repeat(1, 1, width)[..., :width]


def _without_batch(
    subject: Subject, fed: Tokens, width: int, seed: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """A call with (tokens, width) on both sides, if that is what it takes."""
    fed.plain = True
    x, context = _inputs(fed, width, 5, 7, seed)
    try:
        output = subject(x, context)
        if output.ndim == 2:
            return x, context, output
    except Exception:  # the error of the first call says more
        pass
    fed.plain = False
    return None


def _called(subject: Subject, x: Tensor, context: Tensor, first: Exception) -> Tensor:
    for dtype in (torch.float64, torch.float32):
        subject.use(dtype)
        try:
            return subject(x, context)
        except Exception:  # the first error says more
            continue
    raise ModelError(
        "check.call",
        f"{subject.name} was called with takes='x,context', x {list(x.shape)}, context "
        f"{list(context.shape)}, and raised {type(first).__name__}: {first}\n"
        "If it needs other sizes, give them: sizes=dict(d_in=…, d_context=…). If it is called in "
        "another way, check a function that calls it: lambda x, context: attention(x, context, …).",
    ) from first


def _judge_sides(
    subject: Subject, x: Tensor, context: Tensor, alike: bool, notes: Notes, seed: int, plain: bool
) -> None:
    """Whether outputs follow their own token of x, and all of the context."""
    generator = torch.Generator().manual_seed(seed)

    def run(one: Tensor, other: Tensor) -> Tensor:
        return subject(one[0], other[0])[None] if plain else subject(one, other)

    if plain:
        x, context = x[None], context[None]
    by_x = dependency.measure(lambda each: run(each, context), x, generator)
    by_context = dependency.measure(lambda each: run(x, each), context, generator)
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    text = f"by the tokens of x\n{drawn(by_x.cells())}\nby the tokens of the context\n{drawn(by_context.cells())}"
    others = bool((by_x.moves & ~own).any())
    if not by_context.moves.any():
        notes.found("context.ignored", "the context moves no output", text, SIDES)
    elif others and alike and not (by_context.moves & ~own).any():
        notes.found(
            "context.swapped", "queries come from the context, keys and values from x", text, SIDES
        )
    elif others and not alike and by_context.moves.all():
        # The lengths differ, so that keys of x alone would not fit values of the context.
        notes.tell("x is attended to beside the context: outputs move with other tokens of x")
    elif others:
        notes.found(
            "context.ignored",
            "keys or values come from x itself: outputs move with other tokens of x",
            text,
            SIDES,
        )
    else:
        if by_x.mixed or by_context.mixed:
            notes.found("batch.mixed", "one sample moves another")
        if alike:
            notes.tell("x and context must have the same number of tokens")
        notes.right("context")
