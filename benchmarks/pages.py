"""The cost of a page: its size, the time to write it, and how it moves in a real browser.

    .venv/bin/python -m benchmarks.pages [--long 50000] [--beside 512] [--peaked | --figures]

It needs chromium, prints a line for each page, and files them in benchmarks/results/pages.md; with --peaked
only those of peaked weights, with --figures only what figures whose numbers are touched take, below the others and
with the machine beside them.
Weights are those of random query and key; those of a trained model deflate worse, and peaked ones stand in for
them. Where BertViz (Vig, 2019, https://arxiv.org/abs/1906.05714) and CircuitsVis are installed, their pages of the same
weights are written beside ours. These load scripts from a network, so that nothing is drawn of them
here; BertViz's neuron view reads its own copies of three models, and has no page of these weights.
"""

import argparse
import gzip
import importlib.util
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from playwright.sync_api import CDPSession, Page, sync_playwright

import clearhead as ch
from benchmarks.harness import environment
from benchmarks.report import RESULTS, stamp
from benchmarks.report import place as place_of
from clearhead import ladder
from clearhead._text import format_bytes
from clearhead.drawing.page.head_page import write_heads
from clearhead.drawing.page.page import asset
from tests.browser.test_ten_figures import TOUCHED

LAYERS, HEADS, HEAD_DIM = 12, 12, 64
BUNDLES = {
    "heads": ("heads.js", "heads.css"),
    "trace": ("trace.js", "trace.css"),
    "figure": ("figure.js",),
}
FRAMES = 60

# Keys on one number, each until what follows is drawn.
EDIT = """async ([at, times]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const cell = document.querySelector("ch-figure").shadowRoot.querySelector(`[data-at="${at}"]`);
  for (let time = 0; time < times; time++) {
    const key = time % 2 ? "ArrowDown" : "ArrowUp";
    cell.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await frame();
    await frame();
  }
}"""
# Frames in which nothing happens.
IDLE = """async (count) => {
  for (let at = 0; at < count; at++) await new Promise(requestAnimationFrame);
}"""
EDITS, ROUNDS = 10, 9

MEASURE = """async (frames) => {
  const canvas = document.querySelector(".ch-map-canvas");
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const frame = () => new Promise(requestAnimationFrame);
  const zoom = (by) => canvas.dispatchEvent(
    new WheelEvent("wheel", { deltaY: by, clientX: x, clientY: y, cancelable: true, ctrlKey: true }));
  const times = [];
  let last = await frame();
  for (let at = 0; at < frames; at++) {
    zoom(at % 30 < 15 ? -120 : 120);
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  const hovers = [];
  for (let at = 0; at < 20; at++) {
    const start = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + box.width * (at + 0.5) / 20, clientY: box.top + box.height * 0.6,
      pointerType: "mouse", bubbles: true }));
    await frame();
    hovers.push(performance.now() - start);
  }
  return { times, hovers };
}"""


