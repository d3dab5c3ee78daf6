"""The picture of how a figure begins."""

import re
from html import unescape
from xml.etree import ElementTree

import torch

import clearhead as ch
from clearhead.drawing.element.still import still_svg
from clearhead.tracing.text import number
from tests.drawing.element.drawn import data_of

WORDS = ["to", "<be>", "or"]


def texts(svg: str) -> list[str]:
    return [unescape(each) for each in re.findall(r"<tspan[^>]*>([^<]*)</tspan>", svg)]


def test_every_number_stands_in_it() -> None:
    query, key, value = torch.randn(3, 3, 2)
    steps = ch.trace(ch.attend, query, key, value, mask=ch.causal())
    svg = ch.figure(query, key, value, mask=ch.causal(), tokens=WORDS).to_svg()
    ElementTree.fromstring(svg)
    found = texts(svg)
    for name in ("query", "key", "scores", "weights", "context"):
        assert name in found
        assert all(number(each) in found for each in steps[name].flatten().tolist())
    assert found.count("●") == 6
    assert "<be>" in found


def test_what_is_asked_for_is_not_told() -> None:
    x = torch.tensor([[0.3, 1.0], [2.0, 0.7], [0.2, 0.1]])
    drawn = ch.figure(x, x, x, show=["weights"], edit=[], predict=("weights", 1, 0))
    asked = number(float(ch.trace(ch.attend, x, x, x)["weights"][1, 0]))
    assert asked not in texts(drawn.to_svg())
    assert texts(drawn.to_svg()).count("?") == 1
    assert asked not in drawn._repr_html_().partition("<script>")[0]
    assert data_of(drawn)["predict"] == ["weights", 1, 0]


def test_texts_stand_in_the_middle_or_six_pixels_before_an_edge() -> None:
    x = torch.randn(3, 2)
    svg = ch.figure(x, x, x, mask=ch.causal(), tokens=WORDS, show=["mask", "weights"]).to_svg()
    anchors = list[str]()
    for panel in ElementTree.fromstring(svg).iter("g"):
        wide = 20 if panel.findtext("text/tspan") == "mask" else 58
        for line in panel.iter("text"):
            at = [int(x) for each in (line, *line) if (x := each.get("x"))]
            anchors.append(line.get("text-anchor", ""))
            if anchors[-1] == "middle":
                assert at == [64 + wide * column + wide // 2 for column in range(len(at))]
            elif anchors[-1]:
                assert at in (
                    [64 - 6],
                    [64 + wide * column - 6 for column in range(1, 4)][: len(at)],
                )
    assert {*anchors} == {"", "middle", "end"}


def test_of_many_numbers_the_colours() -> None:
    x = torch.randn(13, 2)
    svg = ch.figure(x, x, x, show=["weights"], edit=[]).to_svg()
    assert texts(svg) == ["weights"]
    assert sum(each.count("M") for each in re.findall(r' d="([^"]*)"', svg)) > 100


def test_without_parts_there_is_a_picture_all_the_same() -> None:
    ElementTree.fromstring(still_svg([], "nothing", None))
