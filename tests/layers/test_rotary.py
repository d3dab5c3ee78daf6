"""Rotary positions against those of transformers, and by their laws."""

import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

import clearhead as ch
from clearhead.layers import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    Rotary,
    Scaling,
    Yarn,
)
from tests.refusals import refusals, run, wrong

DIM, LENGTH, ORIGINAL = 12, 37, 16
FACTORS = [1.0, 1.1, 1.3, 1.7, 2.0, 2.5], [1.0, 1.5, 2.0, 4.0, 8.0, 9.0]
EPS = torch.finfo(torch.float64).eps

# Their names of what ours are made of.
NAMES = {
    "original_len": "original_max_position_embeddings", "fast": "beta_fast", "slow": "beta_slow",
    "attention_gain": "attention_factor", "low": "low_freq_factor", "high": "high_freq_factor",
    "short": "short_factor", "long": "long_factor",
}  # fmt: skip
SCALINGS: dict[str, Scaling] = {
    "linear": Linear(4.0),
    "dynamic": Dynamic(3.0, original_len=ORIGINAL),
    "yarn": Yarn(8.0, original_len=ORIGINAL),
    "yarn, not at whole pairs": Yarn(
        8.0, original_len=64, fast=5.0, slow=0.5, truncate=False, attention_gain=1.5
    ),
    "llama3": Llama3(8.0, original_len=512, low=1.0, high=4.0),
    "longrope": LongRope(*FACTORS, original_len=ORIGINAL, factor=4.0),
}


def theirs(name: str, length: int) -> tuple[Tensor, float]:
    """Frequencies and gain by transformers, which works them out in float32."""
    kind, ours = name.split(",")[0], vars(SCALINGS[name])
    given = {NAMES.get(each, each): value for each, value in ours.items()}
    config = transformers.LlamaConfig(
        hidden_size=DIM,
        num_attention_heads=1,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_type": kind, "rope_theta": 10_000.0, **given},
    )
    made: Any = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return made


@pytest.mark.parametrize("length", [ORIGINAL - 3, ORIGINAL, ORIGINAL + 21])
@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_are_those_of_transformers(name: str, length: int) -> None:
    scaling = SCALINGS[name]
    frequencies, gain = theirs(name, length)
    plain = 10_000.0 ** -(torch.arange(DIM // 2).double() / (DIM // 2))
    ours = scaling.stretched(plain, 10_000.0, torch.tensor(length))
    torch.testing.assert_close(ours, frequencies.double(), rtol=1e-5, atol=0)
    assert scaling.gain == pytest.approx(gain)


def test_ntk_stretches_the_slowest_pair_whole_and_the_fastest_not_at_all() -> None:
    plain = 10_000.0 ** -(torch.arange(6).double() / 6)
    ours = Ntk(4.0).stretched(plain, 10_000.0, torch.tensor(9)) / plain
    assert (ours[0].item(), ours[-1].item()) == (1.0, pytest.approx(0.25))
    # It is plain rotation with a base of 10 000 · 4 ** (dim / (dim − 2)).
    base = 10_000.0 * 4 ** (12 / 10)
    torch.testing.assert_close(ours * plain, base ** -(torch.arange(6).double() / 6))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turning_is_that_of_transformers(layout: Any) -> None:
    rotary = Rotary(DIM, base=1_000.0, layout=layout)
    query = torch.randn(2, 3, LENGTH, DIM, dtype=torch.float64)
    positions = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH) * 3 + 5])
    angles = positions[..., None] * 1_000.0 ** -(torch.arange(DIM // 2).double() / (DIM // 2))
    if layout == "half":
        cos, sin = (torch.cat([each(angles)] * 2, dim=-1) for each in (torch.cos, torch.sin))
        expected = halves(query, query, cos, sin)[0]
    else:
        # Theirs has heads behind tokens.
        turned = interleaved(query.transpose(1, 2), angles.sin(), angles.cos())
        expected = turned.transpose(1, 2)
    torch.testing.assert_close(rotary(query, positions), expected, rtol=0, atol=64 * EPS)


def test_a_part_of_a_head_may_turn() -> None:
    rotary, small = Rotary(DIM, rotated_dim=4), Rotary(4)
    query, positions = torch.randn(2, 3, LENGTH, DIM), torch.arange(LENGTH)
    turned = rotary(query, positions)
    assert torch.equal(turned[..., 4:], query[..., 4:])
    assert torch.equal(turned[..., :4], small(query[..., :4], positions))


PLACES = st.integers(0, 5_000)


@settings(max_examples=25)
@given(PLACES, PLACES, PLACES, st.sampled_from(["half", "interleaved"]))
def test_scores_depend_on_distances_alone(i: int, j: int, shift: int, layout: Any) -> None:
    rotary = Rotary(DIM, layout=layout, rotated_dim=DIM - 2, scaling=Linear(2.0))
    query, key = torch.randn(2, 1, DIM, dtype=torch.float64)

    def score(query_place: int, key_place: int) -> Tensor:
        turned = rotary(query, torch.tensor([query_place]))
        return (turned * rotary(key, torch.tensor([key_place]))).sum()

    # An angle of 10 000 radians has lost that many digits.
    bound = 1e4 * 64 * EPS
    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), rtol=0, atol=bound)
    length = rotary(query, torch.tensor([i])).norm()
    torch.testing.assert_close(length, query.norm(), rtol=0, atol=64 * EPS)
    twice = rotary(rotary(query, torch.tensor([i])), torch.tensor([j]))
    torch.testing.assert_close(twice, rotary(query, torch.tensor([i + j])), rtol=0, atol=bound)
    assert torch.equal(rotary(query, torch.tensor([0])), query)


