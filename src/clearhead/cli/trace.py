"""`clearhead trace`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clearhead.cli.progress import say

if TYPE_CHECKING:
    from clearhead.tracing.trace import Trace

Text = Annotated[
    str | None, typer.Option(help="A sentence; its words get random vectors of width 3.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is random.", min=0, max=2**63 - 1)]
QueryWidth = Annotated[int, typer.Option(help="Width of a query and of a key.")]
ValueWidth = Annotated[int, typer.Option(help="Width of a value.")]
IsCausal = Annotated[bool, typer.Option("--causal", help="No token sees a later one.")]


class Init(StrEnum):
    """The distributions of the matrices of `trace`."""

    normal = "normal"
    uniform = "uniform"


InitOption = Annotated[
    Init | None,
    typer.Option(help="How the matrices are drawn; uniform with --text, else normal."),
]


def trace(
    text: Text = None,
    seed: Seed = 123,
    d_qk: QueryWidth = 2,
    d_v: ValueWidth = 2,
    causal: IsCausal = False,
    init: InitOption = None,
    query: Annotated[
        int | None,
        typer.Option(help="The token whose arithmetic is written out, from 0; else the second."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to step through into this file as well.", metavar="FILE"),
    ] = None,
) -> None:
    """Trace self-attention of a sentence, stage by stage.

    Without --text it is the sentence "Your journey starts with one step", whose words have vectors
    of width 3. Query, key and value are made with three matrices of random numbers.
    """
    if html is not None:
        from clearhead._common.writing import check_writable

        check_writable(html)
    steps = steps_of(text, seed, d_qk, d_v, causal, init)
    from clearhead.drawing.terminal.terminal import Traced

    console = Console()
    query = min(1, len(steps.tokens) - 1) if query is None else query
    console.print(Traced(steps, query), soft_wrap=True)
    if html is not None:
        say(console, f"\nThe page to step through is {steps.to_html(html)}")


def steps_of(
    text: str | None, seed: int, d_qk: int, d_v: int, causal: bool, init: Init | None
) -> "Trace":
    """Trace a sentence, as the options of the command say."""
    import torch

    import clearhead as ch
    from clearhead import ladder

    if text is None:
        tokens, embeddings = ladder.EXAMPLE_TOKENS, ladder.EXAMPLE_EMBEDDINGS
    else:
        embedded = ladder.embed_words(text, seed=seed)
        tokens, embeddings = embedded.words, embedded.embeddings
    if init is None:
        init = Init.normal if text is None else Init.uniform
    torch.manual_seed(seed)
    width = embeddings.shape[1]
    rung = ladder.SelfAttention(width, head_dim=d_qk, value_head_dim=d_v, init=init.value)
    if causal:
        rung = ladder.MaskedAttention(
            width, head_dim=d_qk, value_head_dim=d_v, mask=ch.causal()
        ).with_weights(rung.query_weight, rung.key_weight, rung.value_weight)
    return ch.trace(rung, embeddings, tokens=tokens)
