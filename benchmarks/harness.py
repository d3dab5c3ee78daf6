"""Cases, and how they are measured: compared first, then timed turn by turn, then weighed.

Nothing here is specific to attention. The order of events for a case:

1. Its function builds the inputs and returns the sides.
2. Every side runs once, and its result is compared with that of the first side.
3. The sides are timed in turn (A B A B …), so that whatever slows the machine slows all of them.
4. Each side runs once more in a process of its own, for the memory that it takes at its peak.

A round in which other processes had a part of the cores is left out, as far as enough are left. A case may
ask for the opposite: one busy process for each core, which the harness starts and ends.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 1e6

# One side of a case: does the work once and returns the result.
Side = Callable[[], Any]
# By name; the first is ours, and every figure is relative to the second.
Sides = dict[str, Side]


# What a bound may be about. "Ours" is the first side, "theirs" the second.
UNITS = {
    "x": "our time, as a multiple of theirs",
    "x alone": "our time beside a busy process on each core, as a multiple of that without them",
    "ms": "milliseconds that a call of ours takes",
    "us": "microseconds that a call of ours takes longer",
    "MB": "megabytes that ours takes at its peak, the inputs not counted",
    "x memory": "our peak memory, as a multiple of theirs",
}


class ResultsDifferError(AssertionError):
    """The sides of a case do not compute the same, so that no figure about them means anything."""


@dataclass(frozen=True)
class Target:
    """One bound of a case: `<= 1.02x`, `<= 300ms`, `<= 20us`, `<= 60MB`, `<= 0.5x memory`."""

    text: str
    bound: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        match = re.fullmatch(r"<= ([0-9.]+) ?(.+)", text)
        if not match or match[2] not in UNITS:
            known = ", ".join(f"'<= 2{unit}'" for unit in UNITS)
            raise ValueError(f"a reach is one of {known}; got {text!r}")
        return cls(text, float(match[1]), match[2])

    def value(self, times: "Times", memory: Mapping[str, float | None]) -> float | None:
        """The figure that the bound is about; None where it could not be measured."""
        if self.unit == "x":
            return times.ratio
        if self.unit == "x alone":
            return times.medians[0] / times.alone[0] if times.alone else None
        if self.unit == "ms":
            return times.medians[0] * 1e3
        if self.unit == "us":
            return (times.medians[0] - times.medians[1]) * 1e6
        ours, *others = memory.values()
        if ours is None:
            return None
        if self.unit == "MB":
            return ours
        return ours / others[0] if others and others[0] else None


def close(ours: Any, theirs: Any) -> None:
    """The comparison unless a case has its own: PyTorch's default closeness for the dtype."""
    torch.testing.assert_close(ours, theirs)


@dataclass(frozen=True)
class Case:
    """A question about cost, with everything that is needed to ask it again."""

    name: str
    build: Callable[[], Sides]
    reach: tuple[Target, ...] = ()
    work: str = ""
    dtype: str = "float32"
    compare: Callable[[Any, Any], None] = close
    memory: bool = True
    rounds: int = 5
    beside: bool = False
    clock: Callable[[], float] = time.perf_counter
    limit: str = ""

    def prepare(self) -> Sides:
        """The sides, on the same inputs whenever and wherever it is called."""
        torch.manual_seed(0)
        return self.build()

    @property
    def module(self) -> str:
        return self.build.__module__

    @property
    def group(self) -> str:
        """The cases of `benchmarks/cases_masks.py` are the group `masks`."""
        return self.module.rpartition(".")[2].removeprefix("cases_")


CASES: dict[str, Case] = {}


def case(
    name: str,
    *,
    reach: str | tuple[str, ...] = (),
    work: str = "",
    dtype: str = "float32",
    compare: Callable[[Any, Any], None] = close,
    memory: bool = True,
    rounds: int = 5,
    beside: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    limit: str = "",
) -> Callable[[Callable[[], Sides]], Callable[[], Sides]]:
    """Register the function as a case; it builds the inputs and returns the sides, ours first.

    Args:
        name: words with hyphens; what `python -m benchmarks` is given.
        reach: the bounds it should stay within, as `Target` reads them.
        work: what is computed, with its shapes, for the table.
        dtype: of the inputs, for the table.
        compare: called with the results of the first side and of another; raises if they differ.
        memory: False leaves out the peak memory, where it says nothing.
        rounds: how often the sides are timed at least, for work that takes long.
        beside: True times them beside a busy process on each core, after a few rounds without.
        clock: `time.process_time` counts the CPU time of the process, which other ones change least.
        limit: what a bound that is not reached comes up against, with its arithmetic, for the table.
    """
    targets = tuple(map(Target.parse, [reach] if isinstance(reach, str) else reach))

    def register(build: Callable[[], Sides]) -> Callable[[], Sides]:
        known = CASES.get(name)
        if known and (known.module, known.build.__name__) != (build.__module__, build.__name__):
            raise ValueError(
                f"two cases are called {name!r}, in {known.module} and {build.__module__}"
            )
        CASES[name] = Case(
            name, build, targets, work, dtype, compare, memory, rounds, beside, clock, limit
        )
        return build

    return register


