"""Cost against work, on two sheets: time and memory against tokens, and the share of the machine's limit.

    .venv/bin/python -m benchmarks.sheets [--most 131072]

A point is the least of some calls, in CPU time of one thread, in a process of its own; so other processes move it
little, and cores do not matter. Calls during which others had a core are left out, unless there is no other. The limit
is that of `sgemm` in the same process, just before and after. Our side and its peer are compared first, at a few
tokens. A peer ends where its process has no more memory, or a call takes too long.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from benchmarks.harness import MEGABYTE, ROOT, Others, Sides, environment, weigh
from benchmarks.report import RESULTS, stamp

HEADS, WIDTH, WINDOW, DOCUMENT = 2, 64, 256, 512
LEAST, MOST = 512, 131_072
MEMORY = 6 << 30
"""Bytes that a process may have; the peers' end is that of this number."""
LONGEST = 3.0
"""Seconds; after a call that took longer no longer one is tried."""
FEW = 700
"""Tokens of the comparison: no multiple of a window, a document or a tile."""
CALLS = 7
"""Of one point, at most."""
PRODUCT = 1024
"""Rows and columns of the matrices that tell the limit."""

FILE = RESULTS / "sheets" / "cost.json"
PICTURES = ROOT / "docs" / "pictures"

Record = dict[str, Any]


class Work(NamedTuple):
    """A call that is measured at every length.

    Attributes:
        title: for the sheet.
        sides: of so many tokens, ours first, then its peer.
        pairs: of queries and keys that take part, of so many tokens and one head.
    """

    title: str
    sides: Callable[[int], Sides]
    pairs: Callable[[int], float]


def _inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, 1, HEADS, tokens, WIDTH).unbind()
    return query, key, value


def _causal(tokens: int) -> Sides:
    query, key, value = _inputs(tokens)
    return {
        "attend": lambda: ch.attend(query, key, value, mask=ch.causal()),
        "PyTorch, is_causal": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ),
    }


def _masked(mask: ch.Mask, tokens: int) -> Sides:
    """The peer's mask is made in its first call, so its memory counts and its time does not."""
    query, key, value = _inputs(tokens)
    made: list[Tensor] = []

    def dense() -> Tensor:
        if not made:
            made.append(mask.to_dense(tokens, tokens))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=made[0])

    return {
        "attend": lambda: ch.attend(query, key, value, mask=mask),
        "PyTorch, a dense mask": dense,
    }


def _window(tokens: int) -> Sides:
    return _masked(ch.sliding_window(left=WINDOW - 1, right=0), tokens)


def _documents(tokens: int) -> Sides:
    whole = [DOCUMENT] * (tokens // DOCUMENT)
    rest = [tokens % DOCUMENT] if tokens % DOCUMENT else []
    return _masked(ch.causal() & ch.documents(lengths=[*whole, *rest]), tokens)


def _statistics(tokens: int) -> Sides:
    query, key, value = _inputs(tokens)

    def summary() -> Tensor:
        matrix = ch.AttentionMatrix(query, key, mask=ch.causal())
        context = matrix.summary(value=value, top_k=8, pool=(128, 128)).context
        assert context is not None
        return context

    def whole() -> Tensor:
        scores = query @ key.mT * WIDTH**-0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu_(1)
        weights = scores.masked_fill_(later, -torch.inf).softmax(dim=-1)
        torch.special.entr(weights).sum(dim=-1)
        weights.amax(dim=-1)
        weights.sum(dim=-2)
        weights.topk(8)
        torch.matmul(weights, torch.arange(float(tokens)))
        F.adaptive_avg_pool2d(weights, 128)
        return weights @ value

    return {"summary": summary, "all weights, held": whole}


def _watch(tokens: int) -> Sides:
    layer = nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True).eval()
    x = torch.randn(1, tokens, HEADS * WIDTH)

    def watched() -> Tensor:
        # What PyTorch calls its fast path holds all weights, whether somebody watches or not.
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad(), ch.watch(layer, keep="summary") as seen:
                output = layer(x, x, x, need_weights=False)[0]
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        assert len(seen) == 1
        return output

    def held() -> Tensor:
        with torch.no_grad():
            return layer(x, x, x, need_weights=True, average_attn_weights=False)[0]

    return {"watch": watched, "PyTorch, need_weights": held}


