"""Memory that is not there, under a real limit of the address space."""

import subprocess
import sys
from collections.abc import Callable

import pytest

import clearhead as ch
from clearhead._common.memory import within_memory

LIMITED = """
import resource, sys, torch, clearhead as ch
torch.set_num_threads(1)
query = torch.randn(1, 1, 24_000, 4)
matrix = ch.AttentionMatrix(query, query)
ch.causal().to_dense(3, 3), ch.trace(ch.attend, query[:, :, :3], query[:, :, :3], query[:, :, :3])
matrix[0, 0, 0, 0]
with open("/proc/self/statm") as pages:
    used = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, -1))
for call in sys.argv[1:]:
    try:
        eval(call)
    except ch.errors.TooLargeError as error:
        print(call, str(error).splitlines()[0])
"""
INSTEAD = {
    "matrix.dense()": "Index the rows, keys or heads",
    "matrix[0]": "Index the rows, keys or heads",
    "ch.causal().to_dense(30_000, 30_000)": "attend takes the mask as it is",
    "ch.trace(ch.attend, query, query, query)": "Trace fewer tokens",
}


@pytest.mark.skipif(sys.platform != "linux", reason="it is read from `/proc`")
def test_what_does_not_fit_says_what_does() -> None:
    command = [sys.executable, "-c", LIMITED, *INSTEAD]
    found = subprocess.run(command, capture_output=True, text=True)
    lines = found.stdout.splitlines()
    assert len(lines) == len(INSTEAD), found.stderr
    for line, (call, instead) in zip(lines, INSTEAD.items(), strict=True):
        assert line.startswith(call), line
        assert instead in line


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: ch.documents(lengths=range(3_000_000)), "A mask of documents keeps numbers"),
        (lambda: ch.documents(offsets=[0, 10**15]), "A mask of documents keeps numbers"),
        (lambda: ch.documents(lengths=[1 << 62, 1], queries=[1, 1]), "A mask of documents keeps"),
        (lambda: ch.documents(lengths=[10**15], mask=ch.causal()), "A mask of documents keeps"),
        (lambda: ch.across(world=2, tokens=10**15), "A sharding keeps the place of every token"),
        (lambda: ch.causal().to_dense(1 << 70, 1 << 70), "attend takes the mask as it is"),
        (lambda: ch.check(ch.attend, takes="qkv", num_heads=10**13), "Declare smaller sizes."),
    ],
)
def test_what_no_machine_holds_is_refused(call: Callable[[], object], instead: str) -> None:
    with pytest.raises(ch.errors.TooLargeError) as caught:
        call()
    assert str(caught.value).startswith(f"[memory.full] there is not enough memory. {instead}")


def test_other_errors_pass() -> None:
    inner = ch.errors.TooLargeError("matrix.size", "Fewer rows.")
    for error in (RuntimeError("sizes"), ValueError("out of memory"), inner):
        with pytest.raises(type(error)) as caught, within_memory("Less."):
            raise error
        assert caught.value is error
    with pytest.raises(ch.errors.TooLargeError) as found, within_memory("Less."):
        raise MemoryError
    assert str(found.value) == "[memory.full] there is not enough memory. Less.\n  MemoryError: "
