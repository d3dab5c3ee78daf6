"""`clearhead figure`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clearhead.cli.progress import say
from clearhead.cli.trace import HeadDim, InitOption, IsCausal, Seed, Text, ValueHeadDim, steps_of


def figure(
    file: Annotated[Path, typer.Argument(help="The page that is written.")] = Path("figure.html"),
    text: Text = None,
    seed: Seed = 123,
    head_dim: HeadDim = 2,
    value_head_dim: ValueHeadDim = None,
    causal: IsCausal = False,
    init: InitOption = None,
    start: Annotated[
        str | None, typer.Option(help="What is changed when it opens, as scores.1.0=3.5&scale=1.")
    ] = None,
) -> None:
    """Write self-attention of a sentence as a page whose numbers are touched.

    It is the sentence of `clearhead trace`, with the same numbers. Change an entry of a matrix, a
    score or the mask: what follows is worked out in the page, without Python and without a network.
    """
    from clearhead._common.writing import check_writable

    check_writable(file)
    steps = steps_of(text, seed, causal, init, head_dim=head_dim, value_head_dim=value_head_dim)
    import clearhead as ch

    words = " ".join(each.partition(" ")[2] for each in steps.tokens)
    shown = ("x", "W_query", "query", "key", "value", "scores", "weights", "context")
    drawn = ch.figure(steps, show=shown, title=words, start=start)
    say(Console(), f"The page to touch is {drawn.to_html(file)}")
