"""Measurements in words and drawings, as values of the templates."""

from collections.abc import Sequence

from torch import Tensor

from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import RIGHT, Recipe, right_visible
from clearhead.checking.judging.verdicts import Values
from clearhead.recording.provenance import Dependency


def first_bad(output: Tensor) -> Values:
    """Return {count, of, place}: how many values are not finite, of how many, and the index of the first, as a list.

    Raises IndexError if all are finite.
    """
    bad = ~output.isfinite()
    return {"count": int(bad.sum()), "of": output.numel(), "place": bad.nonzero()[0].tolist()}


def first_difference(trials: Sequence[Trial]) -> tuple[str, Values]:
    """Return a key of the catalogue and its values for the worst call.

    "difference": the first number that is off by more than half of the largest error, and the right one; "shapes": its
    shape and the right one; "unfit": its shape, if the definition cannot run on its inputs.
    """
    worst = max(trials, key=lambda each: min(each.error(RIGHT), 1e9))
    expected = worst.result(RIGHT)
    got = list(worst.target.shape)
    if expected is None:
        return "unfit", {"got": got}
    if expected.shape != worst.target.shape:
        return "shapes", {"got": got, "expected": list(expected.shape)}
    gap = (worst.target - expected).abs().nan_to_num(0.0)
    place = (gap > 0.5 * gap.max()).nonzero()
    first = place[0].tolist() if len(place) else [0]
    return "difference", {
        "gap": f"{gap.max():.3g}",
        "place": first,
        "got": f"{worst.target[tuple(first)]:.4g}",
        "expected": f"{expected[tuple(first)]:.4g}",
        "name": worst.name,
    }


def sums_of(weights: Tensor) -> Values:
    """Return the least and the largest sum of a row and of a column of the weights, of the first sample and head.

    The keys are "low", "high", "column_low" and "column_high", the values text.
    """
    rows, columns = weights[0, 0].sum(-1), weights[0, 0].sum(-2)
    return {
        "low": f"{rows.min():.3g}",
        "high": f"{rows.max():.3g}",
        "column_low": f"{columns.min():.3g}",
        "column_high": f"{columns.max():.3g}",
    }


def drawn_mask(first: Trial, recipe: Recipe | None, seen: Tensor | None = None) -> Values:
    """Return a drawing, as {size, picture}, of the keys that queries see next to those that they should see.

    It is of the first sample and head. `seen`, (queries, keys), is drawn if given, else the mask of the recipe: one of
    the two must be given. Rows that give NaN by the recipe are drawn as ×.
    """
    at = first.setting
    if seen is None:
        assert recipe is not None
        found = recipe.visible(at)
        seen = found.expand(1, 1, *found.shape[-2:])[0, 0] if found.ndim == 2 else found[0, 0]
    right = right_visible(at)
    right = right if right.ndim == 2 else right[0, 0]
    broken = ~seen.any(-1)
    gone = recipe is not None and recipe.empty == "nan"
    rows = [
        [None if gone and empty else bool(cell) for cell in row]
        for row, empty in zip(seen.tolist(), broken.tolist(), strict=True)
    ]
    return {
        "size": f"{seen.shape[0]} × {seen.shape[1]}",
        "picture": side_by_side(drawn(rows), drawn(right.expand(seen.shape).tolist())),
    }


def dependency(measured: Dependency, expected: Sequence[Sequence[bool]] | None) -> Values:
    """Return a drawing, as {size, marks, picture}, of the outputs that change with each token.

    The expected ones are drawn next to them unless they are None. `marks` is the legend.
    """
    marks = ["● moves"] * bool(measured.moves.any())
    marks += ["○ its own query"] * bool(measured.moves.diagonal().any())
    marks += ["· does not"] * bool(not measured.moves.all())
    marks += ["× NaN"] * bool(measured.broken.any())
    picture = drawn(measured.cells(), own=True)
    return {
        "size": f"{measured.moves.shape[0]} × {measured.moves.shape[1]}",
        "marks": "  ".join(marks),
        "picture": picture
        if expected is None
        else side_by_side(picture, drawn(expected, own=True)),
    }


def side_by_side(measured: str, expected: str) -> str:
    """Return two drawings side by side, titled measured and expected; the first alone if equal or of another height."""
    left, right = measured.splitlines(), expected.splitlines()
    if left == right or len(left) != len(right):
        return measured
    width = max(map(len, left))
    rows = [f"{one:<{width}}     {other}" for one, other in zip(left, right, strict=True)]
    return "\n".join([f"{'measured':<{width}}     expected", *rows])


def drawn(rows: Sequence[Sequence[bool | None]], *, own: bool = False) -> str:
    """Return a dependency matrix as characters: ● moves, · does not, × is NaN.

    With `own` a True on the diagonal is ○: an output moves with its own token, whose query it is.
    """
    marks = {True: "●", False: "·", None: "×"}
    return "\n".join(
        " ".join(
            "○" if own and cell and column == row else marks[cell]
            for column, cell in enumerate(cells)
        )
        for row, cells in enumerate(rows)
    )