def compare_results(case: Case, sides: Sides) -> None:
    """Run every side once, and hold its result against that of the first.

    Raises:
        ResultsDifferError: they differ, or there is nothing to compare.
    """
    if len(sides) < 2:
        raise ResultsDifferError(f"{case.name}: two sides are needed, there is {list(sides)}")
    (first, ours), *others = ((name, side()) for name, side in sides.items())
    for name, theirs in others:
        try:
            case.compare(ours, theirs)
        except AssertionError as error:
            raise ResultsDifferError(f"{case.name}: {first} and {name} differ: {error}") from error


@dataclass(frozen=True)
class Times:
    """Seconds per call of each side (in the order of the case), round by round.

    Attributes:
        rounds: those that count.
        calls: how many calls a sample is, by side.
        spoiled: how many rounds were left out, since other processes had the cores.
        alone: the medians without the busy processes, of a case that is timed beside some.
    """

    rounds: list[tuple[float, ...]]
    calls: tuple[int, ...]
    spoiled: int = 0
    alone: Sequence[float] = ()

    @property
    def medians(self) -> list[float]:
        return [statistics.median(samples) for samples in zip(*self.rounds, strict=True)]

    @property
    def ratio_of_medians(self) -> float:
        return self.medians[0] / self.medians[1]

    @property
    def pairwise(self) -> list[float]:
        """First side over second, within each round: what a drift of the machine cannot touch."""
        return sorted(sample[0] / sample[1] for sample in self.rounds)

    @property
    def ratio(self) -> float:
        return statistics.median(self.pairwise)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median of the pairwise ratios, whatever their distribution.

        Counted off from both ends of the sorted ratios; below six rounds that is all of them.
        """
        count = len(self.rounds)
        tails = itertools.accumulate(math.comb(count, k) / 2**count for k in range(count // 2))
        dropped = max(0, sum(tail <= 0.025 for tail in tails) - 1)
        return self.pairwise[dropped], self.pairwise[count - 1 - dropped]


def time_in_turn(
    sides: Sides,
    *,
    budget: float,
    shortest_sample: float = 2e-3,
    least_rounds: int = 5,
    most_rounds: int = 500,
    clock: Callable[[], float] = time.perf_counter,
    tick: Callable[[float], None] = lambda done: None,
) -> Times:
    """Time the sides in turn, A B A B …, for `budget` seconds, and for `least_rounds` at least.

    A sample of a short call is as many calls as fill `shortest_sample` seconds. `tick` is told
    the part that is done.
    """

    def sample(side: Side, calls: int) -> float:
        start = clock()
        for _ in range(calls):
            side()
        return (clock() - start) / calls

    begin = clock()
    spoiled: list[tuple[float, ...]] = []
    # Twice: what a first call sets up is not part of the cost of a call.
    warm = {name: min(sample(side, 1), sample(side, 1)) for name, side in sides.items()}
    calls = tuple(max(1, math.ceil(shortest_sample / max(warm[name], 1e-9))) for name in sides)
    rounds: list[tuple[float, ...]] = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        while len(rounds) + len(spoiled) < most_rounds:
            spent = clock() - begin
            count = len(rounds) + len(spoiled)
            if count >= least_rounds and spent >= budget:
                break
            others = Others()
            pairs = zip(sides.values(), calls, strict=True)
            times = tuple(sample(side, count) for side, count in pairs)
            (spoiled if others.had_cores() else rounds).append(times)
            tick(min(1.0, spent / max(budget, 1e-9), (count + 1) / least_rounds))
    finally:
        if collecting:
            gc.enable()
    if len(rounds) < least_rounds:  # no quiet machine: better all of them than few
        return Times(rounds + spoiled, calls)
    return Times(rounds, calls, len(spoiled))


class Others:
    """The share of the cores that other processes take, from when it is made; 0 where nothing tells it.

    The kernel counts ticks of 10 ms, so of what takes less than a tenth of a second nothing is said.
    """

    LEAST = 0.1
    MUCH = 0.1

    def __init__(self) -> None:
        self.start, self.busy = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        """The time, and the seconds that all cores were busy with others than this process."""
        own = os.times()
        try:
            fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        except OSError:
            return time.perf_counter(), 0.0
        user, nice, system, _, _, irq, soft, steal = map(int, fields)
        every = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), every - own.user - own.system

    def had_cores(self) -> bool:
        """Return True if others had more than a tenth of a core."""
        now, busy = self._now()
        took = now - self.start
        return took >= self.LEAST and busy - self.busy > self.MUCH * took


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep one process busy for each core."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def resident(field_name: str) -> float | None:
    """A line of /proc/self/status in bytes; None where there is no such file."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field_name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024.0 if match else None


