"""The types of shapes, with jaxtyping and without it."""

import subprocess
import sys
from pathlib import Path

import jaxtyping

from clearhead import _shapes

WITHOUT = """
import sys

sys.modules["jaxtyping"] = None
import torch
from clearhead import ladder, stages

assert stages.Float[torch.Tensor, "len dim"].__origin__ is torch.Tensor
rung = ladder.SelfAttention(3, head_dim=2)
assert rung(ladder.EXAMPLE_EMBEDDINGS).shape == (6, 2)
"""


def test_the_types_are_those_of_jaxtyping() -> None:
    assert (_shapes.Bool, _shapes.Float) == (jaxtyping.Bool, jaxtyping.Float)


def test_the_library_runs_without_jaxtyping(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
