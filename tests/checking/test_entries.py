"""The banks say what they claim: functions of query, key and value are held against the textbook, without `check`."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.checking.words import catalogue, code_of
from tests.checking.bank import BANKS, entries
from tests.checking.bank.entry import Entry

EVERYTHING = [entry for bank in BANKS for entry in entries(bank)]
SHOWN = [
    each.with_facts()
    for bank in ("open", "held_out")
    for each in entries(bank)
    if not each.unproved
]
FUNCTIONS = [each for each in SHOWN if each.takes in ("qkv", "qkv,mask")]
# Mistakes that change no output in float64, without dropout, of contiguous inputs that are finite and short.
UNSEEN = {
    "dropout.never", "dropout.wrong", "grad.wrong",
    "input.modified", "input.strided", "law.length", "mask.empty-row", "mask.leaks-nan", "weights.not-used",
}  # fmt: skip


def textbook(
    declared: dict[str, Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> Tensor:
    """Attention in float64, dense, as it is declared; the last query belongs to the last key."""
    queries, keys = query.shape[-2], key.shape[-2]
    before = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    if "rope" in declared:
        query = rotated(query, keys - queries, **declared["rope"])
        key = rotated(key, 0, **declared["rope"])
    key, value = (
        each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value)
    )
    scores = query @ key.mT * declared.get("scale", query.shape[-1] ** -0.5)
    if "softcap" in declared:
        scores = declared["softcap"] * torch.tanh(scores / declared["softcap"])
    if "bias" in declared:
        scores = scores + declared["bias"](queries, keys)
    if "alibi_slopes" in declared:
        scores = scores - declared["alibi_slopes"][:, None, None] * before.abs()
    left, right = declared.get("window", (keys, 0 if declared.get("causal") else keys))
    right = 0 if declared.get("causal") else right
    scores = scores.masked_fill(~mask | (before > left) | (-before > right), -math.inf)
    if "sinks" in declared:
        sinks = declared["sinks"].double()[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ value
    return scores.softmax(-1) @ value


def rotated(x: Tensor, start: int, base: float = 10000.0, layout: str = "half") -> Tensor:
    pairs = x.unflatten(-1, (2, -1) if layout == "half" else (-1, 2)).movedim(
        -2 if layout == "half" else -1, -1
    )
    rates = base ** (-torch.arange(pairs.shape[-2], dtype=torch.float64) / pairs.shape[-2])
    angles = torch.outer(torch.arange(start, start + x.shape[-2], dtype=torch.float64), rates)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).movedim(-1, -2 if layout == "half" else -1).flatten(-2)


def calls(entry: Entry) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Query, key, value and mask of each call: as many queries as keys or fewer, with values of another width."""
    generator = torch.Generator().manual_seed(7)
    sizes = entry.declared.get("sizes", {})
    heads = entry.declared.get("num_heads", 3)
    shared = entry.declared.get("num_kv_heads", heads)
    width = sizes.get("head_dim", 4 if "rope" in entry.declared else 5)
    made = []
    for queries, keys, other in ((7, 7, width), (5, 11, width), (5, 11, 3), (1, 5, width)):
        shapes = (
            (heads, queries, width),
            (shared, keys, width),
            (shared, keys, sizes.get("value_head_dim", other)),
        )
        drawn = (torch.randn(2, *each, generator=generator, dtype=torch.float64) for each in shapes)
        query, key, value = drawn
        mask = torch.rand(2, 1, queries, keys, generator=generator) < 0.6
        mask[..., keys - queries :] |= torch.eye(queries, dtype=torch.bool)
        made.append((1.5 * query, 1.5 * key, value, mask))
    return made


def is_the_textbook(entry: Entry, run: Any) -> bool:
    for query, key, value, mask in calls(entry):
        takes_mask = entry.takes == "qkv,mask"
        given = (query, key, value, mask) if takes_mask else (query, key, value)
        expected = textbook(
            entry.options(),
            query,
            key,
            value,
            mask if takes_mask else torch.ones(1, dtype=torch.bool),
        )
        try:
            found = run(*(each.clone() for each in given))
        except RuntimeError:
            return False
        found = found[0] if isinstance(found, tuple) else found
        if found.shape != expected.shape or not torch.allclose(
            found.double(), expected, rtol=2e-5, atol=2e-5
        ):
            return False
    return True


@pytest.mark.parametrize("entry", FUNCTIONS, ids=lambda each: each.name)
def test_a_right_function_is_the_textbook_and_a_wrong_one_is_not(entry: Entry) -> None:
    # What overflows in a declared dtype is finite in float64.
    unseen = UNSEEN | ({"output.non-finite"} if "dtypes" in entry.declared else set())
    if not unseen & set(map(code_of, entry.codes)):
        made = entry.make()
        run = made.eval() if isinstance(made, nn.Module) else made
        with torch.no_grad():
            assert is_the_textbook(entry, run) is not bool(entry.codes)


def test_every_code_has_two_entries_and_names_are_unique() -> None:
    mistakes = catalogue()["mistake"].keys()
    for bank in BANKS:
        assert not [name for name, n in Counter(e.name for e in entries(bank)).items() if n > 1]
    assert {code_of(code) for each in EVERYTHING for code in each.codes} <= mistakes


def test_entries_are_made_anew_and_the_same() -> None:
    for entry in EVERYTHING:
        state = torch.get_rng_state()
        one, two = entry.make(), entry.make()
        assert torch.equal(torch.get_rng_state(), state), entry.name
        if isinstance(one, nn.Module):
            assert one is not two, entry.name
            for a, b in zip(one.parameters(), two.parameters(), strict=True):
                assert a.equal(b) or a.isnan().all(), entry.name
