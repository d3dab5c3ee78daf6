"""Draw the pictures of figures.md, of the ladder, of the lessons, of the pages and of the README anew.

`python -m docs.generate_pictures` writes them into docs/pictures; it needs the extras `demo` and `dev`, and for the
pages chromium, the sample smollm2.
"""

import io
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import clearhead as ch
from clearhead import ladder
from clearhead.integrations import huggingface
from docs.sketches import SKETCHES, draw

FOLDER = Path(__file__).resolve().parent / "pictures"
TEXT = "The animal didn't cross the street because it was too tired"
OTHER_END = "The animal didn't cross the street because it was too wide"
LAYER, HEAD = 3, 1
"""A head in which “it” looks at “animal”, and the end of the sentence decides how much."""
INK = "#777c84"
"""A grey that is read on white as well as on black."""
LETTERED: dict[Any, Any] = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
)
"""Settings of matplotlib for a picture without a ground of its own."""


def save(axes: Axes, name: str, dots_per_inch: int) -> None:
    """Write the figure of some axes without a ground; the same figure gives the same bytes."""
    figure = axes.figure.figure
    assert isinstance(figure, Figure)
    # `transparent` of matplotlib takes the grey from the hatching as well.
    for each in (figure, *figure.axes):
        each.patch.set_facecolor("none")
    figure.savefig(
        FOLDER / f"{name}.png",
        dpi=dots_per_inch,
        facecolor="auto",
        metadata={"Software": None},
        bbox_inches="tight",
    )


