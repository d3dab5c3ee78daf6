"""The model of a command, by the name of a sample, by a folder or by a name on the Hub."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.cli.progress import busy
from clearhead.errors import ArgumentError

if TYPE_CHECKING:
    from clearhead.integrations.image_models import ImageModel
    from clearhead.integrations.text_models import TextModel


def load_for_text(model: str | None, *, logits: bool = False) -> "TextModel":
    """Load what `--model` names, MiniLM without it, to read a text; with what makes its logits as well."""
    # While something is downloaded, the bars of the hub say more than we could.
    downloads = model is not None and not Path(model).expanduser().exists()
    with nullcontext() if downloads else busy("loading the model"):
        from clearhead.integrations import huggingface

        folder = _sample(model, "text") if model is not None and downloads else None
        progress = downloads and folder is None and sys.stderr.isatty()
        read = huggingface.load(folder or model, logits=logits, progress=progress)
        return read if model is None else replace(read, name=model)


def load_for_pictures(model: str | None) -> "ImageModel":
    """Load what `--model` names, DINOv2 without it, to read a picture."""
    model = "dinov2" if model is None else model
    downloads = not Path(model).expanduser().exists()
    with nullcontext() if downloads else busy("loading the model"):
        from clearhead.integrations import huggingface

        folder = _sample(model, "pictures") if downloads else None
        progress = downloads and folder is None and sys.stderr.isatty()
        read = huggingface.load_for_pictures(folder or model, progress=progress)
        return replace(read, name=model)


def _sample(model: str, reads: str) -> str | None:
    """The folder of a sample that reads text, or pictures; None for another model."""
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
