"""`clearhead show`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from clearhead._common.writing import check_writable, replacing
from clearhead._text import count, format_bytes
from clearhead.cli.loading import load_model
from clearhead.cli.progress import busy, progress_bars, say
from clearhead.errors import ArgumentError

if TYPE_CHECKING:
    from clearhead.drawing.page.runs import Layer
    from clearhead.integrations.text_models import LongReading, Reading, TextModel
    from clearhead.reading.written_tokens import Writes


def show(
    text: Annotated[str | None, typer.Argument(help="A sentence, or more.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head of the layer.")] = None,
    find: Annotated[
        str | None,
        typer.Option(
            help="Which heads look from the first of these tokens to the second; either may be empty.",
            metavar="QUERY,KEY",
        ),
    ] = None,
    writes: Annotated[
        bool,
        typer.Option("--writes", help="Also which tokens the head raises and lowers by itself."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, a sample such as smollm2, or a name on the Hugging Face Hub.",
            show_default="minilm",
            metavar="NAME_OR_PATH",
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw the head into this file as well.", metavar="FILE")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help='Read the text from here; "-" is the standard input.')
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            help="A picture for a model that reads them, dinov2 without --model; with a text, for a model that reads "
            "pictures in texts.",
            metavar="FILE",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to look around in, which opens offline.", metavar="FILE"),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save queries and keys in this file, for ch.load.", metavar="FILE"),
    ] = None,
) -> None:
    """Show what a trained model attends to.

    It reads a text, a picture, or both. Without --layer it shows every head of every layer,
    the strongest links, and one head as a heat map over the tokens. Of a text of more than 1024
    tokens it shows numbers, a pooled map and the tokens that receive most, in memory that grows with
    the tokens; of a book, ask for one --layer.
    """
    both = image is not None and (text is not None or file is not None)
    if image is not None and (writes or (not both and find)):
        raise ArgumentError(
            "show.image",
            "--image goes with a text alone, or with a text and --find; leave --writes out, and without a text also "
            "--find.",
        )
    sentence = _read_text(text, file) if image is None or both else ""
    if head is not None and layer is None:
        raise ArgumentError("show.head", f"--head {head} needs --layer as well.")
    pair = None if find is None else _asked_pair(find, layer)
    for written in filter(None, (png, html, save)):
        check_writable(written)
    if png is not None:
        import clearhead.drawing.figures  # noqa: F401 — says at once what is to be installed
    from clearhead.drawing.page.runs import LONG

    console = Console()
    if image is not None:
        reader = load_model(model or "dinov2", "pictures", text=both)
        with busy("reading"):
            reading = reader.read(image, sentence) if both else reader.read(image)
        if len(reading.tokens) > LONG:
            raise ArgumentError(
                "show.tokens",
                f"--image needs at most {LONG} tokens of text and patches; this has {len(reading.tokens)}. In Python, "
                "ch.watch and to_html show more.",
            )
        name = reader.name, "its part for pictures only" if not both and reader.part else ""
        shown = _show_short(console, reading, name, layer, head, pair)
    else:
        reader = load_model(model, "text", logits=writes)
        tokens = reader.count(sentence)
        name = reader.name, "its encoder only" if reader.encoder_only else ""
        # A page has what heads write at every token, the terminal at one.
        limits = {"--find": (find is not None, LONG), "--writes": (writes, LONG)}
        limits["--writes with --html"] = (writes and html is not None, WRITES)
        for option, (given, most) in limits.items():
            if given and tokens > most:
                raise ArgumentError(
                    "show.tokens",
                    f"{option} needs a text of {most} tokens at most; this has {tokens}.",
                )
        if tokens > LONG:
            with_page = html is not None
            shown = _show_long(console, reader, sentence, name, layer, head, with_page=with_page)
        else:
            with busy("reading"):
                reading = reader.read(sentence)
            shown = _show_short(console, reading, name, layer, head, pair)
            if writes:
                every = html is not None
                shown = _show_writes(console, reader, reading, sentence, shown, every=every)
    console.print()
    if html is not None:
        with busy("writing the page"):
            page = _write_page(html, shown, image or sentence)
        say(console, f"The page is in {page}, {format_bytes(page.stat().st_size)}")
    if save is not None:
        saved = shown.reading.seen.save(save, tokens=shown.reading.tokens)
        say(console, f"Queries and keys are in {saved}; ch.load reads them")
    if png is not None:
        with busy("drawing"):
            drawn = _draw(png, shown)
        say(console, f"The picture of layer {shown.layer}, head {shown.head} is in {drawn}")
    elif html is None:
        chosen = f"--layer {shown.layer} --head {shown.head}"
        closer = f"--layer {shown.layer}, {chosen}, " if layer is None else f"--head {shown.head}, "
        if pair is not None or head is not None:
            closer = f"{chosen} instead of --find, " if find is not None else ""
        # The demo installs no matplotlib.
        closer += "--png head.png, or " if find_spec("matplotlib") else "or " * bool(closer)
        console.print(f"[bold]Next:[/] add {closer}--html page.html.", highlight=False)


WRITES = 256
"""Most tokens of a text for which a page lists what the heads write at each token."""

DOTS_PER_INCH = 150


class Shown(NamedTuple):
    """The reading of a model on the screen, its layers, and the head that was shown last."""

    model: str
    reading: "Reading | LongReading"
    layers: "Sequence[Layer]"
    layer: int
    head: int
    pin: tuple[int | None, int | None] | None = None
    writes: "tuple[Writes, Callable[[int], str]] | tuple[None, None]" = (None, None)


def _show_short(
    console: Console,
    reading: "Reading",
    name: tuple[str, str],
    layer: int | None,
    head: int | None,
    asked: tuple[str, str] | None = None,
) -> Shown:
    """Print a model's name and part, then a layer or a head; without a layer all heads, or those by `asked`.

    `asked` are query and key, "" for any. Returns what was shown. Raises SelectionError for a layer, head or token that
    is not there.
    """
    from clearhead.drawing.page.runs import LONG, Layer, layers_of
    from clearhead.drawing.terminal.screens import Screens
    from clearhead.watching.finding import place_of_token

    screens = Screens(console, reading)
    screens.check(layer, head)
    screens.title(*name)
    if asked is not None:
        query, key = (place_of_token("--find", each or None, reading.tokens) for each in asked)
        pin = query, key
        place, number = screens.find(*pin)
    else:
        place, number, link = screens.show(layer, head)
        pin = None if link is None else (link.query, link.key)
    layers = [
        Layer(path, matrix, at)
        for at, (path, matrix) in enumerate(zip(reading.layers, reading.matrices, strict=True))
        if layer in (None, at)
    ]
    if layer is None and "image_token" in (reading.page or {}):
        # The page has the layers of a vision tower too, numbered after those of the text; not of many tiles.
        rest = (each for each in layers_of(reading.seen) if each.name not in reading.layers)
        tower = [each for each in rest if each.weights.batch * each.weights.kv_len**2 <= LONG**2]
        layers += [each._replace(number=at) for at, each in enumerate(tower, len(layers))]
    return Shown(name[0], reading, layers, place, number, pin)


def _show_writes(
    console: Console,
    reader: "TextModel",
    reading: "Reading",
    text: str,
    shown: Shown,
    *,
    every: bool,
) -> Shown:
    """Print the tokens that the head writes at the pinned or the last query; return `shown` with them and that pin.

    With `every` they are computed at all queries. Runs the model.
    """
    from clearhead.drawing.terminal.screens import Screens

    query, key = shown.pin or (None, None)
    query = len(reading.tokens) - 1 if query is None else query
    with busy("reading what heads write"):
        found = reader.writes(text, query=None if every else query)
    Screens(console, reading).writes(shown.layer, shown.head, query, found, reader.word)
    return shown._replace(pin=(query, key), writes=(found, reader.word))


def _show_long(
    console: Console,
    reader: "TextModel",
    text: str,
    name: tuple[str, str],
    layer: int | None,
    head: int | None,
    *,
    with_page: bool,
) -> Shown:
    """Print numbers, maps and the tokens that stand out, without a matrix of weights; return what was shown.

    Raises as `TextModel.read_long`. `with_page` computes finer maps and links for a page.
    """
    from clearhead.drawing.page.head_arrays import LINKS, MAPS
    from clearhead.drawing.page.runs import Layer
    from clearhead.drawing.terminal.terminal import MAP_CELLS, LongScreens

    pool, links = (MAPS[0], LINKS) if with_page else (MAP_CELLS, None)
    with progress_bars() as progress:
        reading = reader.read_long(
            text, layer=layer, head=head, pool=pool, top_k=links, progress=progress
        )
    screens = LongScreens(console, reading)
    screens.title(*name)
    place = screens.model() if layer is None else layer
    number = screens.layer(place, head)
    heads = None if head is None else (head,)
    layers = [
        Layer(reading.layers[at], replace(summary, heads=heads), at)
        for at, summary in reading.summaries.items()
    ]
    return Shown(name[0], reading, layers, place, number)


def _draw(png: Path, shown: Shown) -> Path:
    """Draw the head that was shown last into a PNG, completely or not at all, and return its path."""
    import matplotlib

    from clearhead.drawing.figures.lettering import entitle

    matplotlib.use("agg")  # of no screen
    weights = next(each.weights for each in shown.layers if each.number == shown.layer)
    axes = weights.plot(head=shown.head, tokens=shown.reading.tokens)
    entitle(axes, f"layer {shown.layer}, head {shown.head}")
    with replacing(png) as (name, target):
        axes.figure.savefig(name, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return target


def _write_page(html: Path, shown: Shown, source: Path | str) -> Path:
    """Write the page of what was shown of a text, or of the picture in a file, and return its path."""
    from clearhead.drawing.page.head_page import write_heads
    from clearhead.drawing.page.page import MOST_OF_TITLE

    media: dict[str, Any] = shown.reading.page or {"tokens": shown.reading.tokens}
    title = source.name if isinstance(source, Path) else " ".join(source.split())
    return write_heads(
        html,
        [shown.layers],
        title=title if len(title) <= MOST_OF_TITLE else f"{title[: MOST_OF_TITLE - 2]} …",
        start=(shown.layer, shown.head),
        pin=shown.pin,
        writes=shown.writes,
        note=f"{shown.model} · {count(len(shown.layers), 'layer')} · {count(len(shown.reading.tokens), 'token')}",
        **media,
    )


def _asked_pair(find: str, layer: int | None) -> tuple[str, str]:
    """Return the query and key that --find names; "" for the one that it leaves out.

    Raises ArgumentError: `show.find` for --find with a layer, `show.pair` for a text that is no pair.
    """
    if layer is not None:
        raise ArgumentError("show.find", "--find asks the heads of all layers; leave --layer out.")
    query, comma, key = (part.strip() for part in find.partition(","))
    if not comma or "," in key or not (query or key):
        raise ArgumentError(
            "show.pair",
            f"--find needs a query and a key with a comma, such as it,animal; got {find}.",
        )
    return query, key


def _read_text(text: str | None, file: Path | None) -> str:
    """Return the text to show, from the argument, a file or standard input ("-").

    Raises BadParameter unless exactly one is given, ArgumentError, `show.file`, for a file that cannot be read.
    """
    if (text is None) == (file is None):
        raise typer.BadParameter("Give a text, or a file with --file.", param_hint="TEXT")
    if file is None:
        assert text is not None
        return text
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ArgumentError("show.file", f"{file} could not be read: {reason}.") from error