def photographed(
    page: Path,
    name: str,
    state: str = "",
    height: int = 900,
    *,
    dark: bool = False,
    point: str | None = None,
) -> None:
    """Write the picture of a page in a state of its address, or pointed at, in 256 colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    known = filter(
        None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(known), args=["--no-sandbox"])
        view = browser.new_page(
            viewport={"width": 1280, "height": height}, color_scheme="dark" if dark else "light"
        )
        view.goto(f"{page.as_uri()}#{state}")
        if point is None:
            view.locator(".ch-map-canvas").first.wait_for()
        else:
            view.locator(point).hover()
        view.wait_for_timeout(2000)
        taken = Image.open(io.BytesIO(view.screenshot()))
        browser.close()
    taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )


def pages(folder: Path, reader: huggingface.TextModel) -> None:
    """The page of a sentence and of a long text."""
    reading, page = reader.read(TEXT), folder / "page.html"
    it, animal = reading.tokens.index("it"), reading.tokens.index("animal")
    reading.seen.to_html(page, tokens=reading.tokens, title=TEXT)
    photographed(page, "page", f"head={LAYER}.{HEAD}&pin={it},{animal}")

    sample = ch.samples.smollm2()
    ids = sample.tokenizer(
        (FOLDER.parent / "layers.md").read_text(), return_tensors="pt"
    ).input_ids[:, :4000]
    with torch.no_grad(), ch.watch(sample.model, layers="*.10.self_attn") as seen:
        sample.model(ids)
    tokens = [sample.tokenizer.decode(each) for each in ids[0]]
    seen.to_html(page, tokens=tokens, title="A long text", sample=0)
    photographed(page, "page_long", "head=10.1&view=940,120,940,120&pin=1030", dark=True)


def rungs() -> None:
    """The stages of the rungs of the ladder that a picture shows better than numbers."""
    x, words = ladder.EXAMPLE_EMBEDDINGS, ladder.EXAMPLE_TOKENS
    torch.manual_seed(123)
    simple, causal = ch.trace(ladder.SimpleAttention(), x, tokens=words), ch.causal()
    matrices = ch.trace(ladder.SelfAttention(3, head_dim=2), x, tokens=words)
    cross = ladder.CrossAttention(3, head_dim=2, context_dim=5)
    masked = ladder.MaskedAttention(3, head_dim=2, mask=causal)
    dropping = ladder.DropoutAttention(3, head_dim=2, mask=causal, dropout=0.5)
    batched = ladder.BatchedAttention(3, head_dim=2, mask=causal)
    batch = torch.stack([x, x])
    padded = ch.trace(batched, batch, mask=ch.padding([6, 2]), tokens=words)
    for name, trace, stages, sample in (
        ("scores", simple, ["query", "key", "scores"], 0),
        ("softmax", simple, ["scores", "weights"], 0),
        ("context", simple, ["weights", "value", "context"], 0),
        ("matrices", matrices, ["query", "key", "value", "weights"], 0),
        ("cross", ch.trace(cross, x, torch.randn(8, 5), tokens=words), ["key", "weights"], 0),
        (
            "masked",
            ch.trace(masked, x, tokens=words),
            ["scores", "masked_scores", "weights"],
            0,
        ),
        ("dropout", ch.trace(dropping, x, tokens=words), ["weights", "dropped_weights"], 0),
        ("padding", padded, ["masked_scores", "weights"], 1),
    ):
        with mpl.rc_context(LETTERED):
            save(trace.plot(stages, sample=sample)[0], f"ladder/{name}", 110)


def split() -> None:
    """Three words of four numbers in two heads: by view and transpose, and by view alone."""
    side, step_x, step_y = (34, 28), 37, 31
    colours = "#6f9ae0", "#e08a3c", "#57a773"
    drawn: list[str] = []

    def told(x: int, y: int, words: str) -> None:
        drawn.append(f'<text class="told" x="{x}" y="{y}">{words}</text>')

    def table(rows: torch.Tensor, words: str, x: int, y: int) -> None:
        told(x, y - 10, words)
        for i, row in enumerate(rows.tolist()):
            for j, number in enumerate(row):
                left, top = x + j * step_x, y + i * step_y
                drawn.append(
                    f'<rect x="{left}" y="{top}" width="{side[0]}" height="{side[1]}" rx="3" '
                    f'fill="{colours[number // 4]}"/>'
                    f'<text x="{left + side[0] // 2}" y="{top + 19}">{number}</text>'
                )

    rows = torch.arange(12).view(3, 4)
    table(rows, "three words", 4, 60)
    for heads, words, y in (
        (rows.view(3, 2, 2).transpose(0, 1), "view, then transpose: right", 60),
        (rows.view(2, 3, 2), "view at once: wrong", 220),
    ):
        told(200, y - 34, words)
        for number, head in enumerate(heads):
            table(head, f"head {number + 1}", 200 + 90 * number, y)
    _write_svg("split", "Cutting three words into two heads", 370, 316, drawn)


def sizes() -> None:
    """The tables of one attention as cells: the product of each step, with its sizes."""
    cell, gap, right = 14, 26, 340
    colours = {
        "x": "#9aa5b1",
        "query": "#e08a3c",
        "key": "#57a773",
        "value": "#b184d6",
        "scores": "#6f9ae0",
        "weights": "#6f9ae0",
        "context": "#d9a514",
    }
    x = ladder.EXAMPLE_EMBEDDINGS
    matrix = torch.zeros(3, 2)
    query = key = value = x @ matrix
    scores = query @ key.mT
    drawn: list[str] = []

    def table(rows: torch.Tensor, name: str, left: int, top: int) -> int:
        high, wide = rows.shape
        fill = colours[name.removeprefix("W_").removesuffix("ᵀ")]
        for i in range(high):
            for j in range(wide):
                place = f'x="{left + j * cell}" y="{top + i * cell}"'
                drawn.append(
                    f'<rect {place} width="{cell - 2}" height="{cell - 2}" rx="2" fill="{fill}"/>'
                )
        middle, under = left + wide * cell // 2 - 1, top + high * cell + 12
        drawn.append(f'<text class="told" x="{middle}" y="{top - 8}">{name}</text>')
        drawn.append(f'<text class="told" x="{middle}" y="{under}">{high} × {wide}</text>')
        return left + wide * cell

    steps = (
        (("x", x), ("W_query", matrix), ("query", query)),
        (("query", query), ("keyᵀ", key.mT), ("scores", scores)),
        (("weights", scores), ("value", value), ("context", scores @ value)),
    )
    for step, row in enumerate(steps):
        top = 26 + 142 * step
        wide = sum(rows.shape[1] * cell for _, rows in row) + 4 * gap
        left = (right - wide) // 2
        for place, (name, rows) in enumerate(row):
            high = rows.shape[0] * cell
            left = table(rows, name, left, top + (6 * cell - high) // 2)
            if place < 2:
                sign = f'<text class="sign" x="{left + gap - 1}" y="{top + 3 * cell + 5}">'
                drawn.append(f"{sign}{'@='[place]}</text>")
                left += 2 * gap
    _write_svg("sizes", "The sizes of the tables of an attention", right, 426, drawn, "middle")


def translator() -> None:
    """A model that reads and a model that writes, and where cross-attention sits between them."""
    read, write, wide, high = 82, 258, 150, 38
    drawn = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
    ]

    def box(x: int, y: int, *lines: str, fill: str = "#9aa5b1") -> None:
        drawn.append(
            f'<rect x="{x - wide // 2}" y="{y}" width="{wide}" height="{high}" rx="5" fill="{fill}"/>'
        )
        first = y + high // 2 + 5 - 8 * (len(lines) - 1)
        drawn.extend(
            f'<text x="{x}" y="{first + 16 * i}">{each}</text>' for i, each in enumerate(lines)
        )

    def told(x: int, y: int, words: str) -> None:
        drawn.append(f'<text class="told" x="{x}" y="{y}">{words}</text>')

    def arrow(path: str) -> None:
        drawn.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'
        )

    told(read, 392, "what is read")
    told(write, 392, "what is written so far")
    arrow(f"M{read} 376V342")
    arrow(f"M{write} 376V342")
    box(read, 302, "self-attention")
    box(write, 302, "self-attention,", "causal")
    arrow(f"M{read} 302V262")
    box(read, 222, "each word", "by itself")
    arrow(f"M{write} 302V192")
    told(write + 32, 252, "queries")
    box(write, 152, "cross-attention", fill="#e08a3c")
    arrow(f"M{read} 222V171H{write - wide // 2 - 2}")
    told(read + 2, 162, "keys, values")
    arrow(f"M{write} 152V112")
    box(write, 72, "each word", "by itself")
    arrow(f"M{write} 72V38")
    told(write, 30, "the next word")
    _write_svg("translator", "Where cross-attention sits", 340, 404, drawn, "middle")


def _write_svg(
    name: str, title: str, wide: int, high: int, drawn: list[str], anchor: str = "start"
) -> None:
    style = (
        "text{font:14px sans-serif;text-anchor:middle;fill:#111}"
        f".told{{font-size:13px;text-anchor:{anchor};fill:{INK}}}.sign{{font-size:18px;fill:{INK}}}"
    )
    (FOLDER / "lessons" / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" role="img">'
        f"<title>{title}</title><style>{style}</style>{''.join(drawn)}</svg>\n",
        encoding="utf-8",
    )


def touched(folder: Path) -> None:
    """A figure with a score that is set by hand."""
    torch.manual_seed(123)
    drawn = ch.figure(
        *torch.randn(3, 6, 2),
        mask=ch.causal(),
        tokens=ladder.EXAMPLE_TOKENS,
        show=("scores", "weights"),
        edit=("scores",),
        start="scores.5.0=3",
        title=" ".join(ladder.EXAMPLE_TOKENS),
    )
    page = drawn.to_html(folder / "figure.html")
    photographed(page, "figure", height=720, point='[data-at="weights.5.0"]')


def stepped(trace: ch.types.Trace, folder: Path) -> None:
    """Photograph the page of a trace, with the arithmetic of one weight."""
    page = trace.to_html(folder / "steps.html")
    photographed(page, "steps", height=900, point='[data-at="weights.1.0"]')


def hero(reader: huggingface.TextModel) -> None:
    """One head over two sentences that end differently."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    picture: Axes | None = None
    for axes, text in zip(figure.subplots(1, 2), (TEXT, OTHER_END), strict=True):
        read = reader.read(text)
        matrix = read.matrices[LAYER]
        it, animal = read.tokens.index("it"), read.tokens.index("animal")
        picture = matrix.plot(head=HEAD, tokens=read.tokens, ax=axes)
        weight = float(matrix[0, HEAD, it, animal])
        picture.set_title(f"… too {read.tokens[-2]}: it → animal {weight:.0%}")
        picture.add_patch(
            Rectangle((-0.5, it - 0.5), len(read.tokens), 1, fill=False, ec="#d9621f", lw=2)
        )
    assert picture is not None
    save(picture, "head", 180)


