"""`clearhead serve`."""

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clearhead.cli.progress import Progress, busy, has_terminal, progress_bars, say
from clearhead.errors import ArgumentError


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
    """Serve a saved run as a page.

    The page zooms to exact weights, which are computed from query and key when it asks for them. The
    server listens on this machine only, and answers only requests with the whole address, which is
    printed. Ctrl-C stops it.
    """
    import clearhead as ch

    with busy("reading"):
        seen = ch.load(run)
        listed = None if tokens is None else _read_tokens(tokens)
        from clearhead.drawing.live.server import serve_seen
    layers = [int(each) if re.fullmatch("-?[0-9]{1,9}", each) else each for each in layer or []]
    with progress_bars() as progress:
        server = serve_seen(
            seen,
            run.name,
            tokens=listed,
            layers=layers or None,
            port=port,
            progress=_announced(run.name, progress),
        )
    with server, _until_stopped() as wait:
        console = Console()
        say(console, f"{run.name} is at")
        say(console, server.address)
        say(console, "Anybody with this address can see it, from this machine. Ctrl-C stops.")
        sys.stdout.flush()
        if browser or (browser is None and console.is_terminal):
            import webbrowser

            webbrowser.open(server.address)
        wait()
    print("Stopped.")


def _announced(name: str, progress: Progress) -> Progress:
    """Progress that says what is waited for, and every tenth of it, where no bar shows it."""
    notes = Console(stderr=True)
    silent = not has_terminal(notes)
    told: dict[str, int] = {}

    def report(doing: str, done: float) -> None:
        tenths = int(10 * done)
        if silent and doing != "packing":
            if not told:
                say(notes, f"Going over {name}; its address comes when that is done.")
            elif tenths > told.get(doing, 0):
                say(notes, f"{doing}: {10 * tenths} %")
            told[doing] = max(tenths, told.get(doing, 0))
        progress(doing, done)

    return report


@contextmanager
def _until_stopped() -> Iterator[Callable[[], None]]:
    """Yield a function that waits for SIGINT or SIGTERM; in the block neither raises an error."""
    # The signal itself writes into a socket, whichever thread it comes to: a lock that the main thread waits for
    # is not interrupted by a signal to another one.
    mine, other = socket.socketpair()
    stops = (signal.SIGINT, signal.SIGTERM)

    def wait() -> None:
        while mine.recv(1)[0] not in stops:
            pass

    with mine, other:
        other.setblocking(False)
        before = signal.set_wakeup_fd(other.fileno(), warn_on_full_buffer=False)
        known = {number: signal.signal(number, lambda *_: None) for number in stops}
        try:
            yield wait
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in known.items():
                signal.signal(number, handler)


def _read_tokens(file: Path) -> list[str]:
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
