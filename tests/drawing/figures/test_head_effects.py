"""Effects as a map: layers × heads, × positions, or layers alone."""

from typing import Any

import pytest
import torch

from clearhead.editing.effects import Effect, Effects
from tests.drawing.figures.drawn import bar_label, numbers, same, words

NONE = float("nan")


@pytest.mark.parametrize(
    ("rows", "clean", "expected", "labels", "axis"),
    [
        # A layer may have fewer heads than another.
        (
            [("a", 0, 2.0), ("a", 1, -3.0), ("b", 0, 0.5)],
            None,
            [[2.0, -3.0], [0.5, NONE]],
            ["0", "1"],
            "head ablated",
        ),
        ([("a", None, 2.0), ("b", None, -1.0)], None, [[2.0], [-1.0]], ["all"], "head ablated"),
        # Of the heads of one position the one that changes most; the share that is restored.
        (
            [("a", 0, 1.0, 0, 0.1), ("a", 1, 1.0, 0, -0.4), ("a", 0, 1.0, 2, 0.3)],
            9.0,
            [[-0.4, NONE, 0.3]],
            ["0", "1", "2"],
            "position, its largest head patched",
        ),
    ],
)
def test_a_cell_is_an_effect(
    rows: list[tuple[Any, ...]],
    clean: float | None,
    expected: list[list[float]],
    labels: list[str],
    axis: str,
) -> None:
    effects = [Effect(layer, head, 7.0, *rest) for layer, head, *rest in rows]
    axes = Effects(effects, 5.0, clean).plot()
    same(numbers(axes), torch.tensor(expected, dtype=torch.float64))
    assert words(axes, "x") == labels
    assert words(axes, "y") == list(dict.fromkeys(layer for layer, *_ in rows))
    assert axes.get_xlabel() == axis
    measured = "change of the metric" if clean is None else "share of the metric restored"
    assert bar_label(axes) == measured
