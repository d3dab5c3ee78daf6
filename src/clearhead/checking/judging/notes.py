"""Remarks on what was verified, and on what is not declared."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

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

Note = tuple[str, Values]
# What is told only where everything is asked for: NaN, and what PyTorch's own code does as well.
MINOR = frozenset(
    ("nan-hidden", "nan-padding", "empty", "empty-refused", "all-padding", "empty-gradient",
     "overlapping", "strides-refused", "rectangular", "value-width", "scores-returned", "outer")
)  # fmt: skip


def ticks(e: Evidence, clear: Clear) -> Iterator[str]:
    """The words of a clear verdict, in short."""
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


def notes(e: Evidence, codes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The remarks, and those that are made only where everything is asked for."""
    told: dict[str, None] = {}
    minor: dict[str, None] = {}
    try:
        for key, values in _all(e, codes):
            (minor if key in MINOR else told)[words.filled("note", key, values)] = None
    except Exception:  # a remark that cannot be made is none
        pass
    return tuple(told), tuple(minor)


def _all(e: Evidence, codes: Sequence[str]) -> Iterator[Note]:
    yield from e.settled.notes
    if isinstance(e, DecodingEvidence):
        for name, text in e.refused.items():
            yield "step-refused", {"name": name, "words": text}
        return
    yield from account(e).notes
    if e.given.guessed and e.given.args is not None:
        args = ", ".join(f"{name}={shown(e.given.args[name])}" for name in e.given.guessed)
        yield "guessed", {"args": args}
    if isinstance(e, HeadsEvidence):
        yield from _of_heads(e)
    elif isinstance(e, CrossEvidence):
        yield from _of_cross(e, codes)
    elif isinstance(e, TokensEvidence):
        yield from _of_tokens(e, codes)
    if e.strided.refused is not None:
        yield "strides-refused", {"words": e.strided.refused}
    if e.strided.overlapping > 1e-5:
        yield "overlapping", {}
    dead = [n for n in e.gradients.names("dead") if n in e.subject.parameters()]
    if dead and "parameter.dead" not in codes:
        yield "unused", {"names": ", ".join(dead[:3])}
    if e.gradients.raised and "grad.wrong" not in codes:
        yield "backward", {"error": e.gradients.raised}
    for name in e.state.saved:
        yield "saved", {"name": name}


def _causal(e: HeadsEvidence) -> Iterator[Note]:
    if e.contract.causal is None and e.explained.right:
        yield "causal", {"causal": e.explained.contract.causal}


def _of_heads(e: HeadsEvidence) -> Iterator[Note]:
    yield from _causal(e)
    found = account(e)
    if e._window is not None:
        yield "window", {"back": e._window[0], "ahead": e._window[1]}
    if len(e.judged) < len(e.trials):
        yield "square", {}
    for sizes, _, text in e.failed:
        if sizes.value_head_dim != sizes.head_dim:
            yield "value-width", {"words": text}
        elif sizes.query_len != sizes.kv_len:
            yield "rectangular", {"words": text}
        else:
            size = f"{sizes.query_len} tokens, {sizes.num_heads} heads of {sizes.head_dim}"
            yield "refused", {"sizes": size, "words": text}
    if not found.claims and e.leaks and not e.contract.nan_safe:
        yield "nan-hidden", {"names": " or ".join(e.leaks)}
    if e.contract.empty_row is None and e.empty is not None and not found.claims:
        if e.empty.refused:
            yield "empty-refused", {}
        else:
            yield "empty", {"gives": e.empty.gives}
            if e.empty.gradients:
                yield "empty-gradient", {"names": " and ".join(e.empty.gradients)}


def _of_tokens(e: TokensEvidence, codes: Sequence[str]) -> Iterator[Note]:
    seen = as_promised(e)
    if e._window is not None:
        yield "window", {"back": e._window[0], "ahead": e._window[1]}
    if e.contract.causal is None and e._window is None:
        if seen is not None:
            yield "causal", {"causal": seen.causal}
        elif not e.dependency.broken.any() and not codes:
            yield "pattern", {"picture": drawn(e.dependency.cells())}
    elif seen is None and not codes and not e.dependency.broken.any():
        yield "some-unseen", {"picture": drawn(e.dependency.cells(), own=True)}
    seen_by = [
        each.visible for each in e.weighings if each.visible.shape[-1] == each.visible.shape[-2] > 1
    ]
    declared = bool(codes) or e.contract.masked
    if not declared and any(not each.diagonal(dim1=-2, dim2=-1).any() for each in seen_by):
        yield "own-hidden", {}
    if e.contract.rope is None and e.projections:
        fitted = e.projections[0].fitted()
        if fitted is not None:
            yield "rope", {"layout": fitted[0], "base": f"{fitted[1]:,.0f}"}
    for each in e.splittings:
        if each.changed and not codes:
            yield "activated", {"operation": ", ".join(each.changed)}
        if each.shared == "tiled" and e.contract.heads()[1] is None:
            query_heads = each.num_heads or each.kv_heads
            yield "tiled", {"kv_heads": each.kv_heads, "groups": query_heads // each.kv_heads}
    if len(e.groups) > 1:
        yield "outer", {"count": len(e.groups)}
    if e.leaks and not e.contract.nan_safe:
        yield "nan-hidden", {"names": "token"}
    if isinstance(e, PaddedEvidence) and not codes:
        if e.padding_leaks and not e.contract.nan_safe:
            yield "nan-padding", {}
        if e.contract.empty_row is None and e.all_padding is not None and e.all_padding[0]:
            yield "all-padding", {}
        if isinstance(e.given.run, Embedded) and e.left_gap > 1e-6:
            yield "left-padding", {}
    if e.state.built and "shape.fixed" not in codes:
        yield "constructor", {"names": ", ".join(e.state.built)}
    second, tokens = e.returned, e.inputs[0].shape[-2]
    if isinstance(second, Tensor) and second.is_floating_point() and second.numel():
        shaped = second.ndim > 2 and second.shape[-1] == tokens
        if shaped and second.min() < -1e-6:
            yield "scores-returned", {}


def _of_cross(e: CrossEvidence, codes: Sequence[str]) -> Iterator[Note]:
    if e.alike and "context.wrong" not in codes:
        yield "alike", {}
    by_x, by_context = e.dependencies
    own = torch.eye(*by_x.moves.shape, dtype=torch.bool)
    if (by_x.moves & ~own).any() and not e.alike and by_context.moves.all() and not codes:
        yield "attends-to-x", {}
