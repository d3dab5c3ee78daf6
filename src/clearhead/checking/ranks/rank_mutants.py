"""Mutants of attention that ranks share: the definition with a mistake in who sees which tokens, in how
partial results are merged, or in what is sent."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.edits import edits
from clearhead.checking.hypotheses.head_edits import GROUPS, HEADS, MERGES, ROPE
from clearhead.checking.hypotheses.mask_edits import ALIGNMENT, GIVEN, HIDING, MASKS, SOFTMAX
from clearhead.checking.hypotheses.recipe import (
    Setting,
    right_visible,
    rotated,
)
from clearhead.checking.hypotheses.score_edits import ORDER, SCALES
from clearhead.checking.hypotheses.stage_edit import StageEdit, hides
from clearhead.checking.ranks.placement import Placement, placed, placement
from clearhead.checking.ranks.rank_merging import MERGED

Places = Callable[[Placement], Tensor]


def _here(at: Setting) -> Placement:
    return placement(at.kv_len, at.contract)


def _seen(at: Setting, query: Tensor, key: Tensor) -> Tensor:
    """True where the contract lets a query at one place see a key at another."""
    distance, contract = key - query[:, None], at.contract
    seen = torch.ones(len(query), len(key), dtype=torch.bool)
    if contract.causal:
        seen &= distance <= 0
    before, after = contract.window or (None, None)
    if before is not None:
        seen &= distance >= -before
    if after is not None:
        seen &= distance <= after
    return seen


def _own(at: Setting) -> Tensor:
    """True where query and key are on one rank."""
    owner = _here(at).owner
    return owner[:, None] == owner


def _by(query: Places, key: Places) -> Callable[[Setting], Tensor]:
    """The mask by other places than those in the text."""

    def seen(at: Setting) -> Tensor:
        here = _here(at)
        found = _seen(at, query(here), key(here))
        return found if at.mask is None else found & at.mask

    return seen


def _only_own(at: Setting) -> Tensor:
    return right_visible(at) & _own(at)


def _own_masked_alone(at: Setting) -> Tensor:
    """The mask by local places in a rank's own block, and the other blocks seen whole."""
    local = _here(at).local
    return torch.where(_own(at), _seen(at, local, local), True)


def _later_blocks(at: Setting) -> Tensor:
    owner = _here(at).owner
    return torch.where(_own(at), right_visible(at), owner[:, None] < owner)


def _short_of(steps: int) -> Callable[[Setting], Tensor]:
    """The mask without the block that comes last round a ring, in one direction or the other."""

    def seen(at: Setting) -> Tensor:
        here = _here(at)
        apart = (here.owner[:, None] - here.owner) * steps % here.world
        return right_visible(at) & (apart < here.world - 1)

    return seen


def _window_within(at: Setting) -> Tensor:
    plain = replace(at.contract, window=None)
    return torch.where(_own(at), right_visible(at), right_visible(at._replace(contract=plain)))


def _window_alone_inverted(at: Setting) -> Tensor:
    plain = right_visible(at._replace(contract=replace(at.contract, window=None)))
    return plain & ~right_visible(at._replace(contract=replace(at.contract, causal=None)))


def _dropped(kept: Callable[[Placement], Tensor]) -> Callable[[Setting], Tensor]:
    """The mask without the keys that are left out."""

    def seen(at: Setting) -> Tensor:
        stays = kept(_here(at))
        if not stays.any():
            raise RuntimeError("no key is left")
        return right_visible(at) & stays

    return seen


def _to_the_least(here: Placement) -> Tensor:
    return here.local < min(here.counts)


def _to_whole(here: Placement) -> Tensor:
    return here.row < len(here.row) // here.world * here.world


def _text_to_whole(parts: int) -> Callable[[Placement], Tensor]:
    def kept(here: Placement) -> Tensor:
        block = here.world * parts
        return torch.arange(len(here.row)) < len(here.row) // block * block

    return kept


