"""Verdicts of laws, and other tokens in the place of some.

What is read of a model is read in eval mode and by one seed, so that nothing that is drawn differs between two calls.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.testing.training.rehearsal import Rehearsal, Script, same

NO_LOGITS = "the loss does not call model(…), or what that returns is no tensor of logits"
NO_PADDING = "no padding= is declared"
DRAWN = "the loss draws what the model is called with"
NO_TARGETS = "the loss is no cross-entropy of the logits that the model returns"


class Verdict(NamedTuple):
    """The answer to one question: its code, and the state that it leaves the law in, with the words.

    States are "held", "broken", "not asked", "not judged", and "told" for what is no law.
    """

    code: str
    state: str
    says: str
    measured: str = ""
    likely: str = ""


def held(code: str, says: str) -> Verdict:
    return Verdict(code, "held", says)


def broken(code: str, says: str, measured: str = "", likely: str = "") -> Verdict:
    return Verdict(code, "broken", says, measured, likely)


def not_asked(code: str, why: str) -> Verdict:
    return Verdict(code, "not asked", why)


def not_judged(code: str, why: str) -> Verdict:
    return Verdict(code, "not judged", why)


def other_tokens(script: Script, name: str, there: Tensor, *, hidden: bool = False) -> Tensor:
    """An entry with other tokens in some places, each one that stands somewhere in it.

    Numbers below 0, which losses ignore, stay; so does padding, unless it is what is to be changed.
    """
    entry = script.tokens[name]
    there = there & (entry >= 0)
    if not hidden:
        there = there & script.real(entry)
    known = entry[script.real(entry) & (entry >= 0)]
    if isinstance(script.documents, int):
        there, known = there & (entry != script.documents), known[known != script.documents]
    values = known.unique()
    if len(values) < 2:
        return entry.clone()
    following = values[(torch.searchsorted(values, entry.clamp_min(0)) + 1) % len(values)]
    return torch.where(there, following, entry)


def moves(script: Script, rehearsal: Rehearsal, base: Tensor, name: str, there: Tensor) -> Tensor:
    """By how much each row of logits moves with other tokens in some places of an entry."""
    with torch.no_grad():
        logits = rehearsal.call(
            script.with_entries(**{name: other_tokens(script, name, there)})
        ).logits
    assert logits is not None
    return (logits - base).abs().amax(-1)


def noise(logits: Tensor) -> float:
    """The movement of logits that a sum in another order may make."""
    return max(100 * torch.finfo(torch.float32).eps, 2 * torch.finfo(logits.dtype).eps) * float(
        logits.abs().max()
    )


def rows_of(script: Script, rows: Tensor) -> Any:
    """Some samples of the batch."""
    size = len(script.text)
    return script.with_entries(
        **{n: e[rows] for n, e in script.entries.items() if e.ndim and len(e) == size}
    )


def draws_inputs(rehearsal: Rehearsal) -> bool:
    """Return True if the loss draws what it calls the model with, as tokens that are hidden."""
    first, second = (rehearsal.call(seed=seed) for seed in (1, 2))
    return not same([first.arguments, first.keywords], [second.arguments, second.keywords])
