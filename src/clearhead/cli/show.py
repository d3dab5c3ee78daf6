"""`clearhead show`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from clearhead._common.writing import check_writable
from clearhead._text import count, format_bytes
from clearhead.cli.loading import load_model
from clearhead.cli.progress import busy, progress_bars, say
from clearhead.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

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
    why: Annotated[
        str | None,
        typer.Option(
            help="How the weight between these tokens comes about, in the head, or that with the largest.",
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
    if image is not None and (writes or (not both and (find or why))):
        raise ArgumentError(
            "show.image",
            "--image goes with a text alone, or with a text, --find and --why; leave --writes out, and without a "
            "text also --find and --why.",
        )
    sentence = _read_text(text, file) if image is None or both else ""
    if head is not None and layer is None:
        raise ArgumentError("show.head", f"--head {head} needs --layer as well.")
    pair = _asked_pair(find, why, layer, head)
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
        shown = _show_short(console, reading, name, layer, head, pair, why=why is not None)
    else:
        reader = load_model(model, "text", logits=writes)
        tokens = reader.count(sentence)
        name = reader.name, "its encoder only" if reader.encoder_only else ""
        # A page has what heads write at every token, the terminal at one.
        limits = {"find": (find is not None, LONG), "why": (why is not None, LONG)}
        limits["writes"] = (writes, LONG if html is None else WRITES)
        for option, (given, most) in limits.items():
            if given and tokens > most:
                with_page = " with --html" if option == "writes" and html is not None else ""
                raise ArgumentError(
                    f"show.{option}",
                    f"--{option}{with_page} needs a text of {most} tokens at most; this has {tokens}.",
                )
        if tokens > LONG:
            shown = _show_long(
                console, reader, sentence, name, layer, head, with_page=html is not None
            )
        else:
            with busy("reading"):
                reading = reader.read(sentence)
            shown = _show_short(console, reading, name, layer, head, pair, why=why is not None)
            if writes:
                shown = _show_writes(
                    console, reader, reading, sentence, shown, every=html is not None
                )
    console.print()
    if html is not None:
        with busy("writing the page"):
            page = _write_page(html, shown, image or sentence, why=why is not None)
        say(console, f"The page is in {page}, {format_bytes(page.stat().st_size)}")
    if save is not None:
        saved = shown.reading.seen.save(save, tokens=shown.reading.tokens)
        say(console, f"Queries and keys are in {saved}; ch.load reads them")
    if png is not None:
        with busy("drawing"):
            from clearhead.drawing.figures.head_map import head_picture, save_png

            title = f"layer {shown.layer}, head {shown.head}"
            weights, visible = shown.weights()
            axes = head_picture(weights, shown.reading.tokens, title=title, visible=visible)
            drawn = save_png(axes, png)
        say(console, f"The picture of {title} is in {drawn}")
    elif html is None:
        both = f"--layer {shown.layer} --head {shown.head}"
        closer = f"--layer {shown.layer}, {both}, " if layer is None else f"--head {shown.head}, "
        if pair is not None or head is not None:
            closer = f"{both} instead of --find, " if find is not None else ""
        # The demo installs no matplotlib.
        closer += "--png head.png, or " if find_spec("matplotlib") else "or " * bool(closer)
        console.print(f"[bold]Next:[/] add {closer}--html page.html.", highlight=False)


WRITES = 256
"""Most tokens of a text for which a page lists what the heads write at each token."""


class Shown(NamedTuple):
    """The reading of a model on the screen, its layers, and the head that was shown last."""

    model: str
    reading: "Reading | LongReading"
    layers: "Sequence[Layer]"
    layer: int
    head: int
    weights: "Callable[[], tuple[Tensor, Tensor | None]]"
    pin: tuple[int | None, int | None] | None = None
    writes: "tuple[Writes, Callable[[int], str]] | tuple[None, None]" = (None, None)


def _show_short(
    console: Console,
    reading: "Reading",
    name: tuple[str, str],
    layer: int | None,
    head: int | None,
    asked: tuple[str, str] | None = None,
    *,
    why: bool = False,
) -> Shown:
    """Print a model's name and part, then a layer or a head; without a layer all heads, or those by `asked`.

    `asked` are query and key, "" for any; with a layer they only say which weight `why` explains. Returns what was
    shown. Raises SelectionError for no such layer, head or token.
    """
    from clearhead.drawing.page.runs import LONG, Layer, layers_of
    from clearhead.drawing.terminal.screens import Screens
    from clearhead.watching.finding import place_of_token

    screens = Screens(console, reading)
    screens.check(layer, head)
    screens.title(*name)
    pin: tuple[int | None, int | None] | None = None
    if asked is not None:
        option = "--why" if why else "--find"
        query, key = (place_of_token(option, each or None, reading.tokens) for each in asked)
        pin = query, key
    if pin is not None and layer is None:
        place, number = screens.find(*pin)
    else:
        place, number, link = screens.show(layer, head)
        pin = pin if link is None else (link.query, link.key)
    if why and pin is not None and pin[0] is not None and pin[1] is not None:
        screens.why(place, number, pin[0], pin[1])
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
    weights = partial(screens.weights, place, number)
    return Shown(name[0], reading, layers, place, number, weights, pin)


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

    def weights() -> "tuple[Tensor, None]":
        """Return the pooled map of the shown head, and None: it has no visible pairs."""
        return screens.shares(place, number if head is None else 0), None

    return Shown(name[0], reading, layers, place, number, weights)


def _write_page(html: Path, shown: Shown, source: Path | str, *, why: bool) -> Path:
    """Write the page of what was shown of a text, or of the picture in a file, and return its path.

    With `why` it has the queries and keys, and opens with how the weight comes about.
    """
    from clearhead.drawing.page.head_page import write_heads
    from clearhead.drawing.page.page import MOST_OF_TITLE

    media: dict[str, Any] = shown.reading.page or {"tokens": shown.reading.tokens}
    title = source.name if isinstance(source, Path) else " ".join(source.split())
    return write_heads(
        html,
        [shown.layers],
        title=title if len(title) <= MOST_OF_TITLE else f"{title[: MOST_OF_TITLE - 2]} …",
        start=f"head={shown.layer}.{shown.head}&why=1" if why else (shown.layer, shown.head),
        pin=shown.pin,
        why=why,
        writes=shown.writes,
        note=f"{shown.model} · {count(len(shown.layers), 'layer')} · {count(len(shown.reading.tokens), 'token')}",
        **media,
    )


def _asked_pair(
    find: str | None, why: str | None, layer: int | None, head: int | None
) -> tuple[str, str] | None:
    """Return the query and key that --find or --why names; one is "" if --find leaves it out. None without either.

    Raises ArgumentError: `show.find` for --find with a layer, `show.why` for --why with --find or with a layer and no
    head, and `show.pair` for a text that is no pair.
    """
    if find is not None and layer is not None:
        raise ArgumentError("show.find", "--find asks the heads of all layers; leave --layer out.")
    if why is not None and (find is not None or (layer is not None and head is None)):
        what = "leave --find out" if find is not None else "with --layer give --head as well"
        raise ArgumentError("show.why", f"--why explains the weight of one head; {what}.")
    pair = find if why is None else why
    if pair is None:
        return None
    parts = [part.strip() for part in pair.split(",")]
    if len(parts) != 2 or not any(parts) or (why is not None and not all(parts)):
        option = "find" if why is None else "why"
        raise ArgumentError(
            "show.pair",
            f"--{option} needs a query and a key with a comma, such as it,animal; got {pair}.",
        )
    return parts[0], parts[1]


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
