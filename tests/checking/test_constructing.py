"""The arguments of a constructor, from sizes and from instances."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from clearhead._common.foreign_names import size_of
from clearhead.checking.contract import Contract
from clearhead.checking.subject.constructing import (
    arguments_again,
    config,
    declared_arguments,
    guess,
    guessed_arguments,
    nested,
    sizes_for,
    unguessed,
)
from clearhead.checking.subject.signatures import of_constructor


class Parent(nn.Module):
    def __init__(self, d_model: int, n_heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = nn.Dropout(dropout)
        self.query = nn.Linear(d_model, d_model)


class Child(Parent):
    def __init__(self, flag: bool, **others: Any) -> None:
        super().__init__(**others)
        self._flag = flag


class Secretive(nn.Module):
    def __init__(self, key: int) -> None:
        super().__init__()
        self.linear = nn.Linear(key, key)


def test_names_of_sizes() -> None:
    assert [size_of(name) for name in ("d_model", "nhead", "d_k", "max_len", "flag")] == [
        "d_in",
        "num_heads",
        "head_dim",
        "context_length",
        None,
    ]


def test_the_parameters_of_a_parent_go_on() -> None:
    assert list(of_constructor(Parent)) == ["d_model", "n_heads", "dropout"]
    assert list(of_constructor(Child)) == ["flag", "d_model", "n_heads", "dropout"]
    assert of_constructor(torch.Size) == {}


def test_what_a_contract_says_of_parameters() -> None:
    contract = Contract(num_heads=3, dropout=0.4, sizes={"d_in": 7})
    assert declared_arguments(Parent, contract) == {"d_model": 7, "n_heads": 3, "dropout": 0.4}
    assert declared_arguments(Parent, Contract()) == {}


def test_dropout_that_is_wanted_and_not_declared_is_none() -> None:
    class Wants(nn.Module):
        def __init__(self, d_in: int, dropout: float) -> None:
            super().__init__()

    assert declared_arguments(Wants, Contract()) == {"dropout": 0.0}


def test_the_arguments_of_an_instance() -> None:
    instance = Child(flag=True, d_model=6, n_heads=2, dropout=0.25)
    found = arguments_again(instance, Contract(), {"d_in": 6})
    assert found == {"flag": True, "d_model": 6, "n_heads": 2, "dropout": 0.25}


def test_an_instance_that_does_not_show_them() -> None:
    assert arguments_again(Secretive(3), Contract(), {"d_in": 3}) is None


class Divided(nn.Module):
    """Eight heads by default, which divide the width."""

    def __init__(self, emb_width: int, heads: int = 8) -> None:
        super().__init__()
        assert emb_width % heads == 0
        self.heads, self.query = heads, nn.Linear(emb_width, emb_width)


def test_a_width_fits_the_heads_of_the_signature() -> None:
    assert guessed_arguments(Divided, {}, Contract()) == {"emb_width": 80}
    assert guessed_arguments(Divided, {"heads": 2}, Contract()) == {"emb_width": 30}


def test_a_temperature_is_that_of_the_heads() -> None:
    assert guess("temperature", inspect.Parameter.empty, {}) == 10**0.5
    assert guess("patch_dim_count", inspect.Parameter.empty, {"d_in": 30}) is False


@pytest.mark.parametrize(
    ("name", "annotation", "value"),
    [
        ("norm_eps", float, 1e-5),
        ("use_bias", bool, True),
        ("use_bias", int, 2),
        ("name", str, ""),
        ("rate_of_decay", float, 0.1),
        ("verbose", bool, False),
        ("num_layers", int, 2),
        ("attn_dropout", float, 0.0),
        ("attn_dropout", inspect.Parameter.empty, 0.0),
    ],
)
def test_what_is_no_size_is_guessed_by_name_and_type(
    name: str, annotation: Any, value: Any
) -> None:
    found = guess(name, annotation, {"d_in": 30})
    assert (found, type(found)) == (value, type(value))


def test_settings_without_a_type_answer_as_objects_and_as_dictionaries() -> None:
    settings = config(None, {"n_head": 4}, {"d_in": 30, "num_heads": 3, "context_length": 16})
    assert settings.dropout == 0.0
    assert (settings["n_head"], settings["n_embd"]) == (4, 30)
    assert "anything" in settings
    assert settings.get("block_size", 1024) == 16
    assert settings.get("mode", "fast") == "fast"
    assert settings.get("vocab_size") == 53


@dataclass
class Settings:
    scaling: str
    n_embd: int = 768
    n_layer: int = 12
    num_layers: int = 1
    vocab_size: int = 50304
    pad_token_id: int = 50256
    sides: list[int] = field(default_factory=list)


class Configured(nn.Module):
    def __init__(self, config: Settings) -> None:
        super().__init__()


def test_a_dataclass_of_settings_is_made_small_where_that_changes_no_attention() -> None:
    made = config(Settings, {}, sizes_for({"d_in"}, Contract()))
    # The token of the padding is one of the vocabulary.
    assert made == Settings("", n_embd=30, n_layer=2, num_layers=1, vocab_size=50304)
    given = nested({"config.n_layer": 3, "config.scaling": "root"}, Configured, Contract())
    assert (given["config"].n_layer, given["config"].scaling) == (3, "root")


class Unknown(nn.Module):
    def __init__(self, inner, width: int, dropout, layer_idx, cfg, use_it, flag: bool) -> None:  # type: ignore[no-untyped-def]
        super().__init__()


def test_what_no_name_and_no_type_says() -> None:
    assert unguessed(Unknown) == ["inner"]


@dataclass
class Unset:
    n_heads: int | None = None
    n_kv_heads: int | None = None
    vocab_size: int = -1


def test_sizes_that_settings_leave_open_are_set() -> None:
    assert config(Unset, {}, sizes_for({"num_heads"}, Contract())) == Unset(3, None, 53)
