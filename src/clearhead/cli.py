"""The command line: `clearhead show`, `trace`, `check`, `serve` and `kernels`.

PyTorch, transformers and matplotlib take seconds to import, so each command imports what it needs.
"""

import json
import os
import shlex
import signal
import sys
import threading
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clearhead._common.text import format_bytes, readable
from clearhead.errors import ArgumentError, ClearheadError, missing_extra

try:
    import typer
    from rich.console import Console
    from rich.text import Text
    from typer.core import TyperGroup
except ModuleNotFoundError as error:
    if error.name not in ("rich", "typer"):
        raise
    raise missing_extra(error.name, "cli", "the command line") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clearhead.integrations.huggingface import TextModel
    from clearhead.matrix.matrix import AttentionMatrix
    from clearhead.matrix.summary import Summary
    from clearhead.watching.seen import Seen


class Commands(TyperGroup):
    """The commands, with errors as a person wants to read them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ClearheadError as error:
            print(f"clearhead: {readable(str(error))}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    name="clearhead",
    cls=Commands,
    help="Attention you can see through.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Init(StrEnum):
    normal = "normal"
    uniform = "uniform"


def run() -> int:
    """Run the command that the arguments name; returns the exit code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  whoever closed it wants none
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets another one, not a crash.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        app(prog_name="clearhead")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except OSError as error:  # files have errors of their own, so that this is of the output
        code = _not_written(error)
    else:
        code = 0
    try:
        sys.stdout.flush()
    except OSError as error:
        code = max(code, _not_written(error))
    return code


def _not_written(error: OSError) -> int:
    """Say why there is no more output, and let go of what is left; returns the exit code."""
    # Python would complain at exit of what is left.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0  # whoever read this has had enough
    print(f"clearhead: the output could not be written: {error.strerror}", file=sys.stderr)
    return 1


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"clearhead {version('clearhead')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def show(
    text: Annotated[str | None, typer.Argument(help="A sentence, or more.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head of the layer.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, or a name on the Hugging Face Hub; without it the packaged MiniLM.",
            metavar="NAME_OR_PATH",
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw the head into this file as well.", metavar="FILE")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help='Read the text from here; "-" is the standard input.')
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to look around in, which opens offline.", metavar="FILE"),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep what was seen in this file, for clearhead serve.", metavar="FILE"),
    ] = None,
) -> None:
    """Show what a trained model attends to in a text.

    Without --layer it shows every head of every layer, the strongest links, and one head as a heat
    map over the tokens. Of a text of more than 1024 tokens it shows numbers, a pooled map and the
    tokens that receive most, in memory that grows with the tokens; of a book, ask for one --layer.
    """
    console = Console()
    sentence = _text(text, file)
    if head is not None and layer is None:
        raise ArgumentError("show.head", f"--head {head} needs --layer as well.")
    if png is not None:
        from clearhead.drawing.figures.png_files import check_place

        png = check_place(png)
    for written in filter(None, (html, save)):
        from clearhead.watching.files import check_writable

        check_writable(written)
    reader = _load(model)
    from clearhead.drawing.page.head_page import LONG

    if reader.count(sentence) > LONG:
        _show_long(console, reader, sentence, layer, head, png, html, save)
        return
    with _busy("reading"):
        reading = reader.read(sentence)
    from clearhead.drawing.terminal.screens import Screens

    screens = Screens(console, reading)
    screens.check(layer, head)
    screens.title(reader.name, encoder_only=reader.encoder_only)
    if layer is None:
        layer, head = screens.model()
        more = f"--layer {layer}, --layer {layer} --head 0, "
    elif head is None:
        head = screens.layer(layer)
        more = f"--head {head}, "
    else:
        screens.head(layer, head)
        more = ""
    console.print()
    if html is not None:
        shown = list(zip(reading.layers, reading.matrices, strict=True))
        with _busy("writing the page"):
            _write_page(console, html, reader, shown, reading.tokens, sentence)
    if save is not None:
        _save(console, reading.seen, reading.tokens, save)
    if png is None:
        if html is None:
            console.print(
                f"[bold]Next:[/] add {more}--png head.png, or --html page.html.", highlight=False
            )
        return
    with _busy("drawing"):
        from clearhead.drawing.figures.png_files import save_png

        file = save_png(screens.picture(layer, head), png)
    console.print(
        Text(f"The picture of layer {layer}, head {head} is in {readable(str(file))}"),
        soft_wrap=True,
    )


