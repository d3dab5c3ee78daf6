"""The names of descriptions in files: each mask has one, and comes back."""

import subprocess
import sys

from hypothesis import given, settings

import clearhead as ch
from clearhead._common.kinds import Filed
from clearhead.watching.encoding import KINDS, Encoder, decode
from tests.masks.expressions import Expression, as_tensor, expressions


@settings(max_examples=60, deadline=None)
@given(expressions)
def test_every_mask_comes_back_from_a_file(drawn: Expression) -> None:
    encoder = Encoder()
    json = encoder.encode([drawn.mask])
    (again,) = decode(json, encoder.tensors())
    assert again.describe() == drawn.mask.describe()
    assert as_tensor(again, drawn.sizes).equal(drawn.expected)


def test_a_process_that_only_reads_knows_every_kind() -> None:
    code = "from clearhead.watching.encoding import KINDS; print(*sorted(KINDS))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == sorted(KINDS)
    assert {"causal", "per_row", "alibi", "sum_of_biases"} < set(Filed.KINDS) < set(KINDS)


def test_a_mask_of_ones_own_class_has_no_name() -> None:
    own = type("Own", (type(ch.full()),), {})
    assert own not in Filed.KINDS.values()
