# type: ignore
# A decoder as people write it, hence without types.
"""Decoders whose step or whose full(x) is another than declared."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.checking.judging.decoders import full_mask
from clearhead.checking.judging.verdicts import Unknown
from tests.checking.bank import defined

OneBehind = defined("laws.OneBehind")
StartsAgain = defined("laws.StartsAgain")
TurnedTwice = defined("laws.TurnedTwice")
ValuesLost = defined("laws.ValuesLost")
CutOneLate = defined("wrong_cache.CutOneLate")
EmptyPlacesAreSeen = defined("wrong_cache.EmptyPlacesAreSeen")
TrimmedBeforeUse = defined("wrong_cache.TrimmedBeforeUse")


class Decoder(nn.Module):
    """Sees `back` tokens back, but for the one that is `hole` back; `times` is how often a step gives each output."""

    def __init__(self, back=None, times=1, future=False, hole=None):
        super().__init__()
        self.back, self.times, self.future, self.hole = back, times, future, hole
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.reset()

    def reset(self):
        self.seen = None

    def attend(self, x, seen):
        scores = self.query(x) @ self.key(seen).mT / 8**0.5
        places = torch.arange(seen.shape[1])
        far = places[-x.shape[1] :, None] - places
        hidden = torch.zeros_like(far, dtype=torch.bool) if self.future else far < 0
        if self.back is not None:
            hidden |= far > self.back
        if self.hole is not None:
            hidden |= far == self.hole
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.value(seen)

    def full(self, x):
        return self.attend(x, x)

    def step(self, x):
        self.seen = x if self.seen is None else torch.cat([self.seen, x], 1)
        return self.attend(x, self.seen).repeat_interleave(self.times, 1)


def found(**options):
    torch.manual_seed(0)
    declared = {"causal": True} | ({} if "back" not in options else {"window": (3, 0)})
    return ch.check(Decoder(**options), takes="decode", **declared)


@pytest.mark.parametrize(
    ("back", "code"),
    [
        (5, "differs"),
        (4, "mask.off-by-one"),
        (2, "mask.off-by-one"),
        (1, "differs"),
        (None, "mask.missing"),
    ],
)
def test_another_window_than_is_declared_is_a_mistake(back, code):
    (finding,) = found(back=back).findings
    assert finding.code == code


def test_the_declared_window_is_right():
    assert found(back=3).ok


@pytest.mark.parametrize("options", [{}, {"back": 3}])
def test_a_key_that_is_never_seen_is_not_called_right(options):
    report = found(hole=2, **options)
    assert not report.findings
    assert not report.ok
    assert "causal" not in report.passed
    assert any("outputs do not change with some keys" in each for each in report.unverified)


@pytest.mark.parametrize("contract", [ch.Contract(causal=True), ch.Contract(window=(3, None))])
def test_outputs_that_move_with_nothing_have_no_mask_of_a_name(contract):
    still = SimpleNamespace(full_moves=torch.zeros(7, 7, dtype=torch.bool), contract=contract)
    assert full_mask(still) == Unknown("unmoved")


def test_the_future_in_the_whole():
    assert "mask.missing" in [each.code for each in found(future=True).findings]


def test_a_step_that_gives_another_number_of_outputs():
    (finding,) = found(times=2).findings
    assert finding.code == "cache.wrong"


class FromTheStart(Decoder):
    """Positions that begin anew with every chunk: learned ones, or angles."""

    def __init__(self, angles):
        super().__init__()
        self.angles, self.table = angles, nn.Embedding(64, 8)

    def placed(self, x):
        return x if self.angles else x + self.table(torch.arange(x.shape[1]))

    def turned(self, x):
        if not self.angles:
            return x
        places = torch.arange(x.shape[1])[:, None] * 10.0 ** -torch.arange(4)
        one, other = x.chunk(2, -1)
        cos, sin = places.cos(), places.sin()
        return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)

    def reset(self):
        self.keys, self.values = [], []

    def step(self, x):
        x = self.placed(x)
        self.keys.append(self.turned(self.key(x)))
        self.values.append(self.value(x))
        key, value = torch.cat(self.keys, 1), torch.cat(self.values, 1)
        hidden = torch.ones(x.shape[1], key.shape[1]).triu(1 + key.shape[1] - x.shape[1]).bool()
        scores = self.turned(self.query(x)) @ key.mT / 8**0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    def full(self, x):
        return FromTheStart.step(self.anew(), x)

    def anew(self):
        other = FromTheStart(self.angles)
        other.load_state_dict(self.state_dict())
        return other.to(self.query.weight.dtype)


@pytest.mark.parametrize(("angles", "code"), [(False, "cache.wrong"), (True, "cache.wrong")])
def test_positions_that_restart_have_one_name(angles, code):
    torch.manual_seed(0)
    (finding,) = ch.check(FromTheStart(angles), takes="decode", causal=True).findings
    assert finding.code == code


class Chunks(Decoder):
    def step(self, x):
        self.seen = x if self.seen is None else torch.cat([self.seen, x], 1)
        scores = self.query(x) @ self.key(self.seen).mT / 8**0.5
        return scores.softmax(-1) @ self.value(self.seen)


def test_a_chunk_that_is_not_masked_is_told_apart_from_another_offset():
    torch.manual_seed(0)
    (finding,) = ch.check(Chunks(), takes="decode", causal=True).findings
    assert finding.code == "cache.wrong"


@pytest.mark.parametrize("made", [StartsAgain, OneBehind, TurnedTwice, ValuesLost])
def test_other_positions_and_values_with_a_cache_have_one_name(made):
    finding = ch.check(made(), takes="decode", causal=True).findings[0]
    assert finding.code == "cache.wrong"


@pytest.mark.parametrize(
    "made", [lambda: CutOneLate(8, 2, 4), lambda: TrimmedBeforeUse(8, 8, 2, 3)]
)
def test_a_cache_that_keeps_too_much_or_too_little_past_the_window(made):
    torch.manual_seed(0)
    (finding,) = ch.check(made(), takes="decode", causal=True, window=(3, 0)).findings
    assert finding.code == "cache.wrong"


@pytest.mark.parametrize("unwritten", [0.0, 1.0])
def test_unwritten_places_that_take_weight_are_no_positions(unwritten):
    torch.manual_seed(0)
    decoder = EmptyPlacesAreSeen(8, 2, 64)
    decoder.unwritten = unwritten
    (finding,) = ch.check(decoder, takes="decode", causal=True).findings
    assert finding.code == "cache.wrong"
