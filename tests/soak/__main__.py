"""`python -m tests.soak --minutes 10 --seed 0`: random calls against the definition in float64. With
`--interrupts 1000`, before them as many interrupts of each scene at random moments, and edits in threads."""

import argparse
import sys
import warnings

import torch

from tests.soak.cases import soak
from tests.soak.interrupted import SCENES, in_threads, interrupted

parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=10.0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--what", help="of one kind alone, such as edit")
parser.add_argument("--interrupts", type=int, default=0)
asked = parser.parse_args()
warnings.simplefilter("ignore")
torch.set_num_threads(1)
wrong: list[str] = []
if asked.interrupts:
    for name in SCENES:
        out, found = interrupted(name, asked.interrupts, asked.seed)
        print(
            f"{name}: {out} of {asked.interrupts} interrupted, {len(found)} left something",
            flush=True,
        )
        wrong += found
    found = in_threads(asked.interrupts, asked.seed)
    print(f"edits in threads: {asked.interrupts} times, {len(found)} wrong", flush=True)
    wrong += found
print(*wrong, sep="\n")
last = soak(60 * asked.minutes, asked.seed, asked.what)
print(f"all cases of the seeds {asked.seed} to {last} are right")
sys.exit(bool(wrong))
