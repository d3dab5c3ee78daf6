"""The words of other libraries are answered by ours, wherever they are handed."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import pytest
import torch

import clearhead as ch
from clearhead._common.foreign_names import SIZE_NAMES, SIZES, WORDS
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentTypeError
from tests.surface import public_objects

X = torch.zeros(2, 5, 8)
Q = torch.zeros(1, 2, 5, 4)

# What functions give back; nobody makes them by hand.
RESULTS = {
    "BlockMap", "ConformanceCase", "Contexts", "Conversion", "Edit", "Effects", "Extent", "Figure",
    "Finding", "HeadRow", "Lens", "LogitShares", "Missing", "ModelConversion", "Plan", "Report",
    "Roles", "Seen", "ShardedPlan", "Sharding", "Spans", "Step", "Summary", "Table", "TopK",
    "Totals", "Trace", "Watch", "Writes",
}  # fmt: skip
# Of the ladder and the samples nobody knows another.
PLACES = (
    "clearhead",
    *(f"clearhead.{name}" for name in ("checking", "layers", "masks", "testing")),
)


def is_called(found: Any) -> bool:
    if not inspect.isclass(found):
        return callable(found)
    is_base = inspect.isabstract(found) or found is ch.layers.Part
    return not (is_base or found.__name__ in RESULTS or issubclass(found, Exception))


CALLED: dict[str, Any] = {
    name: found
    for name, found in public_objects().items()
    if name.rpartition(".")[0] in PLACES and is_called(found)
}
FOREIGN = sorted({*WORDS, *(name for names in SIZE_NAMES.values() for name in names)})


def layer() -> Any:
    return ch.MultiHeadAttention(8, num_heads=2)


@pytest.mark.parametrize("name", CALLED)
def test_no_word_of_another_library_is_left_to_python(name: str) -> None:
    called = CALLED[name]
    own = inspect.signature(called).parameters.values()
    given = {
        each.name: ch.attend if each.name == "thing" else None
        for each in own
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    tried = [word for word in FOREIGN if word not in {each.name for each in own}]
    if name.endswith(("check", "assert_attention")):
        tried = [word for word in tried if word not in inspect.signature(ch.Contract).parameters]
    if name.endswith("trace"):
        tried = [word for word in tried if word not in inspect.signature(ch.attend).parameters]
    if name.endswith("assert_trains"):
        own_words = inspect.signature(ch.testing.check_training).parameters
        tried = [word for word in tried if word not in own_words]
    assert len(tried) > 100
    for word in tried:
        with pytest.raises(ArgumentTypeError, match=f"takes no {word}\\b") as refused:
            called(**given, **{word: None})
        assert refused.value.code in ("argument.words", "check.declared")


def test_every_answer_stands_beside_an_argument_that_there_is() -> None:
    callables = [*CALLED.values(), layer().forward]
    taken = [set(inspect.signature(each).parameters) for each in callables]
    taken.append(set(inspect.signature(ch.Contract).parameters))
    for word, answers in WORDS.items():
        for beside in answers:
            assert any(beside in own and word not in own for own in taken), f"{word}: {beside}"
    for names in SIZES.values():
        assert all(any(name in own for own in taken) for name in names), names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda ch: ch.attend(Q, Q, Q, is_causal=True),
            "attend takes no is_causal (mask=clearhead.causal(offset=0); of as many queries as keys",
        ),
        (
            lambda ch: ch.attend(Q, Q, Q, attn_mask=None, dropout_p=0.0, enable_gqa=True),
            "attend takes no attn_mask (mask=attn_mask for a bool one, True = visible as there; "
            "numbers that are added to the scores are bias=); no dropout_p (dropout); no "
            "enable_gqa (leave it out: fewer heads of key and value are shared by neighbours).",
        ),
        (
            lambda ch: ch.attend(Q, Q, Q, None),
            "attend takes query, key, value by place, and the rest by name, from mask= on.",
        ),
        (lambda ch: ch.attend(Q, Q, Q, maks=None), "attend takes no maks (mask)."),
        (lambda ch: ch.trace(ch.attend, Q, Q, Q, across=None), "trace takes no across; it takes"),
        (
            lambda ch: ch.sliding_window(4),
            "sliding_window takes left=, right=, offset= by name; a window of W tokens that looks "
            "back is left=W-1, right=0.",
        ),
        (
            lambda ch: ch.sliding_window(window_size=(4, 0)),
            "takes no window_size (left=L, right=R, of (L, R), with None for -1)",
        ),
        (lambda ch: ch.load(path="", colour="red"), "load takes no colour; it takes path."),
        (
            lambda ch: ch.AttentionMatrix(Q, Q).to_html("page.html", titel="heads"),
            "AttentionMatrix.to_html takes no titel (title).",
        ),
        (
            lambda ch: ch.check(ch.attend, takes="qkv", n_heads=2),
            "check takes no n_heads (num_heads).",
        ),
    ],
)
def test_what_an_argument_is_here(call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        call(ch)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda kind: kind(8, 2, 0.1, batch_first=True),
            "takes embed_dim, num_heads by place, and the rest by name, from num_kv_heads= on; no "
            "batch_first (leave it out: the batch is always first)",
        ),
        (
            lambda kind: kind(8, 2, rope=True, window=4),
            "takes no rope (parts=[clearhead.layers.Rotary(head_dim)]); no window "
            "(mask=clearhead.sliding_window(left=W-1, right=0)",
        ),
        (
            lambda kind: layer()(X, X, X),
            "takes x, context by place, and the rest by name, from mask= on",
        ),
        (
            lambda kind: layer().plan(X, is_causal=True),
            "takes no is_causal (mask=clearhead.causal()",
        ),
    ],
)
def test_what_an_argument_of_a_layer_is_here(call: Any, hint: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        call(ch.MultiHeadAttention)
    assert refused.value.code == "argument.words"
    assert re.match(r"MultiHeadAttention(\.plan|\.weights)? takes ", refused.value.message)
    assert hint in refused.value.message
    assert isinstance(refused.value.__cause__, TypeError)


def test_other_errors_stay_as_they_are() -> None:
    attend: Any = ch.attend
    kind: Any = ch.MultiHeadAttention
    for call in (lambda: attend(Q, Q), lambda: kind(), lambda: layer()()):
        with pytest.raises(TypeError, match="missing") as raised:
            call()
        assert not isinstance(raised.value, ArgumentTypeError)
    with pytest.raises(ArgumentTypeError) as refused:
        layer()("a text")
    assert refused.value.code == "x.type"

    @with_hints
    def broken(mask: int) -> None:
        raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        broken(1)


def test_a_plan_takes_what_attend_takes() -> None:
    assert [*inspect.signature(ch.attend).parameters] == [*inspect.signature(ch.plan).parameters]


class Seasoning(TypedDict, total=False):
    pinches: int
    hot: bool
    salt: int | None
    scale: float | None


@with_hints
def cook(dish: str, *, kernel: str = "auto", **options: Unpack[Seasoning]) -> object:
    return dish, kernel, options


def test_unpacked_options_are_arguments_like_others() -> None:
    assert str(inspect.signature(cook)) == (
        "(dish: str, *, pinches: int = 0, hot: bool = False, salt: int | None = None, "
        "scale: float | None = None, kernel: str = 'auto') -> object"
    )
    assert cook("soup", salt=2) == ("soup", "auto", {"salt": 2})
    anything: Any = cook
    with pytest.raises(ArgumentTypeError) as refused:
        anything("soup", slat=2)
    assert str(refused.value) == "[argument.words] cook takes no slat (salt)."
    with pytest.raises(
        ArgumentTypeError, match="dish by place, and the rest by name, from pinches= on"
    ):
        anything("soup", 2)
    with pytest.raises(TypeError, match="missing"):
        anything(salt=2)
