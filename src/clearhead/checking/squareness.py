"""Whether a module fails only because two of its widths differ: the same class, with them equal."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from clearhead.checking.making import arguments_again, parameters, size_of
from clearhead.checking.notes import Notes
from clearhead.checking.reading import role
from clearhead.checking.refusals import deliberate, first_line
from clearhead.checking.sizes import kept_masks
from clearhead.checking.subject import Subject

PAIRS = (("d_out", "d_in"), ("d_context", "d_in"), ("value_head_dim", "head_dim"))


def judge_square(
    subject: Subject, d_in: int, run: Callable[[Subject], object], error: Exception, notes: Notes
) -> bool:
    """Name a call that fails, if equal widths would mend it.

    Args:
        subject: what fails.
        d_in: the width of a token.
        run: the call that fails.
        error: what it raised.
        notes: where it is written down.
    """
    if deliberate(error) or subject.module is None:
        return False
    likely = "a layer or a view takes one width for the other"
    for words, sizes, args in _squares(subject, subject.module, d_in):
        if _works(subject, args, run):
            notes.found(
                "shape.square-only",
                f"it works only where {words}",
                f"{sizes}: {first_line(error)}",
                likely,
            )
            return True
    sizes = subject.contract.sizes
    for one, other in PAIRS:
        if one in sizes and other in sizes and sizes[one] != sizes[other]:
            notes.found(
                "shape.square-only",
                f"it fails at the sizes that are declared, of which {one} and {other} differ",
                f"{one}={sizes[one]}, {other}={sizes[other]}: {first_line(error)}",
                likely,
            )
            return True
    return False


def _squares(
    subject: Subject, module: nn.Module, d_in: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Arguments with two widths made equal, if the arguments of the module are known."""
    args = subject.args
    if args is None:
        args = arguments_again(module, subject.contract, _shown(module, d_in))
    if args is None:
        return
    named = {size_of(name): name for name in parameters(type(module)) if name in args}
    for one, other in PAIRS:
        if one in named and other in named and args[named[one]] != args[named[other]]:
            yield (
                f"{named[one]} = {named[other]}",
                f"{named[other]}={args[named[other]]}, {named[one]}={args[named[one]]}",
                {**args, named[one]: args[named[other]]},
            )
    heads = args.get(named.get("num_heads", ""), 1)
    if {"d_in", "head_dim"} <= set(named) and heads * args[named["head_dim"]] != d_in:
        yield (
            f"{named['d_in']} = heads · {named['head_dim']}",
            f"{named['d_in']}={d_in}, {heads} heads of {args[named['head_dim']]}",
            {**args, named["head_dim"]: d_in // heads},
        )


def _works(subject: Subject, args: dict[str, Any], run: Callable[[Subject], object]) -> bool:
    try:
        run(subject.sibling(args))
    except Exception:  # whatever somebody's code raises
        return False
    return True


def _shown(module: nn.Module, d_in: int) -> dict[str, int]:
    """The sizes that layers and masks show."""
    shown = {"d_in": d_in}
    for mask in kept_masks(module).values():
        shown["context_length"] = mask.shape[-1]
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and role(name) in ("q", "qkv"):
            shown["d_out"] = part.out_features // (3 if role(name) == "qkv" else 1)
    return shown
