"""Verdicts on the first calls: it runs, and gives the same twice."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from clearhead._common.foreign_names import role, size_of
from clearhead._common.text import raised_words
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.feeding import kept_masks
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.verdicts import Clear, Found, Verdict
from clearhead.checking.subject.constructing import arguments_again
from clearhead.checking.subject.refusals import deliberate, first_line
from clearhead.checking.subject.signatures import of_constructor
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import SAME

PAIRS = (("d_out", "d_in"), ("d_context", "d_in"), ("value_head_dim", "head_dim"))
# Errors of axes that do not fit.
SHAPES = re.compile(
    r"shapes? cannot be multiplied|must match the size|size mismatch|expected size|Expected size|"
    r"only supported on matrices|tensors with 2 dimensions|\.T. on a tensor|same number of dimensions|"
    r"shape '.*' is invalid|view size"
)
TAKEN = "a layer or a view takes one width for the other"
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def square_only(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """A call that fails, and that equal widths would mend."""
    error = e.settled.error
    if isinstance(e, HeadsEvidence):
        return _square_values(e) if error is None else None
    if error is None or deliberate(error) or e.given.module is None:
        return None
    for words, sizes, args in _squares(
        e, e.given, e.feed.width if not isinstance(e, CrossEvidence) else e.sizes["d_in"]
    ):
        if _works(e, args):
            values = {"sizes": sizes, "error": first_line(error)}
            return Found("equal", {"words": words, "why": TAKEN}, ("at-sizes", values))
    declared = e.contract.sizes if SHAPES.search(raised_words(error)) else {}
    for one, other in PAIRS:
        if one in declared and other in declared and declared[one] != declared[other]:
            sizes = f"{one}={declared[one]}, {other}={declared[other]}"
            values = {"sizes": sizes, "error": first_line(error)}
            return Found("declared", {"one": one, "other": other}, ("at-sizes", values))
    return None


def _square_values(e: HeadsEvidence) -> Verdict | None:
    """A value of another width that is not borne."""
    for sizes, error, words in e.failed:
        if sizes.value_head_dim == sizes.head_dim:
            continue
        declared = e.contract.sizes.get("value_head_dim") is not None
        # A refusal in words of its own is no mistake; a view that does not fit is one. What takes all
        # three as one tensor cannot know of another width, and gives another one.
        if declared or (error is not None and not deliberate(error)):
            text = f"head_dim {sizes.head_dim}, value_head_dim {sizes.value_head_dim}"
            return Found("value", {}, ("at-sizes", {"sizes": text, "error": words}))
    return Clear()


def _squares(
    e: TokensEvidence, subject: Subject, d_in: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Arguments with two widths made equal, if the arguments of the module are known."""
    module = subject.module
    assert module is not None
    args = subject.args
    if args is None:
        args = arguments_again(module, subject.contract, _shown(module, d_in))
    if args is None:
        return
    named = {size_of(name): name for name in of_constructor(type(module)) if name in args}
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


def _shown(module: nn.Module, d_in: int) -> dict[str, int]:
    """The sizes that layers and masks show."""
    shown = {"d_in": d_in}
    for mask in kept_masks(module).values():
        shown["context_length"] = mask.shape[-1]
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and role(name) in ("q", "qkv"):
            shown["d_out"] = part.out_features // (3 if role(name) == "qkv" else 1)
    return shown


def _works(e: TokensEvidence, args: dict[str, Any]) -> bool:
    try:
        other = e.given.made_again(args)
        inputs = e.fitted_context(other) if isinstance(e, CrossEvidence) else e.inputs
        other(*inputs)
    except Exception:  # whatever the code of another raises
        return False
    return True


def in_eval(e: Evidence) -> Verdict | None:
    """Dropout that is active in eval mode."""
    if e.repetition <= SAME[e.subject.dtype] or not (e.contract.dropout or has_dropout(e.subject)):
        return None
    declared = bool(e.contract.dropout)
    also = () if declared else (("law.again", "drawn", {}),)
    gap = ("repeated", {"gap": f"{e.repetition:.3g}"})
    return Found("declared" if declared else "undeclared", {}, gap, also)


def nondeterministic(e: Evidence) -> Verdict | None:
    """Equal calls that differ, with nothing to explain it."""
    if e.repetition > SAME[e.subject.dtype]:
        return Found("drawn", {}, ("repeated", {"gap": f"{e.repetition:.3g}"}))
    if e.contract.dropout == 0 and e.training.varies:
        return Found("training")
    return Clear()


def has_dropout(subject: Subject) -> bool:
    """True of a module that has a place for dropout, by its parts or its attributes."""
    module = subject.module
    if module is None:
        return False
    return any(
        isinstance(part, DROPPING) or any("drop" in name for name in vars(part))
        for part in module.modules()
    )


def modified(e: Evidence) -> Verdict:
    """Inputs that are written to."""
    if e.written:
        names = " and ".join(e.written)
        verb = "is" if len(e.written) == 1 else "are"
        return Found("written", {"names": names, "verb": verb}, ("before-after", {}))
    return Clear("untouched")


def strided(e: Evidence) -> Verdict | None:
    """Views of the same numbers that give something else."""
    found = e.strided
    if found.gap > max(SAME[e.subject.dtype], 1e-5) and found.gap > _rounding(e):
        return Found("views", {}, ("strides", {"gap": f"{found.gap:.3g}"}))
    if found.refused is not None or found.overlapping > 1e-5:
        return None
    return Clear("views")


def _rounding(e: Evidence) -> float:
    """The loss that another order of sums in 16 bits allows."""
    if not isinstance(e, HeadsEvidence):
        return 0.0
    return {torch.bfloat16: 4e-2, torch.float16: 1e-2}.get(e.rounded, 0.0)
