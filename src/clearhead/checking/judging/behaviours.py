"""Verdicts on behaviours: a call is changed, and what it gives is compared. Each topic is one question."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import role, size_of
from clearhead._text import raised_words
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cases import broken, by_samples, called, in_turn, reseeded
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.feeding import kept_masks
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Verdict, broken_law
from clearhead.checking.subject.constructing import arguments_again
from clearhead.checking.subject.refusals import deliberate, first_line
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import EMPTY, SAME

WIDTHS = (("d_out", "d_in"), ("d_context", "d_in"), ("value_head_dim", "head_dim"))
# Errors of axes that do not fit.
SHAPES = re.compile(
    r"shapes? cannot be multiplied|must match the size|size mismatch|expected size|Expected size|"
    r"only supported on matrices|tensors with 2 dimensions|\.T. on a tensor|same number of dimensions|"
    r"shape '.*' is invalid|view size"
)
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


# Other widths.


def widths(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Return Found if a call fails because two widths differ, such as d_in and d_out; None otherwise.

    For a function, if value_head_dim ≠ head_dim fails, else Clear, and None if the first call fails already.
    """
    error = e.settled.error
    if isinstance(e, HeadsEvidence):
        return _value_width(e) if error is None else None
    if error is None or deliberate(error) or not isinstance(e.given.module, nn.Module):
        return None
    args, sizes = e.given.args or _arguments(e, e.given.module), e.contract.sizes
    named = {size_of(name): name for name in args}
    for one, other in WIDTHS:
        known = [args[named[each]] if each in named else sizes.get(each) for each in (one, other)]
        if None in known or known[0] == known[1]:
            continue
        declared = {one, other} <= set(sizes) and SHAPES.search(raised_words(error))
        if declared or (one in named and _works(e, {**args, named[one]: known[1]})):
            text = f"{one}={known[0]}, {other}={known[1]}"
            measured = ("at-sizes", {"sizes": text, "error": first_line(error)})
            return Found("differ", {"one": one, "other": other}, measured)
    return None


def _arguments(e: TokensEvidence, module: nn.Module) -> dict[str, Any]:
    """Return the arguments that make an instance with the widths of its layers; {} if they are unknown."""
    shown = {"d_in": e.sizes["d_in"]}
    for mask in kept_masks(module).values():
        shown["context_length"] = mask.shape[-1]
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and role(name) in ("q", "qkv"):
            shown["d_out"] = part.out_features // (3 if role(name) == "qkv" else 1)
    return arguments_again(module, e.given.contract, shown) or {}


def _works(e: TokensEvidence, args: dict[str, Any]) -> bool:
    """Return True if an instance made with these arguments can be called without an error and returns a tensor."""

    def call() -> Tensor:
        """Make the other instance, and return its output for the inputs."""
        other = e.given.made_again(args)
        return other(*(e.fitted_context(other) if isinstance(e, CrossEvidence) else e.inputs))

    return isinstance(called(call), Tensor)


def _value_width(e: HeadsEvidence) -> Verdict:
    """Return Found if a call with value_head_dim ≠ head_dim raises, or gives another shape; else Clear.

    Wrong numbers are not looked at. If that width is not declared, only an error that is not deliberate counts.
    """
    for sizes, error, words in e.failed:
        if sizes.value_head_dim == sizes.head_dim:
            continue
        # A refusal in words of its own is no mistake. Code that takes all three as one tensor does not know the
        # width of the value, and returns another one.
        if "value_head_dim" in e.contract.sizes or (error is not None and not deliberate(error)):
            text = f"head_dim {sizes.head_dim}, value_head_dim {sizes.value_head_dim}"
            return Found("value", {}, ("at-sizes", {"sizes": text, "error": words}))
    return Clear()


# The same call again.


def repetition(e: Evidence) -> Claim | Verdict:
    """Return a claim if equal calls have different outputs, by dropout or other random numbers; else Clear.

    A claim too if dropout 0 is declared, and outputs vary in training.
    """
    measured = ("repeated", {"gap": f"{e.repetition:.3g}"})
    drawn = e.repetition > SAME[e.subject.dtype]
    if drawn and e.contract.dropout:
        return Claim("repetition", "dropout.in-eval", Found("declared", {}, measured))
    if drawn and has_dropout(e.subject):
        return Claim("repetition", "dropout.in-eval", Found("undeclared", {}, measured))
    if drawn:
        return Claim("repetition", "law.again", Found("drawn", {}, measured))
    if e.contract.dropout == 0 and e.training.varies:
        return Claim("repetition", "law.again", Found("training"))
    return Clear()


def has_dropout(subject: Subject) -> bool:
    """Return True if a module has a dropout layer or an attribute with "drop" in its name; False for a function."""
    return subject.module is not None and any(
        isinstance(part, DROPPING) or any("drop" in name for name in vars(part))
        for part in subject.module.modules()
    )


