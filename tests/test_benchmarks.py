"""The harness keeps its promises; how fast anything is, is never a test."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import __main__ as command
from benchmarks import gpu, harness, report, sheets
from benchmarks.harness import CASES, Case, Outcome, ResultsDifferError, Sides, Target, Times, case

WIDTH = 2048


@pytest.fixture
def clean_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_cases", lambda: None)
    for name in list(CASES):
        monkeypatch.delitem(CASES, name)


@case("tiny-square", reach=("<= 1000x", "<= 0.000001x"), work="x @ x, (1, 1)")
def tiny() -> Sides:
    x = torch.randn(1, 1)
    return {"product": lambda: x @ x, "power": lambda: x**2}


@case("tiny-memory")
def memory() -> Sides:
    """A side that makes its input (16.8 MB) twice more at its peak, and one that makes nothing."""
    x = torch.ones(WIDTH, WIDTH)

    def wasteful() -> Tensor:
        return (x * 2 + 1).sum()

    return {"wasteful": wasteful, "careful": lambda: torch.tensor(3.0 * WIDTH**2)}


TINY, MEMORY = CASES["tiny-square"], CASES["tiny-memory"]


def differing(name: str = "different") -> Case:
    return Case(name, lambda: {"one": lambda: torch.ones(2), "two": lambda: torch.zeros(2)})


def ticking(seconds: dict[str, float]) -> tuple[Sides, Callable[[], float], list[str]]:
    """Sides that take exactly these times on a clock of their own, and the order of their calls."""
    now, order = [0.0], []

    def side(name: str) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            now[0] += seconds[name]

        return run

    return {name: side(name) for name in seconds}, lambda: now[0], order


def test_results_are_compared_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "time_in_turn", lambda *_, **__: pytest.fail("was timed"))
    monkeypatch.setattr(harness, "peak_memory", lambda *_: pytest.fail("was weighed"))
    with pytest.raises(
        ResultsDifferError, match=r"(?s)different: one and two differ: .*Mismatched"
    ):
        harness.run_case(differing(), budget=0.0)


@pytest.mark.usefixtures("clean_cases")
def test_no_figure_is_printed_or_stored_where_results_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "different", differing())
    monkeypatch.setattr(report, "store", lambda *_: pytest.fail("was stored"))
    assert command.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no figure, for the results differ: different: one and two")


def test_a_comparison_of_its_own_is_used() -> None:
    def same_sign(ours: Tensor, theirs: Tensor) -> None:
        assert ours.sign().equal(theirs.sign()), "the signs differ"

    sides: Sides = {"one": lambda: torch.ones(1), "two": lambda: torch.ones(1) * 2}
    harness.compare_results(Case("signs", lambda: sides, compare=same_sign), sides)
    sides["three"] = lambda: -torch.ones(1)
    with pytest.raises(ResultsDifferError, match="signs: one and three differ: the signs differ"):
        harness.compare_results(Case("signs", lambda: sides, compare=same_sign), sides)


def test_one_side_is_nothing_to_compare() -> None:
    with pytest.raises(ResultsDifferError, match=r"alone: two sides are needed"):
        harness.run_case(Case("alone", lambda: {"one": lambda: 1}), budget=0.0)


def test_sides_take_turns_and_the_ratio_is_theirs() -> None:
    sides, clock, order = ticking({"ours": 0.5, "theirs": 0.25})
    times = harness.time_in_turn(sides, budget=7.5, clock=clock)
    assert order[:4] == ["ours", "ours", "theirs", "theirs"]
    assert order[4:] == ["ours", "theirs"] * 8
    assert times.calls == (1, 1)
    assert times.medians == [0.5, 0.25]
    assert times.ratio == times.ratio_of_medians == 2.0
    assert times.interval == (2.0, 2.0)


def test_short_calls_are_timed_several_at_a_time() -> None:
    sides, clock, order = ticking({"ours": 2.0**-12, "theirs": 1.0})
    times = harness.time_in_turn(sides, budget=0.0, shortest_sample=2.0**-9, clock=clock)
    assert times.calls == (8, 1)
    assert len(times.rounds) == 5
    assert order.count("ours") == 2 + 5 * 8
    assert times.ratio == 2.0**-12


@pytest.mark.parametrize(("busy", "kept"), [((1, 4), (6, 2)), (range(8), (8, 0))])
def test_rounds_in_which_others_had_cores_are_left_out_unless_all_are(
    busy: tuple[int, ...], kept: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(range(8))
    monkeypatch.setattr(harness.Others, "had_cores", lambda _: next(turns) in busy)
    sides, clock, _ = ticking({"ours": 0.5, "theirs": 0.25})
    times = harness.time_in_turn(sides, budget=7.5, clock=clock)
    assert (len(times.rounds), times.spoiled) == kept


@pytest.mark.parametrize(
    ("seconds", "busy", "had"), [(1.0, 0.2, True), (1.0, 0.05, False), (0.05, 0.04, False)]
)
def test_others_are_what_the_kernel_counts_less_this_process(
    seconds: float, busy: float, had: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = iter([(10.0, 3.0), (10.0 + seconds, 3.0 + busy)])
    monkeypatch.setattr(harness.Others, "_now", lambda _: next(read))
    assert harness.Others().had_cores() is had


def test_busy_processes_are_ended_whatever_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[harness.subprocess.Popen[bytes]] = []
    start = harness.subprocess.Popen

    def popen(command: list[str]) -> harness.subprocess.Popen[bytes]:
        started.append(start(command))
        return started[-1]

    monkeypatch.setattr(harness.subprocess, "Popen", popen)

    def interrupted() -> None:
        with harness.busy_cores():
            assert started
            assert all(each.poll() is None for each in started)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(each.poll() is not None for each in started)


def test_a_case_beside_busy_processes_tells_what_it_takes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []

    @contextlib.contextmanager
    def busy() -> Iterator[None]:
        begun.append("busy")
        yield

    taken = iter([Times([(1.0, 1.0)], (1, 1)), Times([(2.5, 5.0)], (1, 1))])
    monkeypatch.setattr(harness, "busy_cores", busy)
    monkeypatch.setattr(harness, "time_in_turn", lambda *_, **__: next(taken))
    beside = Case("beside", TINY.build, (Target.parse("<= 3x alone"),), memory=False, beside=True)
    outcome = harness.run_case(beside, budget=0.0)
    assert begun == ["busy"]
    assert outcome.reached() == {"<= 3x alone": {"value": 2.5, "reached": True}}
    assert outcome.record()["alone_median_seconds"] == [1.0, 1.0]


def test_pairwise_ratio_is_untouched_by_a_drift_of_the_machine() -> None:
    times = Times([(2.0 * slow, 1.0 * slow) for slow in range(1, 20)], (1, 1))
    assert times.ratio == 2.0
    assert times.interval == (2.0, 2.0)


@pytest.mark.parametrize(
    ("count", "dropped"), [(1, 0), (5, 0), (6, 0), (9, 1), (17, 4), (100, 39)], ids=str
)
def test_interval_holds_the_median_at_95_percent(count: int, dropped: int) -> None:
    """The sign test: tables of it give what may be dropped at each end of `count` numbers."""
    times = Times([(float(i), 1.0) for i in range(1, count + 1)], (1, 1))
    assert times.interval == (1.0 + dropped, float(count - dropped))


@pytest.mark.parametrize(
    ("text", "value"),
    [("<= 1.02x", 2.0), ("<= 20us", 1e6), ("<= 60MB", 30.0), ("<= 2 x memory", 3.0)],
)
def test_a_reach_is_about_its_unit(text: str, value: float) -> None:
    target = Target.parse(text)
    memory = {"ours": 30.0, "theirs": 10.0}
    assert target.value(Times([(2.0, 1.0)], (1, 1)), memory) == value
    outcome = Outcome(Case("case", dict, (target,)), Times([(2.0, 1.0)], (1, 1)), memory)
    reached = value <= target.bound
    assert outcome.reached() == {text: {"value": value, "reached": reached}}


def test_memory_that_was_not_measured_is_not_called_reached() -> None:
    outcome = Outcome(
        Case("case", dict, (Target.parse("<= 60MB"),)),
        Times([(2.0, 1.0)], (1, 1)),
        {"ours": None, "theirs": None},
    )
    assert outcome.reached() == {"<= 60MB": {"value": None, "reached": None}}
    assert report.reach(outcome.record()) == ["<= 60MB: not measured"]


@pytest.mark.parametrize("text", ["1.02x", "< 1.02x", "<= 1.02", "<= 1.02 parsecs", "<= x"])
def test_a_reach_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a reach is one of '<= 2x', "):
        Target.parse(text)


def test_two_cases_of_one_name_are_refused() -> None:
    def other() -> Sides:
        return {}

    with pytest.raises(ValueError, match="two cases are called 'tiny-square'"):
        case("tiny-square")(other)
    assert CASES["tiny-square"] is TINY


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_peak_memory_is_what_a_side_takes_beyond_its_inputs() -> None:
    megabytes = WIDTH * WIDTH * 4 / 1e6
    wasteful = harness.peak_memory(MEMORY, "wasteful")
    careful = harness.peak_memory(MEMORY, "careful")
    assert wasteful is not None
    assert careful is not None
    assert 1.7 * megabytes < wasteful < 2.6 * megabytes
    assert careful < 0.3 * megabytes


@pytest.mark.usefixtures("clean_cases")
def test_a_case_from_start_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CASES, "tiny-square", TINY)
    monkeypatch.setitem(CASES, "different", differing())
    monkeypatch.setattr(command, "BUDGET", 0.0)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "peak_memory", lambda case, side: 3.0)
    store, publish = report.store, report.publish
    monkeypatch.setattr(report, "store", lambda records: store(records, tmp_path))
    monkeypatch.setattr(report, "publish", lambda: publish(tmp_path))

    assert command.main(["tiny"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny-square: product ")
    assert re.search(r"; <= 1000x: yes, \S+; <= 0.000001x: no, \S+\n", printed)

    [stored] = tmp_path.glob("test_benchmarks.json")
    [record] = json.loads(stored.read_text())
    assert list(record["sides"]) == ["product", "power"]
    assert record["rounds"] >= 5
    assert record["environment"]["torch"] == torch.__version__
    page = (tmp_path / "README.md").read_text()
    assert "| `tiny-square` | x @ x, (1, 1), float32 | product " in page
    assert re.search(r"<= 1000x: yes, \S+<br><= 0.000001x: \*\*no\*\*, \S+ \|", page)


def stored(name: str, measured: str, ratio: float) -> report.Record:
    times = Times([(ratio, 1.0)], (1, 1))
    outcome = Outcome(Case(name, dict), times, {"ours": None, "theirs": None})
    return {**report.stamp(outcome.record(), harness.environment()), "measured": measured}


def test_rows_of_a_gpu_say_that_there_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == gpu.NO_DEVICE == 3
    assert capsys.readouterr().err == (
        "gpu: PyTorch finds no CUDA device here, so nothing was run.\n"
    )


def test_rows_of_a_gpu_run_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a figure, or names a side that cannot run on the CPU."""
    assert gpu.main(["--tiny"]) == 0
    said = capsys.readouterr().out
    starts = [line.partition(":")[0] for line in said.splitlines() if line.startswith("gpu-")]
    assert starts == [row.name for row in gpu.ROWS]
    assert "FAILED" not in said
    assert "gpu-statistics-32768: summary" in said


