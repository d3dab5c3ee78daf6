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
    def forward(self, x, start_pos, mask, kv_cache, is_causal, dropout, head_dim):
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


def kind(name: str, annotation: Any = inspect.Parameter.empty) -> str:
    return kind_of(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation))


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
        ("past_key_value", "optional"),
        ("attn_bias", "optional"),
        ("d_k", "size"),
    ],
)
def test_what_a_name_is_for(name, expected):
    assert kind(name) == expected


def test_a_type_says_more_than_a_name():
    assert kind("other", bool) == "flag"


def test_signatures_are_read_of_classes_and_of_instances():
    assert list(of_call(Late)) == list(of_call(Late()))
    assert list(of_call(lambda a, *rest, b=1, **more: a)) == ["a", "b"]
    assert of_call(torch.relu) == of_call(type("Uncallable", (), {})) == {}
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
    names, x = of_call(Cached()), torch.randn(2, 6, 8)
    assert filled(names, {"x": x}, x, causal=False) == {
        "start_pos": 0, "mask": None, "kv_cache": None, "is_causal": False, "dropout": 0.0, "head_dim": 8,
    }  # fmt: skip
    # A causal mask would come by the mask.
    assert filled(names, {"x": x}, x, causal=True) is None
    assert filled(of_call(lambda x, other: x), {"x": x}, x, causal=False) is None
