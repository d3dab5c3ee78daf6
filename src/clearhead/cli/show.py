"""`clearhead show`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console

from clearhead._text import count, format_bytes
from clearhead.cli.loading import load_model
from clearhead.cli.progress import busy, progress_bars, say
from clearhead.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clearhead.drawing.page.runs import Layer
    from clearhead.integrations.image_models import ImageModel, ImageReading
    from clearhead.integrations.text_models import LongReading, TextModel, TextReading
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
            help="A picture instead of a text, for a model that reads them; without --model dinov2.",
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

    It reads a text, or with --image a picture. Without --layer it shows every head of every layer,
    the strongest links, and one head as a heat map over the tokens. Of a text of more than 1024
    tokens it shows numbers, a pooled map and the tokens that receive most, in memory that grows with
    the tokens; of a book, ask for one --layer.
    """
    sentence = (
        _read_text(text, file) if image is None else _no_text(text, file, find, why, writes or None)
    )
    if head is not None and layer is None:
        raise ArgumentError("show.head", f"--head {head} needs --layer as well.")
    wanted = None if find is None else _read_find(find, layer)
    explained = None if why is None else _read_why(why, find, layer, head)
    if png is not None:
        from clearhead.drawing.figures.png_files import check_place

        png = check_place(png)
    for written in filter(None, (html, save)):
        from clearhead._common.writing import check_writable

        check_writable(written)
    asked = ShowRequest(
        Console(), sentence, layer, head, wanted, explained, writes, png, html, save, image
    )
    if image is not None:
        pictures = load_model(model or "dinov2", "pictures")
        _write_files(asked, _show_image(asked, pictures), "photo")
        return
    from clearhead.drawing.page.located import LONG

    reader: TextModel = load_model(model, "text", logits=writes)
    tokens = reader.count(sentence)
    long = tokens > LONG
    # A page has those of every token of the text, one of the terminal alone.
    most = LONG if html is None else WRITES
    if writes and tokens > most:
        where = "" if html is None else " with --html"
        raise ArgumentError(
            "show.writes",
            f"--writes{where} needs a text of {most} tokens at most; this has {tokens}.",
        )
    if long and wanted is not None:
        raise ArgumentError("show.find", f"--find needs a text of {LONG} tokens at most.")
    if long and explained is not None:
        raise ArgumentError("show.why", f"--why needs a text of {LONG} tokens at most.")
    shown = _show_long(asked, reader) if long else _show_short(asked, reader)
    _write_files(asked, shown, "map" if long else "head")


WRITES = 256
"""Largest number of tokens of a text for which the page shows what the heads write at each."""


@dataclass(frozen=True)
class ShowRequest:
    """The options of `show`, read and checked."""

    console: Console
    text: str
    layer: int | None
    head: int | None
    find: tuple[str, str] | None
    why: tuple[str, str] | None
    writes: bool
    png: Path | None
    html: Path | None
    save: Path | None
    image: Path | None


class Shown(NamedTuple):
    """The reading of a model on the screen, its layers by their paths, and the head of the map."""

    model: str
    reading: "TextReading | LongReading | ImageReading"
    layers: "Sequence[Layer]"
    layer: int
    head: int
    picture: "Callable[[], Axes]"
    pin: tuple[int | None, int | None] | None = None
    writes: "tuple[Writes, Callable[[int], str]] | None" = None


def _show_short(asked: ShowRequest, reader: "TextModel") -> Shown:
    with busy("reading"):
        reading = reader.read(asked.text)
    from clearhead.drawing.terminal.screens import Screens

    screens = Screens(asked.console, reading)
    screens.check(asked.layer, asked.head)
    screens.title(reader.name, encoder_only=reader.encoder_only)
    pin: tuple[int | None, int | None] | None = None
    asks = asked.find or asked.why
    if asks is not None:
        pin = _places("--find" if asked.find else "--why", asks, reading.tokens)
    if pin is not None and asked.layer is None:
        layer, head = screens.find(*pin)
    else:
        layer, head, link = screens.show(asked.layer, asked.head)
        pin = pin if link is None else (link.query, link.key)
    if asked.why is not None and pin is not None:
        query, key = pin
        assert query is not None
        assert key is not None
        screens.why(layer, head, query, key)
    written = None
    if asked.writes:
        query = len(reading.tokens) - 1 if pin is None or pin[0] is None else pin[0]
        pin = (query, None if pin is None else pin[1])
        with busy("reading what heads write"):
            found = reader.writes(asked.text, query=query if asked.html is None else None)
        screens.writes(layer, head, query, found, reader.word)
        written = found, reader.word
    layers = _layers(asked, reading)
    return Shown(
        reader.name,
        reading,
        layers,
        layer,
        head,
        lambda: screens.picture(layer, head),
        pin,
        written,
    )


def _show_long(asked: ShowRequest, reader: "TextModel") -> Shown:
    """Show numbers, maps and the tokens that stand out, without a matrix of weights."""
    from clearhead.drawing.page.head_arrays import LINKS, MAPS
    from clearhead.drawing.page.runs import Layer
    from clearhead.drawing.terminal.long import PICTURE_CELLS, TERMINAL_CELLS, LongScreens, coarser

    cells = TERMINAL_CELLS if asked.png is None else PICTURE_CELLS
    pool, links = (cells, None) if asked.html is None else (MAPS[0], LINKS)
    with progress_bars() as progress:
        reading = reader.read_long(
            asked.text,
            layer=asked.layer,
            head=asked.head,
            pool=pool,
            top_k=links,
            progress=progress,
        )
    screens = LongScreens(asked.console, coarser(reading, cells))
    screens.title(reader.name, encoder_only=reader.encoder_only)
    layer = screens.model() if asked.layer is None else asked.layer
    head = screens.layer(layer, asked.head)
    only = asked.head is not None
    heads = (head,) if only else None
    layers = [
        Layer(reading.layers[number], replace(each, heads=heads), number)
        for number, each in reading.summaries.items()
    ]

    def picture() -> "Axes":
        return screens.picture(layer, head, only=only)

    return Shown(reader.name, reading, layers, layer, head, picture)