def _local_to(block: int) -> Callable[[Placement], Tensor]:
    def kept(here: Placement) -> Tensor:
        return here.local < torch.tensor(here.counts)[here.owner] // block * block

    return kept


def _given(rows: Places, columns: Places) -> Callable[[Setting], Tensor]:
    """The mask that is handed in, read at other places."""

    def seen(at: Setting) -> Tensor:
        assert at.mask is not None
        here = _here(at)
        return right_visible(at._replace(mask=at.mask[..., rows(here), :][..., columns(here)]))

    return seen


def _padded(at: Setting) -> int:
    """The padding that makes all ranks as long as the longest."""
    counts = _here(at).counts
    return max(counts) * len(counts) - sum(counts)


def _with_padding(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    """Tokens of zeros behind the others."""

    def longer(tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, 0, 0, _padded(at)))

    return query, longer(key), longer(value)


def _padding_seen(at: Setting) -> Tensor:
    seen = right_visible(at)
    return torch.cat([seen, seen.new_ones(*seen.shape[:-1], _padded(at))], -1)


def _padding_by_rows(at: Setting) -> Tensor:
    """The mask by places in the row of padded ranks, where padding is a token like others."""
    here, most = _here(at), max(_here(at).counts)
    mine = here.owner * most + here.local
    every = torch.arange(most * here.world)
    pads = every[~torch.isin(every, mine)]
    return _seen(at, mine, torch.cat([mine, pads]))


def _from_rank_order(context: Tensor, at: Setting) -> Tensor:
    """The context of each row given to the token that would be there if the ranks were in order."""
    return context[..., _here(at).row, :]


def _to_rank_order(context: Tensor, at: Setting) -> Tensor:
    return context[..., _here(at).order, :]


