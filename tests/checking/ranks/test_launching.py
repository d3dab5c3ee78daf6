"""What a rank without a result was doing."""

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import clearhead as ch
from clearhead.checking.ranks import comparing, launching
from clearhead.checking.ranks.rank_calls import Failure

RANK = (str(Path(launching.__file__).with_name("rank_calls.py")), 3, "run_on_rank")
DIST = (str(Path(dist.__file__).parent / "distributed_c10d.py"), 3, "all_gather")
ATTEND = (str(Path(ch.__file__).parent / "attention" / "functional.py"), 3, "attend")
GRAD = (str(Path(torch.__file__).parent / "autograd" / "__init__.py"), 3, "grad")
THREADING = (threading.__file__, 3, "acquire")
IMPORT = ("<frozen importlib._bootstrap>", 3, "_find_and_load")
LEFT = [
    ([], "waits"),
    ([RANK], "was still running"),
    ([DIST, ATTEND, RANK], "waits in all_gather"),
    ([ATTEND, RANK], "was still running"),
    ([DIST, 1, RANK], "waits in all_gather, called by 'gather(block)' (ring.py, line 1)"),
    ([2, 4, RANK], "waits in 'work.wait()' (ring.py, line 2)"),
    ([3, RANK], "was still running in 'total += 1' (ring.py, line 3)"),
    ([9, RANK], "was still running in '' (ring.py, line 9)"),
    (
        [THREADING, 3, RANK],
        "was still running in acquire, called by 'total += 1' (ring.py, line 3)",
    ),
    # A module that is imported is nobody's call, whatever it calls.
    ([DIST, 2, IMPORT, GRAD, RANK], "was still running in grad"),
    (
        [2, IMPORT, 4, RANK],
        "was still running in import, called by 'import all' (ring.py, line 4)",
    ),
]


@pytest.mark.parametrize("folder", ["torch", "clearhead", "my projects/torch/clearhead", "."])
@pytest.mark.parametrize(("calls", "words"), LEFT)
def test_what_a_rank_was_doing(tmp_path: Path, folder: str, calls: list[Any], words: str) -> None:
    """A folder may have any name: what lies in it is the user's all the same."""
    ring = tmp_path / folder / "ring.py"
    ring.parent.mkdir(parents=True, exist_ok=True)
    ring.write_text("gather(block)\nwork.wait()\ntotal += 1\nimport all\n")
    lines = [(str(ring), each, "step") if isinstance(each, int) else each for each in calls]
    found = launching.left_in(
        "\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in lines)
    )
    assert str(found) == words
    assert found.kind == ("hangs" if words.startswith("waits") else "runs")


def test_a_package_beside_that_of_python_is_not_its_own(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "ring.py"
    with mock.patch.object(launching, "PYTHON", tmp_path):
        assert "(ring.py, line 3)" in str(launching.left_in(f'  File "{file}", line 3 in step'))
        assert launching.left_in(f'  File "{tmp_path / "queue.py"}", line 3 in get').words.endswith(
            "get"
        )


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        (("hangs", "runs", "raises", "ended"), 3),
        (("hangs", "raises", "hangs", "runs"), 1),
        (("hangs", "runs"), 1),
        (("hangs",), 0),
    ],
)
def test_the_cause_is_the_rank_for_which_the_others_wait(
    kinds: tuple[str, ...], cause: int
) -> None:
    failures = {rank: Failure(kind, kind, ("ring.py", rank)) for rank, kind in enumerate(kinds)}
    found = comparing._stuck(failures, 5)
    assert found.code == "call.raises"
    assert found.place == ("ring.py", cause)
