"""The arguments of a constructor, from sizes and from instances."""

from typing import Any

import torch
from torch import nn

from clearhead._common.foreign_names import size_of
from clearhead.checking.contract import Contract
from clearhead.checking.subject.constructing import (
    arguments_again,
    declared_arguments,
    guessed_arguments,
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

    def __init__(self, embed_dim: int, heads: int = 8) -> None:
        super().__init__()
        assert embed_dim % heads == 0
        self.heads, self.query = heads, nn.Linear(embed_dim, embed_dim)


def test_a_width_fits_the_heads_of_the_signature() -> None:
    assert guessed_arguments(Divided, {}, Contract()) == {"embed_dim": 80}
    assert guessed_arguments(Divided, {"heads": 2}, Contract()) == {"embed_dim": 30}


class Needs(nn.Module):
    def __init__(self, inner, rate: int, embed_dim: int, flag: bool) -> None:  # type: ignore[no-untyped-def]
        super().__init__()


def test_what_is_no_size_is_not_guessed() -> None:
    assert guessed_arguments(Needs, {}, Contract()) == {"embed_dim": 30}
