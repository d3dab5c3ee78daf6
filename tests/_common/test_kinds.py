"""The names of descriptions in files: each mask has one, and comes back."""

import subprocess
import sys

import clearhead as ch
from clearhead._common.kinds import Filed
from clearhead.watching.encoding import KINDS


def test_a_process_that_only_reads_knows_every_kind() -> None:
    code = "from clearhead.watching.encoding import KINDS; print(*sorted(KINDS))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == sorted(KINDS)
    assert {"causal", "per_row", "alibi", "sum_of_biases"} < set(Filed.KINDS) < set(KINDS)


def test_a_mask_of_ones_own_class_has_no_name() -> None:
    own = type("Own", (type(ch.full()),), {})
    assert own not in Filed.KINDS.values()