@app.command()
def trace(
    text: Annotated[
        str | None, typer.Option(help="A sentence; its words get random vectors of width 3.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of everything that is random.", min=0, max=2**63 - 1)
    ] = 123,
    d_qk: Annotated[int, typer.Option(help="Width of a query and of a key.")] = 2,
    d_v: Annotated[int, typer.Option(help="Width of a value.")] = 2,
    causal: Annotated[bool, typer.Option("--causal", help="No token sees a later one.")] = False,
    init: Annotated[
        Init | None,
        typer.Option(help="How the matrices are drawn; uniform with --text, else normal."),
    ] = None,
    query: Annotated[
        int | None,
        typer.Option(help="The token whose arithmetic is written out, from 0; else the second."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to step through into this file as well.", metavar="FILE"),
    ] = None,
) -> None:
    """Trace self-attention of a sentence: every stage, with its numbers.

    Without --text it is the sentence "Your journey starts with one step", whose words have vectors
    of width 3. Query, key and value are made with three matrices of random numbers.
    """
    import torch

    import clearhead as ch
    from clearhead import ladder

    if html is not None:
        from clearhead.watching.files import check_writable

        check_writable(html)
    if text is None:
        tokens, embeddings = ladder.EXAMPLE_TOKENS, ladder.EXAMPLE_EMBEDDINGS
    else:
        embedded = ladder.embed_words(text, seed=seed)
        tokens, embeddings = embedded.words, embedded.embeddings
    if init is None:
        init = Init.normal if text is None else Init.uniform
    torch.manual_seed(seed)
    rung = ladder.SelfAttention(
        embeddings.shape[1], head_dim=d_qk, value_head_dim=d_v, init=init.value
    )
    if causal:
        rung = ladder.MaskedAttention(
            embeddings.shape[1], head_dim=d_qk, value_head_dim=d_v, mask=ch.causal()
        ).with_weights(rung.query_weight, rung.key_weight, rung.value_weight)
    steps = ch.trace(rung, embeddings, tokens=tokens)
    from clearhead.drawing.terminal.terminal import Traced

    console = Console()
    console.print(
        Traced(steps, min(1, len(tokens) - 1) if query is None else query), soft_wrap=True
    )
    if html is not None:
        file = steps.to_html(html)
        console.print(Text(f"\nThe page to step through is {readable(str(file))}"), soft_wrap=True)


@app.command()
def check(
    place: Annotated[
        str, typer.Argument(help="Where it is: file.py:Name, or package.module:Name.")
    ],
    takes: Annotated[
        str,
        typer.Option(
            help='How it is called: qkv, "qkv,mask", x, x2d, "x,mask", "x,context", decode.'
        ),
    ] = "x",
    args: Annotated[
        str, typer.Option(help="For the constructor of a class: d_in=3,d_out=2.", metavar="K=V,…")
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="Sizes that it does not tell: d_in=3,num_heads=4.", metavar="K=V,…")
    ] = "",
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="No token sees a later one.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="Tokens seen on each side: 128,0.", metavar="LEFT,RIGHT")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="How many heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="How many heads of keys and values.")] = None,
    scale: Annotated[float | None, typer.Option(help="Of the scores; else 1/√head_dim.")] = None,
    softcap: Annotated[float | None, typer.Option(help="The scores are bent below this.")] = None,
    dropout: Annotated[float | None, typer.Option(help="The probability in training.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page into this file as well.", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0)] = 0,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Measure time and memory over length as well."),
    ] = False,
    lengths: Annotated[
        str, typer.Option(help="For --profile, in tokens.", metavar="N,N,…")
    ] = "128,256,512,1024,2048",
) -> None:
    """Check somebody's own attention: the name of the mistake comes out.

    The file is run, as python would run it. The exit code is 1 if a mistake is found. With
    --profile it is also told what it costs over length, beside the fused call.
    """
    import clearhead as ch
    from clearhead.watching.files import check_writable, replacing

    declared = {
        "causal": causal,
        "window": _pair(window),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
    }
    given: dict[str, Any] = {
        "takes": takes,
        "args": _named(args, "--args") or None,
        "sizes": _named(sizes, "--sizes"),
        "seed": seed,
        **{name: value for name, value in declared.items() if value is not None},
    }
    measured = _lengths(lengths)
    if html is not None:
        check_writable(html)
    # What the file itself prints is no part of the JSON.
    printed = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with _busy("checking"), printed:
        report = ch.check(place, **given)
    found = None
    if profile:
        with _steps() as progress, printed:
            found = ch.profile(place, **given, lengths=measured, progress=progress)
    if as_json and found is not None:
        whole = json.loads(report.to_json()) | {"profile": found.as_dict()}
        print(json.dumps(whole, ensure_ascii=False, indent=2))
    elif as_json:
        print(report.to_json())
    else:
        from clearhead.drawing.terminal.checked import print_report

        print_report(Console(), report)
        if found is not None:
            print(f"\n{found}")
    if html is not None:
        from clearhead.checking.pages import page

        sections = [each._repr_html_() for each in (report, found) if each is not None]
        with replacing(html) as (name, _):
            Path(name).write_text(page(f"check: {report.name}", *sections), encoding="utf-8")
    if not report.ok:
        raise typer.Exit(1)


