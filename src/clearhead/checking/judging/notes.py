"""Remarks on what was verified, and on what is not declared."""

from collections.abc import Iterator, Sequence

import torch

from clearhead._text import shown
from clearhead.checking import words
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.account import account
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.drawings import drawn
from clearhead.checking.judging.reading import scale_in_words
from clearhead.checking.judging.verdicts import Clear, Values
from clearhead.checking.subject.embedding import Embedded
from clearhead.recording.attempt import attempt

Note = tuple[str, Values]


def ticks(e: Evidence, clear: Clear) -> Iterator[str]:
    """Yield the lines of the report for a clear verdict; nothing if it needs none.

    For the mask, positions and other declarations there is a line only for those that are declared or were found.
    """
    key, values = clear.tick, clear.values
    if key == "mask":
        contract = account(e).contract if not isinstance(e, DecodingEvidence) else e.contract
        if contract.causal or isinstance(e, DecodingEvidence):
            yield words.filled("tick", "causal", {})
        if contract.window is not None and not isinstance(e, DecodingEvidence):
            yield words.filled("tick", "window", {"window": contract.window})
        if contract.documents is not None:
            yield words.filled("tick", "documents", {})
    elif key == "scale":
        assert isinstance(e, HeadsEvidence | TokensEvidence)
        if e.trials and all(
            each not in ("scales", "scale-learned", "made-for") for each, _ in account(e).notes
        ):
            first = e.trials[0].under(account(e).contract)
            yield words.filled("tick", "scale", {"scale": scale_in_words(first)})
    elif key == "order":
        names = {"bias": "bias", "alibi_slopes": "ALiBi", "softcap": "softcap", "sinks": "sinks"}
        for field, word in names.items():
            if getattr(e.contract, field) is not None:
                yield word
    elif key == "positions":
        if e.contract.rope is not None:
            yield words.filled("tick", "rope", {})
    elif key and key != "product":
        yield words.filled("tick", key, values)


def notes(e: Evidence, codes: Sequence[str]) -> tuple[str, ...]:
    """Return the remarks in words, each once; an error of one ends them, and those before it are returned."""
    made: dict[str, None] = {}

    def collect() -> None:
        """Add the remarks to `made`, in words."""
        for key, values in _all(e, codes):
            made[words.filled("note", key, values)] = None

    attempt(collect)
    return tuple(made)


def _all(e: Evidence, codes: Sequence[str]) -> Iterator[Note]:
    """Yield (key, values) of each remark on the evidence; those that a finding in `codes` covers are left out."""
    yield from e.settled.notes
    if isinstance(e, DecodingEvidence):
        for name, text in e.refused.items():
            yield "step-refused", {"name": name, "words": text}
        return
    yield from account(e).notes
    if e.given.guessed and e.given.args is not None:
        args = ", ".join(f"{name}={shown(e.given.args[name])}" for name in e.given.guessed)
        yield "guessed", {"args": args}
    if isinstance(e, HeadsEvidence | TokensEvidence) and e._window is not None:
        yield "window", {"back": e._window[0], "ahead": e._window[1]}
    if isinstance(e, HeadsEvidence):
        yield from _of_heads(e)
    elif isinstance(e, CrossEvidence):
        yield from _of_cross(e, codes)
    elif isinstance(e, TokensEvidence):
        yield from _of_tokens(e, codes)
    dead = [n for n in e.gradients.names("dead") if n in e.subject.parameters()]
    if dead and "parameter.dead" not in codes:
        yield "unused", {"names": ", ".join(dead[:3])}
    if e.gradients.raised and "grad.wrong" not in codes:
        yield "backward", {"error": e.gradients.raised}
    for name in e.state.saved:
        yield "saved", {"name": name}


def _of_heads(e: HeadsEvidence) -> Iterator[Note]:
    """Yield remarks on a function: its measured causality, calls that are not judged, and calls that failed."""
    if e.contract.causal is None and e.explained.right:
        yield "causal", {"causal": e.explained.contract.causal}
    if len(e.judged) < len(e.trials):
        yield "square", {}
    for sizes, _, text in e.failed:
        size = f"{sizes.query_len} queries, {sizes.kv_len} keys, {sizes.num_heads} heads of {sizes.head_dim}"
        yield "refused", {"sizes": size, "words": text}


def _of_tokens(e: TokensEvidence, codes: Sequence[str]) -> Iterator[Note]:
    """Yield remarks on a module: its measured causality or mask, and left padding that changes outputs."""
    seen, broken = as_promised(e), bool(e.dependency.broken.any())
    if e.contract.causal is None and e._window is None and seen is not None:
        yield "causal", {"causal": seen.causal}
    elif seen is None and not codes and not broken:
        key = "pattern" if e.contract.causal is None else "some-unseen"
        yield key, {"picture": drawn(e.dependency.cells(), own=True)}
    if isinstance(e, PaddedEvidence) and isinstance(e.given.run, Embedded) and not codes:
        yield from [("left-padding", {})] if e.left_gap > 1e-6 else []


def _of_cross(e: CrossEvidence, codes: Sequence[str]) -> Iterator[Note]:
    """Yield remarks on cross-attention: x and context must be equally long, or x is attended to as well."""
    if e.alike and "context.wrong" not in codes:
        yield "alike", {}
    by_x, by_context = e.dependencies
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    if (by_x.moves & ~own).any() and not e.alike and by_context.moves.all() and not codes:
        yield "attends-to-x", {}