def main() -> None:
    mpl.use("agg")
    rungs()
    split()
    sizes()
    translator()
    for name in SKETCHES:
        draw(name)
    torch.manual_seed(0)
    reader = huggingface.load()
    reading = reader.read(TEXT)
    seen = reading.seen

    torch.manual_seed(123)
    rung = ladder.MaskedAttention(3, head_dim=2, value_head_dim=2, mask=ch.causal())
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    with mpl.rc_context(LETTERED):
        hero(reader)
        save(seen.plot(heads=range(6))[0, 0], "layers", 80)
        save(seen.plot("entropy"), "entropy", 90)
        received = seen[5].plot("received", head=11, tokens=reading.tokens)
        save(received, "received", 90)
        stages = trace.plot(["query", "key", "masked_scores", "weights"])
        save(stages[0], "stages", 80)
        example = runpy.run_path(str(FOLDER.parents[1] / "examples" / "card.py"))
        card = example["card"](seen, list(reading.tokens), "it", "animal")
        save(card.axes[0], "card", 100)
        mask = ch.causal() & ch.sliding_window(left=4_000)
        save(mask.plot(20_000, 20_000), "mask", 80)
    with tempfile.TemporaryDirectory() as folder:
        touched(Path(folder))
        stepped(trace, Path(folder))
        pages(Path(folder), reader)


if __name__ == "__main__":
    main()