def _lengths(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        words = f"expected numbers of tokens, N,N,…; got {text!r}."
        raise typer.BadParameter(words, param_hint="--lengths") from error


def _named(text: str, option: str) -> dict[str, Any]:
    """Values with names: k=v,…, each a number, a string, True, False or None."""
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise typer.BadParameter(f"expected name=value; got {part!r}.", param_hint=option)
        try:
            found[name.strip()] = literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = value.strip()
    return found


def _pair(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    try:
        left, right = (
            None if side.strip() in ("", "None") else int(side) for side in text.split(",")
        )
    except ValueError as error:
        words = f"expected LEFT,RIGHT; got {text!r}."
        raise typer.BadParameter(words, param_hint="--window") from error
    return left, right


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="A file of Seen.save or of clearhead show --save.")],
    port: Annotated[
        int, typer.Option(help="Where to listen; 0 takes one that is free.", min=0, max=65535)
    ] = 0,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--no-browser", help="Open it in a browser; the default on a terminal."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="A list of strings as JSON, one for each token, where the run has none.",
            metavar="FILE",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this layer, counted from 0, or by name; may be given several times. "
            "Of a long run the others need not be gone over.",
            metavar="LAYER",
        ),
    ] = None,
) -> None:
    """Serve what was seen as a page, live: zooming computes exact weights from query and key.

    It listens on this machine only, and answers nobody who does not have the whole address, which
    is printed. Ctrl-C stops it.
    """
    import clearhead as ch

    with _busy("reading"):
        seen = ch.load(run)
        listed = None if tokens is None else _tokens(tokens)
        from clearhead.drawing.live.server import serve_seen
    layers = [int(each) if each.lstrip("-").isdecimal() else each for each in layer or []]
    with _steps() as progress:
        server = serve_seen(
            seen, run.name, tokens=listed, layers=layers or None, port=port, progress=progress
        )
    with server, _until_stopped() as wait:
        console = Console()
        console.print(Text(f"{readable(run.name)} is at"))
        console.print(Text(server.address), soft_wrap=True)
        console.print(Text("Whoever has this address can see it, from this machine. Ctrl-C stops."))
        sys.stdout.flush()
        if browser or (browser is None and console.is_terminal):
            import webbrowser

            webbrowser.open(server.address)
        wait()
    print("Stopped.")


@contextmanager
def _until_stopped() -> "Iterator[Callable[[], object]]":
    """What waits for Ctrl-C or the signal to end, of which neither is an error meanwhile."""
    stop = threading.Event()
    known = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop.wait
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)


def _tokens(file: Path) -> list[str]:
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"it is no JSON: {error}"
        raise ArgumentError("serve.tokens", f"{file} could not be read: {reason}.") from error
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ArgumentError(
            "serve.tokens", f"{file} must hold a list of strings, one for each token, as JSON."
        )
    return listed


def _save(console: "Console", seen: "Seen[Any]", tokens: tuple[str, ...], file: Path) -> None:
    saved = str(seen.save(file, tokens=tokens))
    words = f"What was seen is in {saved}: clearhead serve {shlex.quote(saved)}"
    console.print(Text(readable(words)), soft_wrap=True)


