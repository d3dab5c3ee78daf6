"""The effects of the heads, held against each ablation alone."""

import re
import sys
from typing import Any

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError

WIDTH, HEADS, LEN = 12, 4, 5


def model() -> nn.Module:
    return nn.Sequential(
        *(ch.MultiHeadAttention(WIDTH, num_heads=heads) for heads in (HEADS, 2))
    ).eval()


def metric(output: Tensor) -> Tensor:
    return output.square().mean()


def test_each_row_is_the_ablation_of_that_head_alone() -> None:
    attending, x = model(), torch.randn(2, LEN, WIDTH)
    found = ch.effects(attending, x, metric)
    assert [(row.layer, row.head) for row in found] == [("0", h) for h in range(HEADS)] + [
        ("1", 0),
        ("1", 1),
    ]
    assert found.baseline == float(metric(attending(x)).detach())
    for row in found:
        with ch.edit(attending) as edit:
            edit[row.layer].heads[row.head or 0].ablate()
            alone = float(metric(attending(x)).detach())
        assert (row.metric, row.change) == (alone, alone - found.baseline)
        assert row.change != 0
    best = found.top(2)
    assert len(best) == 2
    assert [abs(row.change) for row in best] == sorted(abs(row.change) for row in found)[:-3:-1]
    assert repr(found[:1]).splitlines()[1].startswith("  0  head 0")


def test_layers_and_inputs_of_every_kind() -> None:
    attending, x = model(), torch.randn(2, LEN, WIDTH)
    whole = ch.effects(attending, {"input": x}, metric, over="layers")
    again = ch.effects(attending, (x,), lambda out: float(metric(out)), over="layers", layers=[1])
    assert [(row.layer, row.head) for row in whole] == [("0", None), ("1", None)]
    assert again[0] == whole[1]


def test_progress_is_reported_run_by_run() -> None:
    done: list[tuple[int, int]] = []
    x = torch.randn(1, LEN, WIDTH)
    ch.effects(model(), x, metric, layers=["1"], progress=lambda *counts: done.append(counts))
    assert done == [(0, 2), (1, 2), (2, 2)]


def test_a_terminal_shows_the_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, LEN, WIDTH)
    ch.effects(model(), x, metric, layers=["1"], progress=True)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ch.effects(model(), x, metric, layers=["1"], progress=True)
    lines = capsys.readouterr().err.split("\r")
    assert lines == [*(f"effects: {done} of 2 runs" for done in range(3)), "\x1b[K"]


def test_a_picture_has_the_changes() -> None:
    matplotlib.use("Agg")
    found = ch.effects(model(), torch.randn(1, LEN, WIDTH), metric)
    axes = found.plot()
    image = axes.images[0].get_array()
    assert image.shape == (2, HEADS)
    assert image[0].tolist() == [row.change for row in found[:HEADS]]
    assert image.mask[1].tolist() == [False, False, True, True]
    assert axes.get_xlabel() == "head ablated"
    layers = ch.effects(model(), torch.randn(1, LEN, WIDTH), metric, over="layers").plot()
    assert layers.images[0].get_array().shape == (2, 1)
    pyplot.close("all")


def test_what_has_no_effect_to_measure_is_refused() -> None:
    x = torch.randn(1, LEN, WIDTH)
    with pytest.raises(ArgumentError, match=re.escape('[over.value] over must be "heads" or')):
        ch.effects(model(), x, metric, over="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match=re.escape("[effects.metric] metric must make one")):
        ch.effects(model(), x, lambda output: output)
    wrong: dict[str, tuple[Any, str]] = {
        "metric": (None, "[effects.metric] metric must make one number of an output; got None."),
        "layers": ("0", "[layers.list] layers must be a list of paths and numbers, or None for all; got '0'."),
        "progress": (3, "[effects.progress] progress must be True, False, or a function of the runs"),
    }  # fmt: skip
    for name, (given, text) in wrong.items():
        options = {"metric": metric, name: given}
        with pytest.raises(ArgumentTypeError, match=re.escape(text)):
            ch.effects(model(), x, **options)
    with pytest.raises(EditError, match=re.escape("[effects.none] nothing in Linear that was")):
        ch.effects(nn.Linear(WIDTH, 2), x, metric)
