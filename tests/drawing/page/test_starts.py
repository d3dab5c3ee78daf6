"""The view with which a page opens."""

from typing import Any

import torch

import clearhead as ch
from clearhead.attention.problem import make_problem
from clearhead.drawing.page.head_page import Layer, Run, heads_payload
from clearhead.drawing.page.runs import ANYWHERE, Start, start_of
from clearhead.drawing.page.texts import read_text
from clearhead.matrix.matrix import matrix_of
from clearhead.sharding.matrix_part import MatrixPart
from tests.refusals import refusals

TOKENS = ["[CLS]", "the", " cat", "sat", "the", "mat", "."]


EVEN = ch.AttentionMatrix(torch.zeros(1, 2, 7, 3), torch.zeros(1, 2, 7, 3))


def opened(**options: Any) -> dict[str, Any] | None:
    """Two layers, 4 and 5, the second of which has the heads 7 and 9 only."""
    query = torch.zeros(1, 2, 7, 3)
    heads = MatrixPart(heads=torch.tensor([7, 9]))
    some = make_problem(query, query, query).replace(part=heads)
    layers = [Layer("a", ch.AttentionMatrix(query, query), 4), Layer("b", matrix_of(some), 5)]
    run = Run("", layers, read_text("tokens", TOKENS))
    return heads_payload([run], "", start=Start(**options)).data["start"]


def test_it_opens_where_it_is_asked_to() -> None:
    assert opened(head=(5, 9)) == {"layer": 1, "head": 1}
    assert opened(head=(4, 0), pin=("the", "cat")) == {"layer": 0, "head": 0, "query": 1, "key": 2}
    assert opened(pin=(3, None)) == {"query": 3}
    assert opened() is None  # nothing is strong


def test_a_state_is_passed_on_for_the_page_to_read() -> None:
    state = "head=5.9&without=first,special&least=0.05&colour=red"
    assert opened(head=state) == {"state": state}
    assert opened(head=f"page.html#{state}") == {"state": state}
    assert opened(head="scale=log", pin=(1, None)) == {"state": "scale=log&pin=1,"}
    assert opened(head="", pin=(None, "cat")) == {"state": "pin=,2"}


test_what_is_not_there_is_refused = refusals(
    lambda options: opened(**options),
    *(
        ({"head": head}, "page.start", f"(4, 0) // {head!r}")
        for head in ((5, 0), (9, 0), 5, (1,), ("4", 0))
    ),
    ({"pin": "it"}, "page.pin", "'it'"),
    ({"pin": ("the", "dog")}, "page.pin", "key // 7 // 'dog'"),
    ({"pin": (7, None)}, "page.pin", "query // 7 // 7"),
)


def test_a_pin_stands_in_for_that_of_the_telling_link() -> None:
    """It was overridden by that of the link, without a word."""
    far = {"layer": 1, "head": 0, "query": 6, "key": 2}
    layers = heads_payload([Run("", [Layer("a", EVEN), Layer("b", EVEN)])], "").data["layers"]
    # Of a state only the page knows whether it has a pin.
    assert start_of(Start("pin=1,2"), layers, [], far) == far | {"state": "pin=1,2"}
    assert start_of(Start(None, (3, None)), layers, [], far) == {"layer": 1, "head": 0, "query": 3}
    assert start_of(Start("scale=log"), layers, [], far) == far | {"state": "scale=log"}
    assert start_of(ANYWHERE, layers, [], far) == far


def test_a_page_of_two_texts_opens_at_a_link_of_the_first() -> None:
    near, far = torch.eye(4)[[1, 0, 3, 2]][None], torch.eye(4).flip(1)[None]
    words = read_text("tokens", ["to", "be", "or", "not"])
    runs = [
        Run("", [Layer("a", ch.AttentionMatrix.from_weights(each))], words) for each in (near, far)
    ]
    payload = heads_payload(runs, "")
    assert payload.data["start"] == {"layer": 0, "head": 0, "query": 0, "key": 1}


def test_a_pin_is_of_the_layer_that_is_opened() -> None:
    wide = ch.AttentionMatrix(torch.zeros(1, 2, 7, 3), torch.zeros(1, 2, 9, 3))
    run = Run("", [Layer("a", EVEN), Layer("b", wide)])
    start = heads_payload([run], "", start=Start(None, (3, 6))).data["start"]
    assert start == {"layer": 0, "head": 0, "query": 3, "key": 6}


def test_it_opens_at_no_head_that_is_even_or_looks_beside_itself() -> None:
    """Of a causal model the first tokens have few keys to look at, so that even heads give them much, and some
    head of most models looks at the token before: neither says anything of the text."""
    tokens = 48
    far = torch.zeros(tokens, tokens)
    far[40, 7] = 9.0
    before = 9.0 * torch.eye(tokens).roll(-1, dims=1)
    even = torch.zeros(tokens, tokens)
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    layers = [
        Layer(
            name,
            ch.AttentionMatrix.from_weights(
                torch.stack(heads).masked_fill(~causal, -torch.inf).softmax(-1)
            ),
        )
        for name, heads in (("a", [even, before]), ("b", [before, far]), ("c", [even, even]))
    ]
    words = read_text("tokens", [f" w{number}" for number in range(tokens)])
    start = heads_payload([Run("", layers, words)], "").data["start"]
    assert start == {"layer": 1, "head": 1, "query": 40, "key": 7}
    # Where no head says anything it is the first one, without a link.
    assert heads_payload([Run("", layers[2:], words)], "").data["start"] is None