def _half(tokens: int) -> float:
    return tokens * (tokens + 1) / 2


WORKS = {
    "causal": Work("attend, causal", _causal, _half),
    "window": Work(
        f"a window of {WINDOW}", _window, lambda n: n * WINDOW - WINDOW * (WINDOW - 1) / 2
    ),
    "documents": Work(
        f"documents of {DOCUMENT}", _documents, lambda n: n / DOCUMENT * _half(DOCUMENT)
    ),
    "statistics": Work("every statistic, causal", _statistics, _half),
    "watch": Work("watch, all pairs", _watch, lambda n: float(n) * n),
}


def compare(work: Work) -> None:
    """Hold the sides of a work against each other, at a few tokens."""
    torch.manual_seed(0)
    ours, theirs = (side() for side in work.sides(FEW).values())
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def lengths(most: int) -> list[int]:
    """Tokens, doubling."""
    return [LEAST << step for step in range(int(math.log2(most / LEAST)) + 1)]


def point(name: str, side: int, tokens: int) -> Record:
    """Measure one side of a work at one length, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = WORKS[name]
    label, call = list(work.sides(tokens).items())[side]
    memory = weigh(call)
    limit = _sgemm()
    times: list[float] = []
    quiet: list[float] = []
    while len(times) < CALLS and (not times or sum(times) < 2.0):
        others, start = Others(), time.thread_time()
        call()
        times.append(time.thread_time() - start)
        if not others.had_cores():
            quiet.append(times[-1])
    limit = max(limit, _sgemm())
    least = min(quiet or times)
    # Scores and context: two products of a multiplication and an addition.
    useful = 4 * WIDTH * HEADS * work.pairs(tokens) / least / 1e9
    return {
        "work": name,
        "side": label,
        "ours": side == 0,
        "tokens": tokens,
        "seconds": least,
        "calls": len(times),
        "calls_spoiled": len(times) - len(quiet),
        "megabytes": None if memory is None else memory / MEGABYTE,
        "share_of_sgemm": useful / limit,
    }


def _sgemm() -> float:
    """GFLOP/s of a product of square matrices, the best of some, on one thread."""
    left, right = torch.randn(2, PRODUCT, PRODUCT).unbind()
    least = math.inf
    for _ in range(5):
        start = time.thread_time()
        torch.mm(left, right)
        least = min(least, time.thread_time() - start)
    return 2 * PRODUCT**3 / least / 1e9


def _in_own_process(name: str, side: int, tokens: int) -> Record | None:
    """The point; None where its process has no more memory."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

    asked = [sys.executable, "-m", "benchmarks.sheets", "--point", name, str(side), str(tokens)]
    run = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, preexec_fn=limited)
    if run.returncode == 0:
        return json.loads(run.stdout.splitlines()[-1])
    if "memory" in run.stderr or "allocate" in run.stderr:
        return None
    raise RuntimeError(f"{name} at {tokens} tokens failed in its own process:\n{run.stderr}")


def measure(most: int, names: Sequence[str]) -> list[Record]:
    """All points of some works, up to so many tokens."""
    where, records = environment(), []
    for name in names:
        compare(WORKS[name])
        for side in (0, 1):
            for tokens in lengths(most):
                found = _in_own_process(name, side, tokens)
                if found is None:
                    break
                records.append(stamp(found, where))
                print(f"{name}, {found['side']}, {tokens}: {found['seconds']:.3g} s", flush=True)
                if found["seconds"] > LONGEST:
                    break
    return records


def growth(records: Sequence[Record], name: str, first: int, last: int) -> float | None:
    """The exponent with which the time of our side grows; None where a length is missing."""
    times = {
        each["tokens"]: each["seconds"] for each in records if each["ours"] and each["work"] == name
    }
    if first not in times or last not in times:
        return None
    return math.log(times[last] / times[first]) / math.log(last / first)