ASK = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const answers = () => document.querySelector(".ch-answers")?.innerText;
  const asked = [];
  for (const at of [5, 11, 17, 29, 41]) {
    const before = answers();
    const start = performance.now();
    document.querySelectorAll(".ch-token")[at].click(); // of a long text those that are in sight
    while (!answers() || answers() === before) await frame();
    asked.push(performance.now() - start);
  }
  return asked;
}"""


def weights(tokens: int, seed: int) -> ch.AttentionMatrix:
    """Attention of a layer, over neighbours more than over others."""
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, HEADS, tokens, HEAD_DIM, generator=generator).unbind()
    return ch.AttentionMatrix(2 * query, key, mask=ch.causal())


def watched(tokens: int, layers: int) -> "ch.types.Seen[ch.AttentionMatrix]":
    """The record of a model of so many layers, made of nothing but attention."""
    model = torch.nn.Sequential(
        *(ch.MultiHeadAttention(HEADS * HEAD_DIM, num_heads=HEADS) for _ in range(layers))
    )
    with ch.watch(model) as seen, torch.no_grad():
        model(torch.randn(1, tokens, HEADS * HEAD_DIM) * 3)
    return seen


def peaked(tokens: int, words: list[str], *, causal: bool) -> list[tuple[str, ch.AttentionMatrix]]:
    """Layers whose heads look at the token before, at equal words, at the first token or around themselves."""
    generator = torch.Generator().manual_seed(0)
    known = {word: at for at, word in enumerate(dict.fromkeys(words))}
    of_word = torch.tensor([known[word] for word in words])
    mask = ch.causal() if causal else None
    layers: list[tuple[str, ch.AttentionMatrix]] = []
    for layer in range(LAYERS):
        query, key = 0.7 * torch.randn(2, 1, HEADS, tokens, HEAD_DIM, generator=generator)
        for head in range(HEADS):
            place, word = torch.randn(2, tokens, HEAD_DIM, generator=generator).unbind()
            first = torch.zeros(tokens, HEAD_DIM)
            first[0] = place[0]
            slow = torch.arange(tokens)[:, None] * torch.logspace(-2, 0, HEAD_DIM // 2)
            around = torch.cat([slow.sin(), slow.cos()], dim=-1)
            looks = (
                (place.roll(1, 0), place),
                (word[of_word], word[of_word]),
                (place[:1].expand_as(first), first),
                (around, around),
            )[head % 4]
            size = 0.4 + 0.8 * float(torch.rand(1, generator=generator))
            query[0, head] += size * looks[0]
            key[0, head] += size * looks[1]
        layers.append((f"layers.{layer}", ch.AttentionMatrix(query, key, mask=mask)))
    return layers


def of_peaked(folder: Path) -> list[str]:
    """A line for each page of peaked weights of 512 tokens, with CPU time alone, which holds on a busy machine too."""
    words = [f" w{n % 97}" for n in range(512)]
    path = folder / "peaked.html"
    lines: list[str] = []
    for causal in (True, False):
        layers = peaked(len(words), words, causal=causal)
        taken: list[float] = []
        for _ in range(3):
            before = time.process_time()
            write_heads(path, [layers], tokens=words)
            taken.append(time.process_time() - before)
        lines.append(
            f"{LAYERS} × {HEADS} heads that peak, {len(words)} tokens, {'causal' if causal else 'all pairs'}: "
            f"{format_bytes(path.stat().st_size)}, written in {statistics.median(taken):.1f} s of CPU time"
        )
        print(lines[-1], flush=True)
    return lines


def of_figures(folder: Path) -> list[str]:
    """A line for each figure that is edited, and one for ten in a page, in CPU time of the page's main thread.

    It does not count what other processes take meanwhile; on a busy machine the caches are theirs too.
    """
    rung = ladder.SelfAttention(3, head_dim=2, value_head_dim=2)
    query, key, value = torch.randn(3, 32, 8, generator=torch.Generator().manual_seed(0))
    edited = {
        "6 × 6": ch.figure(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS),
        "32 × 32": ch.figure(query, key, value, mask=ch.causal()),
    }
    paths = [made.to_html(folder / f"{at}.html") for at, made in enumerate(edited.values())]
    together = "".join(
        touched.make().to_element(script=not at) for at, touched in enumerate(TOUCHED.values())
    )
    ten = folder / "ten.html"
    ten.write_text(f"<!doctype html><meta charset=utf-8><title>ten</title>{together}", "utf-8")
    blank = folder / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>", "utf-8")
    edits: dict[str, list[float]] = {name: [] for name in edited}
    opened: list[float] = []
    with browser() as page:
        busy = page.context.new_cdp_session(page)
        busy.send("Performance.enable", {"timeDomain": "threadTicks"})
        # One after the other in each round, so that a busy moment falls on all.
        for _ in range(ROUNDS):
            for times, path in zip(edits.values(), paths, strict=True):
                page.goto(path.as_uri())
                page.locator("ch-figure [data-at]").first.wait_for()
                for warm in (True, False):
                    page.wait_for_timeout(700)  # Until nothing is lit from before.
                    before = worked(busy)
                    page.evaluate(EDIT, ["query.1.0", EDITS])
                    if not warm:
                        times.append((worked(busy) - before) / EDITS)
            page.goto(blank.as_uri())
            page.evaluate(IDLE, 10)
            before = worked(busy)
            page.goto(ten.as_uri())
            page.wait_for_timeout(700)
            opened.append(worked(busy) - before)
    lines = [
        f"a figure of {name}, {made}: {1000 * statistics.median(edits[name]):.1f} ms of CPU time for "
        f"an edit until it is drawn ({1000 * min(edits[name]):.1f} to {1000 * max(edits[name]):.1f} in {ROUNDS} rounds)"
        for name, made in edited.items()
    ]
    lines.append(
        f"{len(TOUCHED)} figures in one page of {format_bytes(ten.stat().st_size)}: "
        f"{1000 * statistics.median(opened):.0f} ms of CPU time until idle ({1000 * min(opened):.0f} to "
        f"{1000 * max(opened):.0f} in {ROUNDS} rounds)"
    )
    lines.append(f"meanwhile the load of the machine was {os.getloadavg()[1]:.1f}")
    print(*lines, sep="\n", flush=True)
    return lines


@contextmanager
def browser() -> Iterator[Page]:
    """A window of chromium."""
    known = ("chromium", "chromium-browser", "chromium-headless-shell")
    place = next(filter(None, map(shutil.which, known)), None)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=place, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium.new_page(viewport={"width": 1280, "height": 800})
        chromium.close()


def drawn(page: Page, path: Path) -> str:
    """The speed at which the page in this file is drawn, moved and pointed at, in words."""
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_function(
        "() => document.querySelector('.ch-map-side > .ch-remark')?.innerText.startsWith('One cell')"
    )
    first = time.perf_counter() - start
    found = page.evaluate(MEASURE, FRAMES)
    rate = 1000 / statistics.median(found["times"])
    slowest = sorted(found["times"])[int(0.95 * FRAMES)]
    hover = statistics.median(found["hovers"])
    busy = page.context.new_cdp_session(page)
    busy.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = worked(busy)
    first_answer, *answers = page.evaluate(ASK)
    # Of the thread that answers, which does not count what other processes take meanwhile.
    each = 1000 * (worked(busy) - before) / (1 + len(answers))
    return (
        f"first drawing {first:.2f} s, {rate:.0f} frames/s (19 of 20 within {slowest:.0f} ms), "
        f"pointing {hover:.0f} ms, all heads asked in {first_answer:.0f} ms at first, then in "
        f"{statistics.median(answers):.0f} ms, of which the page computes for {each:.0f} ms"
    )


def worked(session: CDPSession) -> float:
    """The seconds of CPU time that the page's main thread has taken."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


