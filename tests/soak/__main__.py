"""`python -m tests.soak --minutes 10 --seed 0`: random calls against the definition in float64."""

import argparse
import sys
import warnings

import torch

from tests.soak.cases import failure, soak

parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=10.0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--what", help="of one kind alone, such as edit")
asked = parser.parse_args()
warnings.simplefilter("ignore")
torch.set_num_threads(1)
count, failed = soak(60 * asked.minutes, asked.seed, what=asked.what)
for case in failed:
    print(f"{failure(case)}\n\n{case}\n")
print(f"{count} cases from seed {asked.seed} on, {len(failed)} failed")
sys.exit(bool(failed))