def _rotated_at(query: Places, key: Places) -> Callable[..., tuple[Tensor, Tensor]]:
    """Query and key rotated at other places than those in the text."""

    def rotate(q: Tensor, k: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        rope = at.contract.rope
        assert rope is not None
        base, kind = float(rope.get("base", 10000.0)), str(rope.get("layout", "half"))
        here = _here(at)

        def turned(tensor: Tensor, places: Tensor) -> Tensor:
            rows = [
                rotated(row, int(place), base, kind)
                for row, place in zip(tensor.split(1, -2), places.tolist(), strict=True)
            ]
            return torch.cat(rows, -2)

        return turned(q, query(here)), turned(k, key(here))

    return rotate


def _heads_padded(tensor: Tensor, at: Setting) -> Tensor:
    """The key head of each query head where both are padded to a multiple of the ranks."""
    world = at.contract.world or 1
    heads, kv_heads = (-(-each // world) * world for each in (at.num_heads, tensor.shape[1]))
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, kv_heads - tensor.shape[1]))
    group = max(1, heads // kv_heads)
    return padded[:, (torch.arange(at.num_heads) // group).clamp(max=kv_heads - 1)]


def _row(here: Placement) -> Tensor:
    return here.row


def _local(here: Placement) -> Tensor:
    return here.local


def _text(here: Placement) -> Tensor:
    return torch.arange(len(here.row))


def _local_to_the_end(here: Placement) -> Tensor:
    """The number on the rank, counted so that the last is the last of all."""
    return here.local + len(here.row) - torch.tensor(here.counts)[here.owner]


def _as_if(layout: str) -> Places:
    """The place in the text if the ranks held another layout."""

    def places(here: Placement) -> Tensor:
        found = placed(len(here.row), here.world, layout, (False, None, None))
        if found.counts != here.counts:
            raise RuntimeError(f"the ranks hold other numbers of tokens than in {layout}")
        return found.order[here.row]

    return places


def _declared(*names: str) -> Callable[[Contract], bool]:
    return lambda contract: any(getattr(contract, each) not in (None, False) for each in names)


def _grouped(contract: Contract) -> bool:
    heads, kv_heads = contract.heads()
    return heads != kv_heads and kv_heads is not None


SEEN: Sequence[tuple[str, str, Callable[[Setting], Tensor], Callable[[Contract], Any]]] = [
    ("ranks.exchange", "own", _only_own, lambda contract: True),
    ("ranks.exchange", "short", _short_of(1), lambda contract: True),
    ("ranks.exchange", "short", _short_of(-1), lambda contract: True),
    ("ranks.order", "contiguous", _by(_row, _row), hides),
    ("ranks.order", "zigzag", _by(_as_if("zigzag"), _as_if("zigzag")), hides),
    ("ranks.order", "keys", _by(_text, _row), hides),
    ("ranks.local-index", "both", _by(_local, _local), hides),
    ("ranks.local-index", "query", _by(_local, _row), hides),
    ("ranks.local-index", "query", _by(_local, _text), hides),
    ("ranks.local-index", "end", _by(_local_to_the_end, _row), hides),
    ("ranks.local-index", "end", _by(_local_to_the_end, _text), hides),
    ("ranks.local-index", "own", _own_masked_alone, hides),
    ("ranks.local-index", "window", _window_within, _declared("window")),
    ("ranks.order", "later", _later_blocks, _declared("causal")),
    ("mask.inverted", "window-alone", _window_alone_inverted, _declared("window")),
    ("ranks.local-index", "given", _given(_local, _text), lambda contract: True),
    ("ranks.order", "given", _given(_row, _row), lambda contract: True),
    ("ranks.order", "given", _given(_row, _text), lambda contract: True),
    ("ranks.order", "given", _given(_text, _row), lambda contract: True),
    ("ranks.tail-dropped", "least", _dropped(_to_the_least), lambda contract: True),
    ("ranks.tail-dropped", "least", _dropped(_to_whole), lambda contract: True),
    *(
        ("ranks.tail-dropped", "least", _dropped(_text_to_whole(parts)), lambda contract: True)
        for parts in (1, 2)
    ),
    *(
        ("ranks.tail-dropped", "block", _dropped(_local_to(block)), lambda contract: True)
        for block in (2, 4, 8, 16)
    ),
]

RANKS: Sequence[StageEdit] = [
    *(StageEdit(code, way, {"visible": seen}, needs) for code, way, seen, needs in SEEN),
    StageEdit("ranks.order", "rows", {"end": _from_rank_order}),
    StageEdit("ranks.order", "rows", {"end": _to_rank_order}),
    StageEdit("ranks.padding", "seen", {"arrange": _with_padding, "visible": _padding_seen}),
    StageEdit(
        "ranks.padding", "row", {"arrange": _with_padding, "visible": _padding_by_rows}, hides
    ),
    StageEdit(
        "ranks.local-positions", "both", {"rotate": _rotated_at(_local, _local)}, _declared("rope")
    ),
    StageEdit(
        "ranks.local-positions", "query", {"rotate": _rotated_at(_local, _text)}, _declared("rope")
    ),
    StageEdit(
        "ranks.local-positions", "row", {"rotate": _rotated_at(_row, _row)}, _declared("rope")
    ),
    *MERGED,
    StageEdit("ranks.heads-padded", "groups", {"group": _heads_padded}, _grouped),
]

BANK = (MASKS, HIDING, SOFTMAX, SCALES, ORDER, GROUPS, HEADS, MERGES, ROPE, ALIGNMENT, GIVEN)

CODES = tuple(dict.fromkeys(each.code for some in (RANKS, *BANK) for each in some))
"""Every name that the outputs can have."""


def mutants(contract: Contract, *, given: bool, masked: bool, uneven: bool) -> list[StageEdit]:
    """The mistakes that are possible under a contract, those of ranks first; without padding where all
    ranks have as many tokens in every call."""
    mine = [each for each in RANKS if uneven or each.code != "ranks.padding"]
    mine = [each for each in mine if each.needs(contract)]
    return [*mine, *edits(contract, given=given, masked=masked)]
