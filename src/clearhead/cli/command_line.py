"""The commands as one program, with errors as messages and an exit code for everything."""

import codecs
import os
import sys
import unicodedata
from itertools import filterfalse
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clearhead._common.version import __version__
from clearhead._text import readable
from clearhead.cli.check import check
from clearhead.cli.explain import explain
from clearhead.cli.lesson_command import lesson
from clearhead.cli.loading import samples
from clearhead.cli.show import show
from clearhead.cli.trace_command import trace
from clearhead.errors import ClearheadError


class Commands(TyperGroup):
    """The group of the commands, which prints an error of clearhead as one message."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and return its result; exit with 1 after an error of clearhead, with 130 after Ctrl-C.

        The error is printed as one message.
        """
        try:
            return super().invoke(ctx)
        except ClearheadError as error:
            print(f"clearhead: {readable(str(error))}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


# What an ASCII terminal gets, by sets of characters that become one and the same.
SPELLED = {
    ".": "░", ":": "▒⋮", "*": "▓·★", "#": "█■●", "_": "▁␣", "o": "○∘◌", "=": "━", "-": "─−–—", "+": "├└✓",
    "x": "×✗", "|": "‖⏎␍", ">": "→↳⟩⇥", "<": "←⟨", "[": "⌊", "]": "⌋", "~": "…≈", "'": "’", "%": "◪", "0": "∅",
    "d": "∂", "u": "µ", "<=": "≤", ">=": "≥", "!=": "≠", "+-": "±", "-+": "∓", "inf": "∞", "sqrt ": "√", "sum": "Σ",
    "lambda": "λ",
}  # fmt: skip
SPELLINGS = str.maketrans({each: by for by, characters in SPELLED.items() for each in characters})


def spell(error: UnicodeError) -> tuple[str, int]:
    """Return what replaces the characters that could not be encoded, and the position after them, for `codecs`.

    Signs and shades become similar ones, letters lose their accents, and the rest is "?".
    Any other error, as of decoding, is raised again.

    Example:
        >>> "▓▓72 → é, 猫".encode("ascii", "clearhead.spell")
        b'**72 > e, ?'
        >>> "é".encode().decode("ascii", "clearhead.spell")
        Traceback (most recent call last):
        UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3 in position 0: ordinal not in range(128)
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(SPELLINGS)
    parts = filterfalse(unicodedata.combining, unicodedata.normalize("NFKD", text))
    return "".join(parts).translate(SPELLINGS).encode("ascii", "replace").decode(), error.end


codecs.register_error("clearhead.spell", spell)

app = typer.Typer(
    name="clearhead",
    cls=Commands,
    help="Attention you can see through.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (show, trace, check, explain, lesson):
    app.command()(command)
app.add_typer(samples)


def run() -> int:
    """Run the command that the arguments name, and return the exit code; an error of the system gives 1.

    Characters that the terminal cannot show are spelled. A pipe that closes while the command prints gives 1; one found
    closed only by the last flush leaves the command's own code.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  a closed output wants none
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="clearhead.spell")
    code = 0
    try:
        app(prog_name="clearhead")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except OSError as error:
        if error.filename is None:  # of no file, so of the output
            code = _drop_output(error)
        else:
            print(f"clearhead: {readable(str(error))}", file=sys.stderr)
            code = 1
    try:
        sys.stdout.flush()
    except OSError as error:
        code = max(code, _drop_output(error))
    return code


def _drop_output(error: OSError) -> int:
    """Discard the rest of the output; return 0 for a closed pipe, else 1 with the reason on stderr."""
    # Python would complain at exit of what is left.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0  # the reader has had enough
    print(f"clearhead: the output could not be written: {error.strerror or error}", file=sys.stderr)
    return 1


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="With --version: also the devices, which kernels can run here, and why others cannot.",
        ),
    ] = False,
) -> None:
    """Print the version or the machine and exit; no-op without --version, BadParameter for --verbose alone."""
    if verbose and not version:
        raise typer.BadParameter("expected --version with it.", param_hint="--verbose")
    if verbose:
        from rich.console import Console

        from clearhead.drawing.terminal.machine import print_machine

        print_machine(Console())
    elif version:
        print(f"clearhead {__version__}")
    if version:
        raise typer.Exit