def draw(records: Sequence[Record], folder: Path = PICTURES) -> list[Path]:
    """Draw both sheets."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    names = [name for name in WORKS if any(each["work"] == name for each in records)]
    plt.rcParams.update({"font.size": 8, "svg.hashsalt": "clearhead", "svg.fonttype": "none"})
    colours = {True: "#0b5cad", False: "#9a9a9a"}
    cost, rows = plt.subplots(
        2, len(names), figsize=(2.2 * len(names), 4), sharex=True, sharey="row", squeeze=False
    )
    for column, name in enumerate(names):
        for row, unit in enumerate(("seconds", "megabytes")):
            axes = rows[row, column]
            for ours in (False, True):
                some = [each for each in records if (each["work"], each["ours"]) == (name, ours)]
                some = [each for each in some if each[unit] is not None]
                if some:
                    axes.loglog(
                        [each["tokens"] for each in some],
                        [max(each[unit], 0.1 if row else 0.0) for each in some],
                        marker="o",
                        markersize=2.5,
                        linewidth=1.2,
                        color=colours[ours],
                        label=some[0]["side"],
                    )
            _in_doublings(axes, records)
            axes.grid(visible=True, which="major", linewidth=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        exponent = growth(records, name, 4096, 32_768)
        grows = "" if exponent is None else f"\ntime grows by tokens^{exponent:.2f}"
        rows[0, column].set_title(WORKS[name].title + grows, fontsize=8)
        rows[0, column].legend(fontsize=6, frameon=False)
        rows[1, column].set_xlabel("tokens")
    rows[0, 0].set_ylabel("seconds of one core")
    rows[1, 0].set_ylabel("peak memory (MB)")
    share, axes = plt.subplots(figsize=(5, 3))
    for name, colour in zip(names, plt.get_cmap("tab10").colors, strict=False):  # pyright: ignore[reportAttributeAccessIssue]
        for ours, style in ((True, "-"), (False, ":")):
            some = [each for each in records if (each["work"], each["ours"]) == (name, ours)]
            axes.semilogx(
                [each["tokens"] for each in some],
                [each["share_of_sgemm"] for each in some],
                style,
                color=colour,
                label=WORKS[name].title if ours else None,
            )
    axes.set(xlabel="tokens", ylabel="useful GFLOP/s, of those of sgemm", ylim=(0, 1))
    axes.set_title("share of one core's limit; dotted: the peer", fontsize=8)
    _in_doublings(axes, records)
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6, frameon=False)
    written = []
    for figure, name in ((cost, "cost.svg"), (share, "limit.svg")):
        figure.text(0.01, 0.01, _where(records), fontsize=6, color="#606060")
        figure.tight_layout(rect=(0, 0.03, 1, 1))
        figure.savefig(folder / name, metadata={"Date": None})
        plt.close(figure)
        written.append(folder / name)
    return written


def _where(records: Sequence[Record]) -> str:
    """The machine and the day, in a line."""
    where, days = records[0]["environment"], sorted({each["measured"][:10] for each in records})
    # Points that were measured before calls were counted have no mark.
    spoiled = sum(each.get("calls_spoiled", 0) == each.get("calls", -1) for each in records)
    beside = f"; others had a core at {spoiled} of {len(records)} points" if spoiled else ""
    return f"{where['cpu']}, one core, PyTorch {where['torch']}, {days[-1]}{beside}"


def _in_doublings(axes: Any, records: Sequence[Record]) -> None:
    """Mark every fourfold length."""
    marked = sorted({each["tokens"] for each in records})[::2]
    axes.set_xscale("log", base=2)
    axes.set_xticks(marked, [f"{tokens:,}" for tokens in marked], fontsize=6)
    axes.minorticks_off()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sheets", description=__doc__)
    parser.add_argument("--most", type=int, default=MOST, help="tokens")
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", choices=WORKS, help="measure this work, and keep the others as filed"
    )
    parser.add_argument("--draw", action="store_true", help="draw the figures that are filed")
    options = parser.parse_args(arguments)
    if options.point:
        name, side, tokens = options.point
        print(json.dumps(point(name, int(side), int(tokens))))
        return 0
    if not options.draw:
        names = [options.only] if options.only else [*WORKS]
        kept = json.loads(FILE.read_text(encoding="utf-8")) if options.only else []
        records = [each for each in kept if each["work"] not in names]
        records += measure(options.most, names)
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    for path in draw(json.loads(FILE.read_text(encoding="utf-8"))):
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
