# pyright: basic
"""The parameters of foreign code, and what a call is filled with."""

import argparse
import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from clearhead.checking.subject.signatures import (
    filled,
    kind_of,
    masks_of,
    needed,
    of_call,
    of_constructor,
    settings_of,
    sides_of,
    tensors_of,
)


class Slotted:
    __slots__ = ("eos_token_id", "unset", "width")

    def __init__(self):
        self.eos_token_id, self.width = 3, 8


class Fixed:
    width = 8

    def heads(self):
        return 2


@dataclass
class Data:
    width: int = 8


@pytest.mark.parametrize(
    "config",
    [
        {"width": 8}, Slotted(), Fixed, Fixed(), Data(), Data(width=8), SimpleNamespace(width=8),
        argparse.Namespace(width=8),
    ],
)  # fmt: skip
def test_settings_are_read_whatever_holds_them(config):
    found = settings_of(config)
    assert found["width"] == 8
    assert set(found) <= {"width", "eos_token_id", "unset"}


def test_no_config_has_no_settings():
    assert settings_of(None) == {}


class Cached(nn.Module):
    head_dim = 4

    def forward(self, x, start_pos, freqs_cis, mask, kv_cache, is_causal, dropout, head_dim, h, w):
        return x


class Late(nn.Module):
    """Three names of sides stand behind what the call is about."""

    def forward(self, x, fast_weights_q=None, fast_weights_k=None, fast_weights_v=None):
        return x


class Parent(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()


class Child(Parent):
    def __init__(self, depth, **others):
        super().__init__(**others)


def kind(name: str, annotation: Any = inspect.Parameter.empty, names: Any = ()) -> str:
    return kind_of(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation), names
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", "tensor"),
        ("values", "tensor"),
        ("memory", "tensor"),
        ("encoder_out", "tensor"),
        ("src_mask", "mask"),
        ("valid_lens", "mask"),
        ("need_weights", "flag"),
        ("causal", "flag"),
        ("attn_drop", "dropout"),
        ("cfg", "config"),
        ("start_pos", "start"),
        ("position_ids", "places"),
        ("freqs_cis", "angles"),
        ("cos_sin", "turns"),
        ("pos_embed", "vectors"),
        ("past_key_value", "optional"),
        ("attn_bias", "optional"),
        ("d_k", "size"),
        ("h", "size"),
    ],
)
def test_what_a_name_is_for(name, expected):
    assert kind(name) == expected


def test_a_type_and_a_neighbour_say_more_than_a_name():
    assert kind("other", bool) == "flag"
    assert kind("h", names=["x", "h", "w"]) == "grid"
    assert kind("H", names=["x", "H", "W"]) == "grid"


def test_signatures_are_read_of_classes_and_of_instances():
    assert list(of_call(Late)) == list(of_call(Late()))
    assert list(of_call(lambda a, *rest, b=1, **more: a)) == ["a", "b"]
    assert of_call(torch.relu) == {}
    assert list(of_constructor(Child)) == ["depth", "width", "heads"]
    assert needed(of_constructor(Child)) == ["depth", "width"]


def test_the_tensors_of_a_call_are_what_nothing_else_stands_for():
    names = of_call(Cached())
    assert tensors_of(names) == ["x"]
    assert masks_of(names) == ["mask"]


def test_query_key_and_value_are_sides_only_of_a_call_that_is_about_them():
    assert sides_of(of_call(Late())) is None
    swapped = sides_of(of_call(lambda values, keys, queries, mask: values))
    assert swapped == ("queries", "keys", "values")
    assert sides_of(of_call(lambda query, key: query)) is None


def test_a_call_is_filled_with_what_it_wants_beside_its_tensors():
    layer, x = Cached(), torch.randn(2, 6, 8)
    found = filled(layer, of_call(layer), {"x": x}, x, causal=False)
    assert found is not None
    angles = found.pop("freqs_cis")
    assert (angles.shape, angles.dtype) == ((6, 2), torch.complex64)
    assert torch.allclose(
        angles.angle()[:, 0], torch.arange(6.0).sub(torch.pi).remainder(2 * torch.pi) - torch.pi
    )
    assert found == {
        "start_pos": 0, "mask": None, "kv_cache": None, "is_causal": False, "dropout": 0.0,
        "head_dim": 8, "h": 6, "w": 1,
    }  # fmt: skip
    # A causal mask would come by the mask.
    assert filled(layer, of_call(layer), {"x": x}, x, causal=True) is None


def test_nothing_stands_for_another_tensor():
    x = torch.randn(2, 6, 8)
    assert filled(None, of_call(lambda x, other: x), {"x": x}, x, causal=False) is None


def test_positions_as_vectors_are_none_at_all():
    x = torch.randn(2, 6, 8)
    found = filled(None, of_call(lambda x, pos_embed: x), {"x": x}, x, causal=False)
    assert found is not None
    assert torch.equal(found["pos_embed"], torch.zeros_like(x))


def test_an_angle_needs_a_head_dim():
    x = torch.randn(2, 6, 8)
    with pytest.raises(TypeError, match="it has no head_dim to make them of"):
        filled(None, of_call(lambda x, freqs_cis: x), {"x": x}, x, causal=False)
