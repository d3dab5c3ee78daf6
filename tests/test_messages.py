"""Messages: whatever an argument, a name or a file says of itself, a message stays short and plain."""

import itertools
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead import errors
from clearhead._text import bounded, shown

ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e\x9b"


class Silent:
    """An object that says nothing of itself."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    __str__ = __repr__


class Acting:
    def __repr__(self) -> str:
        return ESCAPE


class Endless:
    def __repr__(self) -> str:
        return "endless " * 10**5


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no message")


MONSTERS: dict[str, Callable[[], Any]] = {
    "repr raises": Silent,
    "repr acts": Acting,
    "repr is endless": Endless,
    "class": lambda: type(f"Named{ESCAPE}", (), {}),
    "instance": lambda: type(f"Named{ESCAPE}", (), {})(),
    "letters": lambda: "a" * 10**6,
    "escapes": lambda: ESCAPE * 1000,
    "surrogate": lambda: "\ud800",
    "digits": lambda: 10**5000,
    "list": lambda: [Silent(), *range(10**4)],
    "nested": lambda: [[[["a" * 10**6] * 100] * 100] * 100],
    "dict": lambda: {ESCAPE: Silent()},
    "bytes": lambda: b"\x1b" * 10**6,
}

X = torch.zeros(1, 2, 3, 4)
MATRIX = ch.AttentionMatrix(X, X)


def attends(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return ch.attend(query, key, value)


def trains(**given: Any) -> object:
    model = nn.Embedding(9, 9)
    script = {"loss": attends, "batch": torch.ones(2, 3).long()} | given
    optimizer = torch.optim.SGD(model.parameters())
    return ch.testing.check_training(model, optimizer=optimizer, **script)


def named(name: object) -> dict[str, Any]:
    return {name if isinstance(name, str) else shown(name): None}


CALLS: dict[str, Callable[[Any], object]] = {
    **{
        f"attend {name}": lambda it, name=name: ch.attend(X, X, X, **{name: it})
        for name in ("mask", "bias", "scale", "softcap", "sinks", "dropout", "kernel")
    },
    "attend words": lambda it: ch.attend(X, X, X, **named(it)),
    "check words": lambda it: ch.check(attends, **named(it)),
    "attend query": lambda it: ch.attend(it, X, X),
    "causal": lambda it: ch.causal(offset=it),
    "padding": lambda it: ch.padding(it),
    "documents": lambda it: ch.documents(it),
    "dense": lambda it: ch.dense(it),
    "mask and": lambda it: ch.causal() & it,
    "alibi": lambda it: ch.alibi(it),
    "index": lambda it: MATRIX[it],
    "matmul": lambda it: MATRIX @ it,
    "rollout": lambda it: ch.reading.rollout(it),
    "rollout head": lambda it: ch.reading.rollout([MATRIX], head=it),
    "across": lambda it: ch.across(it, tokens=3),
    "across world": lambda it: ch.across(world=it, tokens=3),
    "watch": lambda it: ch.watch(it),
    "watch layers": lambda it: ch.watch(nn.Linear(1, 1), layers=it),
    "load": ch.load,
    "layer": lambda it: ch.MultiHeadAttention(it, num_heads=2),
    "convert": lambda it: ch.convert(it),
    "trace": lambda it: ch.trace(ch.attend, it, X, X),
    "figure": lambda it: ch.figure(it),
    "figure show": lambda it: ch.figure(X, X, X, show=[it]),
    "figure edits": lambda it: ch.figure(X, X, X, edit=it),
    "figure cell": lambda it: ch.figure(X, X, X, predict=("weights", 0, it)),
    "figure head": lambda it: ch.figure(X, X, X, head=it),
    "check": lambda it: ch.check(it, takes="qkv"),
    "check takes": lambda it: ch.check(attends, takes=it),
    "check rope": lambda it: ch.check(attends, takes="qkv", rope=it),
    "check args": lambda it: ch.check(nn.MultiheadAttention, takes="x", args={"embed_dim": it}),
    "trains loss": lambda it: trains(loss=it),
    "trains padding": lambda it: trains(padding=it),
    "trains state": lambda it: trains(state=named(it)),
}


def is_plain(text: str) -> bool:
    return not any(
        unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in text if char != "\n"
    )


def test_a_message_is_short_and_plain() -> None:
    for (call, made), (name, monster) in itertools.product(CALLS.items(), MONSTERS.items()):
        try:
            text = repr(made(monster()))
        except ch.errors.ClearheadError as error:
            text = str(error)
            assert len(text) <= errors.MOST, f"{call}: {name}"
        except Exception as error:
            error.add_note(f"{call}: {name}")
            raise
        assert is_plain(text), f"{call}: {name}"


@pytest.mark.parametrize(
    "error", [Mute(), ValueError(ESCAPE), ValueError("a" * 10**6)], ids=["mute", "acting", "long"]
)
def test_errors_of_what_is_checked(error: Exception) -> None:
    def attends(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        raise error

    try:
        text = str(ch.check(attends, takes="qkv"))
    except ch.errors.ModelError as raised:
        text = str(raised)
    assert type(error).__name__ in text
    assert len(text) <= errors.MOST
    assert is_plain(text)


def test_names_of_models_and_layers() -> None:
    """They reach a terminal by print, in the reprs of what was seen."""
    layer = ch.MultiHeadAttention(8, num_heads=2)
    model = type(f"Model{ESCAPE}", (nn.Sequential,), {})()
    model.add_module(f"layer{ESCAPE}", layer)
    with ch.watch(model) as seen:
        model(torch.zeros(1, 3, 8))
    for text in (repr(ch.watch(model)), repr(seen), repr(seen.table())):
        assert is_plain(text)
        assert "\\x1b" in text


def test_a_long_text_keeps_its_ends() -> None:
    text = bounded("first" + "x" * 10_000 + "last", 100)
    assert (len(text), text[:5], text[-4:]) == (100, "first", "last")
    assert len(bounded(ESCAPE * 100, 100)) <= 100
    assert len(str(ch.errors.ArgumentError("a.code", "x" * 10_000))) == errors.MOST


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "3"),
        (10**50, "a number of 167 bits"),
        ("a", "'a'"),
        (Silent(), "a Silent whose repr fails"),
        ([Silent()], "a list whose repr fails"),
        (Acting(), "\\x1b]0;owned\\x07\\x1b[31m\\u202e\\x9b"),
    ],
    ids=range(6),
)
def test_arguments_in_messages(value: object, words: str) -> None:
    assert shown(value) == words