def settle() -> None:
    """Load what PyTorch loads late, then hand unused memory back, before anything is weighed."""
    x = torch.randn(1, 2, 64, 16, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(x, x, x).softmax(-1).sum().backward()
    del x
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def weigh(side: Side) -> float | None:
    """Bytes that one run takes above what the process holds before; None if unknown here."""
    settle()
    # Makes the high-water mark of this process start again from here.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    held, mark = resident("VmRSS"), resident("VmHWM")
    side()
    peak = resident("VmHWM")
    if held is None or mark is None or peak is None:
        return None
    # Where the mark could not be reset, a run that stayed below it is not measured.
    reset = mark - held < MEGABYTE
    return max(0.0, peak - held) if reset or peak > mark else None


WEIGH = "import sys; from benchmarks.harness import report_weight; report_weight(*sys.argv[1:])"


def report_weight(module: str, name: str, side: str) -> None:
    """The process of `peak_memory`: build the case, run one side, print the bytes."""
    importlib.import_module(module)
    sides = CASES[name].prepare()
    print(json.dumps(weigh(sides[side])))


def peak_memory(case: Case, side: str) -> float | None:
    """Megabytes that a side takes at its peak beyond its inputs, in a fresh process."""
    # Without a fixed threshold the allocator keeps freed inputs, and the run would reuse them.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    run = subprocess.run(
        [sys.executable, "-c", WEIGH, case.module, case.name, side],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(f"{case.name}: {side} failed in its own process:\n{run.stderr}")
    weight = json.loads(run.stdout.splitlines()[-1])
    return None if weight is None else weight / MEGABYTE


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    case: Case
    times: Times
    memory: Mapping[str, float | None] = field(default_factory=dict)

    def reached(self) -> dict[str, dict[str, float | bool | None]]:
        """For each bound the figure and whether it is kept; None where it could not be measured."""
        values = {target: target.value(self.times, self.memory) for target in self.case.reach}
        return {
            target.text: {
                "value": value,
                "reached": None if value is None else value <= target.bound,
            }
            for target, value in values.items()
        }

    def record(self) -> dict[str, Any]:
        """As stored in benchmarks/results/."""
        low, high = self.times.interval
        names = list(self.memory)
        return {
            "case": self.case.name,
            "work": self.case.work,
            "limit": self.case.limit,
            "dtype": self.case.dtype,
            "sides": {
                name: {
                    "median_seconds": self.times.medians[i],
                    "calls_per_sample": self.times.calls[i],
                    "peak_megabytes": self.memory[name],
                }
                for i, name in enumerate(names)
            },
            "rounds": len(self.times.rounds),
            "rounds_spoiled": self.times.spoiled,
            "alone_median_seconds": list(self.times.alone) or None,
            "ratio": self.times.ratio,
            "ratio_interval": [low, high],
            "ratio_of_medians": self.times.ratio_of_medians,
            "reach": self.reached(),
        }


def run_case(
    case: Case, *, budget: float, tick: Callable[[str, float], None] = lambda doing, done: None
) -> Outcome:
    """Compare, time and weigh a case; `tick` is told what is being done, and how much of it is.

    Raises:
        ResultsDifferError: the sides do not compute the same. Nothing is measured then.
    """
    tick("comparing", 0.0)
    sides = case.prepare()
    compare_results(case, sides)

    def timed(doing: str) -> Times:
        return time_in_turn(
            sides,
            budget=budget,
            least_rounds=case.rounds,
            clock=case.clock,
            tick=lambda done: tick(doing, done),
        )

    times = timed("timing")
    if case.beside:
        with busy_cores():
            times = replace(timed("timing beside busy processes"), alone=times.medians)
    memory: dict[str, float | None] = dict.fromkeys(sides)
    # The inputs go first: two sets of them may not fit.
    names = list(sides)
    sides.clear()
    if case.memory:
        for name in names:
            tick(f"weighing {name}", 1.0)
            memory[name] = peak_memory(case, name)
    return Outcome(case, times, memory)


def environment() -> dict[str, Any]:
    """The machine, the versions and the commit that a figure belongs to."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "ram_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "commit": commit(),
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else (os.uname().machine or "unknown")


def commit() -> str:
    """The commit that was measured, marked where files differ from it."""

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "--short", "HEAD") or "none") + (" and changes" if changed else "")
