"""Names on first use, from many threads at once, and the way up to what draws."""

import subprocess
import sys

EVERY = """
import os, threading
import torch, clearhead as ch

# Twice: in a process before it has used a name, and in that from which it was forked.
child = os.fork()
together, wrong = threading.Barrier(len(ch.__all__)), []

def use(name):
    together.wait()
    try:
        getattr(ch, name)
    except BaseException as error:
        wrong.append(repr(error))

threads = [threading.Thread(target=use, args=(name,)) for name in ch.__all__]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not wrong, wrong
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_nothing_is_fetched_before_somebody_looks() -> None:
    code = "import sys, clearhead; assert 'clearhead.drawing' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_name_from_a_thread_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", EVERY], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
