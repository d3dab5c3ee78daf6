"""`clearhead trace`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clearhead.cli.progress import say
from clearhead.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from clearhead.tracing.traced_call import Trace

PLACE = re.compile(r"\S.*(\.py|:[\w.]+)")
"""Code of one's own as an argument; anything else is a sentence."""


def trace(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A sentence, whose words get random vectors of width 3; or code of your own, file.py:Name, "
            "which is called with one.",
            metavar="TEXT|PLACE",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The sentence, for code of your own.")] = None,
    seed: Annotated[
        int, typer.Option(help="Of everything that is random.", min=0, max=2**63 - 1)
    ] = 123,
    heads: Annotated[int, typer.Option(help="How many heads.", min=1)] = 1,
    causal: Annotated[bool, typer.Option("--causal", help="No token sees a later one.")] = False,
    query: Annotated[
        int | None,
        typer.Option(help="The token whose arithmetic is written out, from 0; else the second."),
    ] = None,
    head: Annotated[
        int, typer.Option(help="The head whose numbers are printed, from 0.", min=0)
    ] = 0,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to step through into this file as well.", metavar="FILE"),
    ] = None,
) -> None:
    """Trace attention stage by stage.

    Without a sentence it is "Your journey starts with one step", whose words have vectors of width 3.
    Query, key and value are made with three matrices of random numbers. Code of your own is called
    with the same sentence. Its stages are those that it computed, right or wrong. The first one that
    differs from the definition is followed by what it should be; --causal declares that the code hides
    later tokens.
    """
    code = what if what and PLACE.fullmatch(what) else None
    if code is None and what is not None:
        if text is not None:
            raise typer.BadParameter("there is a sentence already.", param_hint="--text")
        text = what
    if html is not None:
        from clearhead._common.writing import check_writable

        check_writable(html)
    steps = steps_of(text, seed, heads, causal, code)
    from clearhead.drawing.terminal.terminal import Traced

    console = Console()
    query = min(1, len(steps.tokens) - 1) if query is None else query
    console.print(Traced(steps, query, head), soft_wrap=True)
    if html is not None:
        say(console, f"\nThe page to step through is {steps.to_html(html)}")


def steps_of(
    text: str | None, seed: int, heads: int, causal: bool, place: str | None = None
) -> "Trace":
    """Return the trace of a rung of the ladder on a sentence, or of the code at a place.

    Without a text it is the example of the ladder, with normal matrices; those for a text are uniform.
    Seeds PyTorch's generator. Raises what `steps_of_code` raises.
    """
    import torch

    import clearhead as ch
    from clearhead import ladder

    words, x, init = ladder.EXAMPLE_TOKENS, ladder.EXAMPLE_EMBEDDINGS, "normal"
    if text is not None:
        embedded = ladder.embed_words(text, seed=seed)
        words, x, init = embedded.words, embedded.embeddings, "uniform"
    if place is not None:
        return steps_of_code(place, x, words, seed, heads, causal)
    torch.manual_seed(seed)
    mask = ch.causal() if causal else None
    if heads > 1:
        rung = ladder.SplitHeads(3, head_dim=2, num_heads=heads, mask=mask, init=init)
    elif mask is not None:
        rung = ladder.MaskedAttention(3, head_dim=2, mask=mask, init=init)
    else:
        rung = ladder.SelfAttention(3, head_dim=2, init=init)
    return ch.trace(rung, x, tokens=words)


def steps_of_code(
    place: str, x: "Tensor", words: "Sequence[str]", seed: int, heads: int, causal: bool
) -> "Trace":
    """Return the trace of user code at a place on x, (tokens, width); the batch has one sample if a batch is needed.

    Seeds PyTorch's generator before each call, first without a batch, then with one.

    Raises:
        ModelError: code `trace.call`, for what the first call raises; a ClearheadError passes.
    """
    import torch

    import clearhead as ch
    from clearhead.checking.subject.refusals import raised_with_line

    declared = {"causal": True if causal else None, "num_heads": heads if heads > 1 else None}
    errors = []
    for given in (x, x[None]):
        torch.manual_seed(seed)
        try:
            return ch.trace(place, given, tokens=words, **declared)
        except ch.errors.ClearheadError:
            raise
        except Exception as error:  # whatever the code of another raises
            errors.append(error)
    raise ModelError(
        "trace.call",
        f"{place} was called with {list(x.shape)} and raised {raised_with_line(errors[0])}",
    ) from errors[0]