def test_a_row_is_filed_under_the_name_of_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "card", lambda device: "nvidia-h200")
    rows = gpu.chosen("gpu-causal-4096")[:1]
    (text,) = gpu.run(rows, gpu.Scale.tiny(), 0.0, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "gpu-nvidia-h200.json"
    (record,) = json.loads(path.read_text(encoding="utf-8"))
    assert record["case"] == "gpu-causal-4096"
    assert "cuDNN" in record["not_run"]
    assert text.startswith("gpu-causal-4096: attend ")


def test_the_fastest_of_the_others_is_what_a_row_is_held_against() -> None:
    def wait(seconds: float) -> Callable[[], None]:
        return lambda: time.sleep(seconds)

    sides: Sides = {"ours": wait(0.01), "slow": wait(0.02), "fast": wait(0.0)}
    assert [*gpu.in_order_of_time(sides, torch.device("cpu"))] == ["ours", "fast", "slow"]


def test_a_sheet_is_drawn_of_points_whose_sides_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "CALLS", 1)
    monkeypatch.setattr(sheets, "PRODUCT", 64)
    threads = torch.get_num_threads()
    records = []
    try:
        for name, work in sheets.WORKS.items():
            sheets.compare(work)
            for side in (0, 1):
                points = [sheets.point(name, side, tokens) for tokens in sheets.lengths(1024)]
                records += [report.stamp(each, harness.environment()) for each in points]
    finally:
        torch.set_num_threads(threads)
    assert [each["tokens"] for each in records] == 10 * [512, 1024]
    assert all(0 < each["seconds"] and 0 < each["share_of_sgemm"] for each in records)
    drawn = sheets.draw(records, tmp_path)
    texts = [path.read_text() for path in drawn]
    assert all(
        text.count('<g id="axes_') == count for text, count in zip(texts, (10, 1), strict=True)
    )


def test_growth_is_the_exponent_of_our_side() -> None:
    records = [
        {"work": "window", "ours": ours, "tokens": tokens, "seconds": seconds}
        for ours, seconds, tokens in ((True, 1.0, 4), (True, 8.0, 16), (False, 9.0, 16))
    ]
    assert sheets.growth(records, "window", 4, 16) == 1.5
    assert sheets.growth(records, "window", 4, 32) is None