@app.command()
def kernels() -> None:
    """Show what can run attention on this machine, and why the rest cannot."""
    from clearhead.drawing.terminal.machine import print_machine

    print_machine(Console())


def _text(text: str | None, file: Path | None) -> str:
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


def _load(model: str | None) -> "TextModel":
    # While something is downloaded, the bars of the hub say more than we could.
    downloads = model is not None and not Path(model).expanduser().exists()
    with nullcontext() if downloads else _busy("loading the model"):
        from clearhead.integrations import huggingface

        return huggingface.load(model, progress=downloads and sys.stderr.isatty())


def _show_long(
    console: Console,
    reader: "TextModel",
    text: str,
    layer: int | None,
    head: int | None,
    png: Path | None,
    html: Path | None,
    save: Path | None,
) -> None:
    """What a text of many tokens is shown as: numbers, maps and tokens that stand out."""
    from clearhead.drawing.terminal.long import PICTURE_CELLS, TERMINAL_CELLS, LongScreens, coarser

    with _steps() as progress:
        pool = TERMINAL_CELLS if png is None else PICTURE_CELLS
        links = None
        if html is not None:
            from clearhead.drawing.page.head_arrays import LINKS, MAPS

            pool, links = MAPS[0], LINKS
        reading = reader.read_long(
            text, layer=layer, head=head, pool=pool, top_k=links, progress=progress
        )
    if html is not None:
        shown = [(reading.layers[number], each) for number, each in reading.summaries.items()]
        with _busy("writing the page"):
            _write_page(console, html, reader, shown, reading.tokens, text)
        reading = coarser(reading, TERMINAL_CELLS if png is None else PICTURE_CELLS)
    screens = LongScreens(console, reading)
    screens.title(reader.name, encoder_only=reader.encoder_only)
    only = head is not None
    if layer is None:
        layer = screens.model()
    shown = screens.layer(layer, head)
    console.print()
    if save is not None:
        _save(console, reading.seen, reading.tokens, save)
    if png is None:
        if html is None:
            more = "" if only else f"--layer {layer}, --layer {layer} --head {shown}, "
            console.print(
                f"[bold]Next:[/] add {more}--png map.png, or --html page.html.", highlight=False
            )
        return
    from clearhead.drawing.figures.png_files import save_png

    file = save_png(screens.picture(layer, shown, only=only), png)
    console.print(
        Text(f"The map of layer {layer}, head {shown} is in {readable(str(file))}"),
        soft_wrap=True,
    )


def _write_page(
    console: Console,
    html: Path,
    reader: "TextModel",
    layers: "Sequence[tuple[str, AttentionMatrix | Summary]]",
    tokens: "Sequence[str]",
    text: str,
) -> None:
    """Write the page, and say where it is."""
    from clearhead.drawing.page.head_page import write_heads
    from clearhead.drawing.page.page import MOST_OF_TITLE

    words = " ".join(text.split())
    counted = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    file = write_heads(
        html,
        [layers],
        tokens=tokens,
        title=words if len(words) <= MOST_OF_TITLE else f"{words[: MOST_OF_TITLE - 2]} …",
        note=f"{reader.name} · {counted} · {len(tokens):,} tokens",
    )
    size = format_bytes(file.stat().st_size)
    console.print(Text(f"The page is in {readable(str(file))}, {size}"), soft_wrap=True)


@contextmanager
def _steps() -> "Iterator[Callable[[str, float], None]]":
    """A bar for each thing that takes long, on a terminal only."""
    notes = Console(stderr=True)
    if not notes.is_terminal:
        yield lambda doing, done: None
        return
    from rich.progress import Progress

    with Progress(console=notes, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def step(doing: str, done: float) -> None:
            if doing not in tasks:
                tasks[doing] = bars.add_task(doing, total=1.0)
            bars.update(tasks[doing], completed=done)

        yield step


@contextmanager
def _busy(words: str) -> Iterator[None]:
    """Say what is going on, on a terminal only, as long as it goes on."""
    notes = Console(stderr=True)
    if not notes.is_terminal:
        yield
        return
    with notes.status(words):
        yield