def modified(e: Evidence) -> Verdict:
    """Return Found with the names of the inputs that a call writes to, or Clear if there are none."""
    if not e.written:
        return Clear("untouched")
    verb = "is" if len(e.written) == 1 else "are"
    values = {"names": " and ".join(e.written), "verb": verb}
    return Found("written", values, ("before-after", {}))


def strided(e: Evidence) -> Verdict | None:
    """Return Found if strided inputs change the output, None if they are refused, else Clear."""
    (gap, refused), rounded = e.strided, e.rounded if isinstance(e, HeadsEvidence) else None
    # Another order of sums in 16 bits.
    rounding = {torch.bfloat16: 4e-2, torch.float16: 1e-2}.get(rounded, 0.0) if rounded else 0.0
    if gap > max(SAME[e.subject.dtype], 1e-5, rounding):
        return Found("views", {}, ("strides", {"gap": f"{gap:.3g}"}))
    return None if refused else Clear("views")


def again(e: Evidence) -> Verdict:
    """Return Found if a call depends on earlier ones, reseeds the generator or repeats its dropout; else Clear.

    Found too if a call raises only after others. The global generator is seeded.
    """
    if isinstance(e, HeadsEvidence):
        calls = [each.inputs for each in e.attempts if each.output is not None][:3]
        calls = [*calls, *calls[:1]]
    elif isinstance(e, CrossEvidence):
        x, context = e.inputs
        calls = [e.inputs, (x, context.flip(-1)), e.inputs]
    elif isinstance(e, TokensEvidence):
        short = (e.feed.draw(min(e.feed.lengths), e.seed + 5),)
        calls = [short, e.inputs, short]
    else:
        calls = [e.inputs, e.inputs]
    wrong = broken("calls", in_turn(e.subject, calls), refused="refused")
    if wrong is not None:
        return broken_law(wrong)
    if reseeded(e.subject, e.inputs):
        return Found("seeded")
    return Found("redrawn") if e.training.repeats else Clear()


def samples(e: Evidence) -> Verdict | None:
    """Return Found if samples alone or in another order have other outputs, else Clear; None without a batch."""
    if isinstance(e, TokensEvidence) and e.feed.plain:
        return None
    wrong = broken("alone", by_samples(e.subject, e.inputs, e.output))
    return Clear() if wrong is None else broken_law(wrong)


# Hidden tokens, and queries that see nothing.


def nan_behind(e: HeadsEvidence | TokensEvidence) -> Verdict | None:
    """Return Clear if a hidden NaN stays hidden, Found if it leaks and nan_safe is declared.

    None if it leaks and nan_safe is not declared, or if nothing is hidden.
    """
    found = e.leaks
    if not found:
        return Clear("nan") if found is not None else None
    if not e.contract.nan_safe:
        return None
    if isinstance(e, HeadsEvidence):
        names = " and in a hidden ".join(map(str, found))
        return Found("hidden", {"names": names}, ("nan-key", {}))
    token = e.inputs[0].shape[-2] - 1
    return Found("token", {}, ("nan-token", {"token": token, "outputs": found}))


def one_token(e: TokensEvidence) -> Verdict | None:
    """Return Found if the output of a single token is not finite, else Clear, also if that call raises.

    None if it was not called.
    """
    if 1 not in e.lengths:
        return None
    return Found("one-token") if e.lengths[1] == "NaN" else Clear()


def empty_row(e: HeadsEvidence) -> Verdict | None:
    """Return Found if empty rows differ from the declared or have bad gradients, else Clear.

    None if they are undeclared, not tested, or the call is refused.
    """
    found, declared = e.empty, e.contract.empty_row
    if found is None:
        return None
    values: dict[str, Any] = {"declared": declared}
    if found.gap > EMPTY:
        first = [round(each, 4) for each in found.first]
        return Found("not-declared", values, ("rows", {"count": found.rows, "first": first}))
    if found.gradients:
        values["names"] = " and ".join(found.gradients)
        return Found("gradient", values, ("gradient", values))
    return Clear("empty", values)


# 16 bits.


def overflow(e: HeadsEvidence | TokensEvidence) -> Verdict:
    """Return Found if a declared dtype is refused or too inexact, or an undeclared one overflows in a plain exp.

    Else Clear.
    """
    names = [str(each).removeprefix("torch.") for each in e.contract.dtypes]
    for dtype, way, found in e.halves:
        values = {"dtype": str(dtype).removeprefix("torch."), "plain": f"{found.plain:.2g}"}
        if not found.fails(dtype):
            continue
        if found.refused is not None:
            text = ("text", {"text": found.refused})
            return Found("refused", values, text) if dtype in e.contract.dtypes else Clear()
        infinite = found.error == torch.inf
        if dtype in e.contract.dtypes or (infinite and e.plain_exp):
            values["size"] = "not finite" if infinite else f"off by {found.error:.2g}"
            return Found(way, values, ("plain", values))
    return Clear("dtypes", {"names": ", ".join(names)}) if names else Clear()