Pages = Callable[[list[torch.Tensor], list[str]], str]


def by_bertviz(name: str) -> Pages:
    """A view of BertViz, `model_view` or `head_view`."""

    def page(weights: list[torch.Tensor], words: list[str]) -> str:
        view = getattr(importlib.import_module("bertviz"), name)
        return view(weights, words, html_action="return").data

    return page


def by_circuitsvis(weights: list[torch.Tensor], words: list[str]) -> str:
    """The heads of each layer, as CircuitsVis shows them."""
    attention = importlib.import_module("circuitsvis.attention")
    return "".join(
        str(attention.attention_heads(tokens=words, attention=each[0])) for each in weights
    )


PEERS: dict[str, Pages] = {
    "BertViz' model view": by_bertviz("model_view"),
    "BertViz' head view": by_bertviz("head_view"),
    "CircuitsVis' attention_heads": by_circuitsvis,
}


def beside(
    seen: "ch.types.Seen[ch.AttentionMatrix]", words: list[str], size: int, time: float
) -> list[str]:
    """The pages of others of the same weights, a line each, of those that are installed."""
    weights = [seen[name].dense() for name in seen]
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, page in PEERS.items():
            if importlib.util.find_spec(name.split("'")[0].lower()) is None:
                continue
            path = Path(folder) / "theirs.html"
            theirs, large = written(lambda: path.write_text(page(weights, words), "utf-8"), path)  # noqa: B023
            lines.append(
                f"the same by {name}: {format_bytes(large)}, written in {theirs:.1f} s; ours takes "
                f"{size / large:.4f} × its bytes and {time / theirs:.3f} × its time"
            )
    return lines


def written(write: Callable[[], object], path: Path) -> tuple[float, int]:
    """The seconds that a page takes to write, and its bytes."""
    start = time.perf_counter()
    write()
    return time.perf_counter() - start, path.stat().st_size


def main() -> None:
    """Write the pages, open them, print a line for each."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--long", type=int, default=50_000, help="tokens of the long text")
    arguments.add_argument(
        "--beside",
        type=int,
        default=512,
        help="tokens of the longest text of which others draw a page",
    )
    only = arguments.add_mutually_exclusive_group()
    only.add_argument("--peaked", action="store_true", help="only pages of peaked weights")
    only.add_argument("--figures", action="store_true", help="only figures that are touched")
    given = arguments.parse_args()
    long = given.long
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        lines = [] if given.peaked else [of_bundles()]
        if not (given.peaked or given.figures):
            lines += of_random(Path(folder), long, given.beside)
        if not given.figures:
            lines += of_peaked(Path(folder))
        if not given.peaked:
            lines += of_figures(Path(folder))
    there = stamp({}, environment())
    file = RESULTS / "pages.md"
    before = f"{file.read_text('utf-8')}\n## " if given.peaked or given.figures else "# Pages\n\n"
    listed = "\n".join(f"- {line}" for line in lines)
    file.write_text(f"{before}{place_of(there)}\n\n{listed}\n", "utf-8")


def of_bundles() -> str:
    """A line for the scripts and styles."""
    sizes = {
        kind: format_bytes(len(gzip.compress("".join(map(asset, names)).encode(), 9)))
        for kind, names in BUNDLES.items()
    }
    listed = ", ".join(f"{kind} {size}" for kind, size in sizes.items())
    line = f"script and style in each page, gzipped: {listed}"
    print(line, flush=True)
    return line


def of_random(folder: Path, long: int, most: int) -> list[str]:
    """Lines for pages of random query and key, which a browser draws."""
    lines: list[str] = []
    with browser() as page:
        for tokens, layers in ((64, LAYERS), (512, LAYERS), (long, 1)):
            words = [f" w{n % 997}" for n in range(tokens)]
            path = folder / f"{tokens}.html"
            seen = watched(tokens, layers) if layers > 1 else weights(tokens, 0)
            seconds, size = written(partial(seen.to_html, path, tokens=words), path)
            lines.append(
                f"{layers} × {HEADS} heads, {tokens} tokens: {format_bytes(size)}, written in "
                f"{seconds:.1f} s, {drawn(page, path)}"
            )
            print(lines[-1], flush=True)
            if isinstance(seen, ch.types.Seen) and tokens <= most:
                lines += beside(seen, words, size, seconds)
                print(*lines[-len(PEERS) :], sep="\n", flush=True)
    return lines


if __name__ == "__main__":
    main()