def test_far_positions_are_exact() -> None:
    """At a million tokens, an angle in float32 would be off by a twentieth of a radian."""
    rotary, place = Rotary(2), 1_000_003
    turned = rotary(torch.tensor([[1.0, 0.0]]), torch.tensor([place]))
    expected = [math.cos(place), math.sin(place)]
    assert turned.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_precision_is_that_of_the_input() -> None:
    query, positions = torch.randn(1, 2, LENGTH, DIM, dtype=torch.bfloat16), torch.arange(LENGTH)
    turned = Rotary(DIM)(query, positions)
    exact = Rotary(DIM)(query.double(), positions)
    assert turned.dtype == torch.bfloat16
    # Products of rounded factors, and their sum: four roundings.
    bound = 4 * torch.finfo(torch.bfloat16).eps * float(query.abs().max()) * 2
    torch.testing.assert_close(turned.double(), exact, rtol=0, atol=bound)


def test_in_a_layer_it_is_a_turn_of_query_and_key() -> None:
    rotary = Rotary(4, scaling=Dynamic(2.0, original_len=5))
    layer = ch.MultiHeadAttention(16, num_heads=4, num_kv_heads=2, parts=[rotary])
    plain = ch.MultiHeadAttention(16, num_heads=4, num_kv_heads=2)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 7, 16)
    turned, straight = layer.make_problem(x), plain.make_problem(x)
    positions = torch.arange(7)
    assert torch.equal(turned.query, rotary(straight.query, positions))
    assert torch.equal(turned.key, rotary(straight.key, positions))
    assert torch.equal(turned.value, straight.value)


def test_it_keeps_nothing() -> None:
    assert Rotary(4).state_dict() == {}
    assert repr(Rotary(6, rotated_dim=4, scaling=Linear(2.0))) == (
        "Rotary(6, base=10000, layout='half', rotated_dim=4, scaling=Linear(factor=2.0))"
    )


def test_there_may_be_no_tokens() -> None:
    empty = torch.zeros(1, 2, 0, 4)
    assert Rotary(4, scaling=Linear(2.0))(empty, torch.arange(0)).shape == empty.shape


test_refusals = refusals(
    run,
    (lambda: Rotary(5), "rotary.dim", "5 // 5"),
    (lambda: Rotary(4, rotated_dim=6), "rotary.dim", "4 // 6"),
    (lambda: Rotary(4, base=1.0), "rotary.base", "1.0"),
    (lambda: Rotary(4, layout=wrong("neox")), "rotary.layout", "'neox'"),
    (lambda: Rotary(4, scaling=wrong(2.0)), "rotary.scaling", "float"),
    (lambda: Rotary(4)(torch.zeros(3, 4), torch.zeros(3)), "positions.type", "torch.float32"),
    (
        lambda: Rotary(4)(torch.zeros(1, 2, 3, 4), torch.arange(2)),
        "rotary.shape",
        "… // 4 // (1, 2, 3, 4) // (2,)",
    ),
    (lambda: Linear(0.5), "scaling.value", "factor // 1 // 0.5"),
    (
        lambda: LongRope([1.0], [2.0], original_len=1, factor=4.0),
        "scaling.value",
        "original_len // 2 // 1",
    ),
    (
        lambda: Yarn(2.0, original_len=8, fast=float("inf"), slow=2.0),
        "scaling.value",
        "slow // fast // slow // 2.0 // inf",
    ),
    (
        lambda: Yarn(2.0, original_len=8, fast=1.0, slow=2.0),
        "scaling.value",
        "slow // fast // slow // 2.0 // 1.0",
    ),
    (
        lambda: Rotary(4, scaling=LongRope([1.0], [1.0], 8))(torch.zeros(3, 4), torch.arange(3)),
        "scaling.pairs",
        "2 // 1 // 1",
    ),
)


def test_a_gain_is_that_which_is_given() -> None:
    short, long = [1.0, 2.0], [2.0, 4.0]
    assert LongRope(short, long, 8, factor=4.0, attention_gain=1.5).gain == 1.5
    assert LongRope(short, long, 8).gain == 1.0