def _show_image(asked: ShowRequest, reader: "ImageModel") -> Shown:
    """Show where heads look in a picture."""
    assert asked.image is not None
    with busy("reading"):
        reading = reader.read(asked.image)
    from clearhead.drawing.terminal.image_screens import ImageScreens

    screens = ImageScreens(asked.console, reading)
    screens.check(asked.layer, asked.head)
    screens.title(reader.name, encoder_only=reader.part)
    layer, head, _ = screens.show(asked.layer, asked.head)
    pin = (0, None) if reading.skip else None

    def picture() -> "Axes":
        return screens.picture(layer, head)

    return Shown(reader.name, reading, _layers(asked, reading), layer, head, picture, pin)


def _layers(asked: ShowRequest, reading: "TextReading | ImageReading") -> "list[Layer]":
    from clearhead.drawing.page.runs import Layer

    return [
        Layer(name, matrix, number)
        for number, (name, matrix) in enumerate(zip(reading.layers, reading.matrices, strict=True))
        if asked.layer in (None, number)
    ]


def _write_files(asked: ShowRequest, shown: Shown, kind: str) -> None:
    """Write the files that were asked for, and say where they are; or suggest some."""
    console, layer, head = asked.console, shown.layer, shown.head
    console.print()
    if asked.html is not None:
        with busy("writing the page"):
            file, note = _write_page(asked.html, asked, shown)
        say(console, f"The page is in {file}, {note}")
    if asked.save is not None:
        saved = str(shown.reading.seen.save(asked.save, tokens=shown.reading.tokens))
        say(console, f"Queries and keys are in {saved}; ch.load reads them")
    if asked.png is not None:
        with busy("drawing"):
            from clearhead.drawing.figures.png_files import save_png

            file = save_png(shown.picture(), asked.png)
        name = "map" if kind == "map" else "picture"
        say(console, f"The {name} of layer {layer}, head {head} is in {file}")
    elif asked.html is None:
        closer = ""
        if asked.find is not None:
            closer = f"--layer {layer} --head {head} instead of --find, "
        elif asked.why is not None:
            closer = ""
        elif asked.layer is None:
            closer = f"--layer {layer}, --layer {layer} --head {head}, "
        elif asked.head is None:
            closer = f"--head {head}, "
        console.print(
            f"[bold]Next:[/] add {closer}--png {kind}.png, or --html page.html.", highlight=False
        )


def _write_page(html: Path, asked: ShowRequest, shown: Shown) -> tuple[Path, str]:
    """Write the page; returns where it is, and its size in words."""
    from clearhead.drawing.page.head_page import write_heads
    from clearhead.drawing.page.page import MOST_OF_TITLE

    text = asked.text if asked.image is None else asked.image.name
    words, tokens = " ".join(text.split()), shown.reading.tokens
    counted = count(len(shown.layers), "layer")
    media: dict[str, Any] = {}
    if asked.image is not None:
        reading = cast("ImageReading", shown.reading)
        media = {"image": reading.pixels, "grid": reading.grid, "skip": reading.skip}
    file = write_heads(
        html,
        [shown.layers],
        tokens=None if media else tokens,
        title=words if len(words) <= MOST_OF_TITLE else f"{words[: MOST_OF_TITLE - 2]} …",
        start=(shown.layer, shown.head)
        if asked.why is None
        else f"head={shown.layer}.{shown.head}&why=1",
        pin=shown.pin,
        why=asked.why is not None,
        writes=None if shown.writes is None else shown.writes[0],
        words=None if shown.writes is None else shown.writes[1],
        note=f"{shown.model} · {counted} · {count(len(tokens), 'token')}",
        **media,
    )
    return file, format_bytes(file.stat().st_size)


def _read_pair(option: str, pair: str, wanted: Callable[[list[str]], bool]) -> tuple[str, str]:
    parts = [part.strip() for part in pair.split(",")]
    if len(parts) != 2 or not wanted(parts):
        raise ArgumentError(
            "show.pair",
            f"--{option} needs a query and a key with a comma, such as it,animal; got {pair}.",
        )
    return parts[0], parts[1]


def _read_find(find: str, layer: int | None) -> tuple[str, str]:
    if layer is not None:
        raise ArgumentError("show.find", "--find asks the heads of all layers; leave --layer out.")
    return _read_pair("find", find, any)


def _read_why(why: str, find: str | None, layer: int | None, head: int | None) -> tuple[str, str]:
    if find is not None or (layer is not None and head is None):
        what = "leave --find out" if find is not None else "with --layer give --head as well"
        raise ArgumentError("show.why", f"--why explains the weight of one head; {what}.")
    return _read_pair("why", why, all)


def _places(
    option: str, find: tuple[str, str], tokens: "Sequence[str]"
) -> tuple[int | None, int | None]:
    """The places of the tokens that were asked for; None for either is none."""
    from clearhead.watching.finding import place_of_token

    query, key = (place_of_token(option, each or None, tokens) for each in find)
    return query, key


def _read_text(text: str | None, file: Path | None) -> str:
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


def _no_text(text: str | None, file: Path | None, *others: object) -> str:
    """Refuse, next to a picture, what is asked of a text."""
    if any(each is not None for each in (text, file, *others)):
        raise ArgumentError(
            "show.image",
            "--image is shown alone; leave the text, --file, --find, --why and --writes out.",
        )
    return ""
