"""Where a page opens."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.starts import STATE, Start, farthest_link
from clearhead.drawing.page.texts import read_text
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import matrix_of
from clearhead.sharding.matrix_part import MatrixPart

TOKENS = ["[CLS]", "the", " cat", "sat", "the", "mat", "."]


def opened(**options: Any) -> dict[str, Any] | None:
    """Two layers, 4 and 5, the second of which has the heads 7 and 9 only."""
    query = torch.zeros(1, 2, 7, 3)
    heads = MatrixPart(heads=torch.tensor([7, 9]))
    some = make_problem(query, query, query).replace(part=heads)
    layers = [
        Layer("a", ch.AttentionMatrix(query, query), 4),
        Layer("b", matrix_of(some), 5),
    ]
    run = Run("", layers, read_text("tokens", TOKENS))
    return heads_payload([run], "", start=Start(**options)).data["start"]


def test_it_opens_where_it_is_asked_to() -> None:
    assert opened(head=(5, 9)) == {"layer": 1, "head": 1}
    assert opened(head=(4, 0), pin=("the", "cat")) == {"layer": 0, "head": 0, "query": 1, "key": 2}
    assert opened(pin=(3, None)) == {"query": 3}
    assert opened() is None  # nothing is strong
    state = "head=5.9&without=first,special&least=0.05"
    assert opened(head=state) == {"layer": 1, "head": 1, "state": state}
    assert opened(head="page.html#scale=log", pin=(1, 2)) == {
        "state": "scale=log",
        "query": 1,
        "key": 2,
    }
    assert opened(head="scale=log") == {"state": "scale=log"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"head": head},
            f"[page.start] start must be a layer and a head that the page has, such as "
            f"(0, 0); got {head!r}.",
        )
        for head in ((5, 0), (9, 0), 5, (1,), ("4", 0))
    ]
    + [
        (
            {"head": f"least=0.1&{given}"},
            "[page.state] start must be what stands behind the # of a page's address, such as "
            f"'head=5.11&without=first'; got {given!r} in it, of which {', '.join(STATE)} are known.",
        )
        for given in ("without=sinks", "colour=red", "head=5", "least=")
    ]
    + [
        (
            {"head": "head=5.9&pin=2,1", "pin": (2, 0)},
            "[page.pin] pin must be given once: start='head=5.9&pin=2,1' has a pin as well as pin=(2, 0).",
        ),
        ({"pin": "it"}, "[page.pin] pin must be a query and a key, such as ('it', 3); got 'it'."),
        (
            {"pin": ("the", "dog")},
            "[page.pin] the key of pin must be one of the 7 tokens, as it is written or by its place; "
            "got 'dog'.",
        ),
        (
            {"pin": (7, None)},
            "[page.pin] the query of pin must be one of the 7 tokens, as it is written or by its "
            "place; got 7.",
        ),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        opened(**options)
    assert str(caught.value) == message


def test_the_farthest_of_strong_links_between_words() -> None:
    weights = torch.zeros(2, 7, 7)
    weights[0, 6, 0] = 1.0  # neither of them a word
    weights[0, 5, 2] = 0.9
    weights[1, 5, 1] = 0.45  # not strong
    weights[1, 4, 2] = 1.0
    assert farthest_link(weights, TOKENS, TOKENS) == (pytest.approx(2.7), 0, 5, 2)
    weights[0, 5, 3] = torch.nan
    assert farthest_link(weights, TOKENS, TOKENS) == (pytest.approx(2.7), 0, 5, 2)
    assert farthest_link(torch.zeros(1, 0, 3), [], ["a"] * 3) is None
