"""Draw the pictures of figures.md, of the ladder, of the lessons, of the pages and of the README anew.

`python docs/generate_pictures.py` writes them into docs/pictures; it needs the extras `demo` and `dev`, and for the
pages chromium, the samples smollm2 and whisper, and espeak-ng.
"""

import io
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import clearhead as ch
from clearhead import ladder
from clearhead.drawing.figures.png_files import head_picture, save_png
from clearhead.integrations import huggingface

FOLDER = Path(__file__).resolve().parent / "pictures"
TEXT = "The animal didn't cross the street because it was too tired"
OTHER_END = "The animal didn't cross the street because it was too wide"
LAYER, HEAD = 3, 1
"""A head in which “it” looks at “animal”, and the end of the sentence decides how much."""
INK = "#73787f"
"""A grey that is read on white as well as on black."""


def save(axes: Axes, name: str, dots_per_inch: int, *, transparent: bool = False) -> None:
    """Write the figure of some axes; the same figure gives the same bytes."""
    figure = axes.figure.figure
    assert isinstance(figure, Figure)
    figure.savefig(
        FOLDER / f"{name}.png",
        dpi=dots_per_inch,
        metadata={"Software": None},
        transparent=transparent,
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
            view.get_by_text("One cell").wait_for()
        else:
            view.locator(point).hover()
        view.wait_for_timeout(2000)
        taken = Image.open(io.BytesIO(view.screenshot()))
        browser.close()
    taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )


def pages(folder: Path, reader: huggingface.TextModel) -> None:
    """The page of a sentence, of a long text and of a sound."""
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
    photographed(page, "page_long", "head=0.1&view=940,120,940,120&pin=1030", dark=True)

    sys.path.append(str(FOLDER.parents[1] / "examples"))
    import words_in_time
    from speech import RATE, speak

    sample, speech = ch.samples.whisper(), speak(words_in_time.TEXT)
    ids = words_in_time.whole(sample, words_in_time.tokens_of(sample, speech.text))
    with torch.no_grad(), ch.watch(sample.model, layers="*encoder_attn") as seen:
        sample.model(
            input_features=words_in_time.features(sample, speech.sound), decoder_input_ids=ids
        )
    words = [sample.tokenizer.decode(each) for each in ids[0]]
    seen.to_html(
        page,
        tokens=words,
        times=0.02,
        audio=(speech.sound, RATE),
        title=speech.text,
        start="head=3.2",
    )
    photographed(
        page, "page_sound", f"head=3.2&pin={words.index(' because')},&view=0,{len(words)},0,257"
    )


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
        words_in = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        with mpl.rc_context(dict.fromkeys(words_in, INK)):
            save(trace.plot(stages, sample=sample)[0], f"ladder/{name}", 110, transparent=True)


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
    style = (
        "text{font:14px sans-serif;text-anchor:middle;fill:#111}"
        f".told{{font-size:13px;text-anchor:start;fill:{INK}}}"
    )
    (FOLDER / "lessons" / "split.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 370 316" width="370" height="316" role="img">'
        f"<title>Cutting three words into two heads</title><style>{style}</style>{''.join(drawn)}</svg>\n",
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


def main() -> None:
    mpl.use("agg")
    rungs()
    split()
    torch.manual_seed(0)
    reader = huggingface.load()
    reading = reader.read(TEXT)
    ids = reader.tokenizer(TEXT, return_tensors="pt")
    with ch.watch(reader.model) as seen:
        reader.model(**ids)

    figure = Figure(figsize=(11.6, 5.4), layout="constrained")
    for axes, text in zip(figure.subplots(1, 2), (TEXT, OTHER_END), strict=True):
        read = reader.read(text)
        weights = read.matrices[LAYER][0, HEAD]
        it, animal = read.tokens.index("it"), read.tokens.index("animal")
        title = f"… because it was too {read.tokens[-2]}: it → animal {weights[it, animal]:.0%}"
        picture = head_picture(weights, read.tokens, title=title, axes=axes)
        picture.add_patch(
            Rectangle((-0.5, it - 0.5), len(read.tokens), 1, fill=False, ec="#B3430B", lw=2)
        )
    save_png(picture, FOLDER / "head.png")
    example = runpy.run_path(str(FOLDER.parents[1] / "examples" / "card.py"))
    card = example["card"](seen, list(reading.tokens), "it", "animal")
    card.savefig(FOLDER / "card.png", metadata={"Software": None})
    save(seen.plot(heads=range(6))[0, 0], "layers", 80)
    save(seen.plot("entropy"), "entropy", 90)
    save(seen[5].plot("received", head=11, tokens=reading.tokens), "received", 90)

    torch.manual_seed(123)
    rung = ladder.MaskedAttention(3, head_dim=2, value_head_dim=2, mask=ch.causal())
    trace = ch.trace(rung, ladder.EXAMPLE_EMBEDDINGS, tokens=ladder.EXAMPLE_TOKENS)
    save(trace.plot(["query", "key", "masked_scores", "weights"])[0], "stages", 80)
    save((ch.causal() & ch.sliding_window(left=4_000)).plot(20_000, 20_000), "mask", 80)
    with tempfile.TemporaryDirectory() as folder:
        touched(Path(folder))
        pages(Path(folder), reader)


if __name__ == "__main__":
    main()
