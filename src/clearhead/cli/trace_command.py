"""`clearhead trace`."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clearhead.cli.progress import say
from clearhead.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.tracing.trace import Trace

PLACE = re.compile(r"\S.*(\.py|:[\w.]+)")
"""Code of one's own as an argument; anything else is a sentence."""


class Draws(StrEnum):
    """The distributions of the matrices of `trace`."""

    normal = "normal"
    uniform = "uniform"
    linear = "linear"


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
    context: Annotated[
        str | None,
        typer.Option(help="A second sentence, which the first one attends to: cross-attention."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of everything that is random.", min=0, max=2**63 - 1)
    ] = 123,
    heads: Annotated[int, typer.Option(help="How many heads.", min=1)] = 1,
    head_dim: Annotated[int, typer.Option(help="Width of a query and of a key.")] = 2,
    value_head_dim: Annotated[
        int | None, typer.Option(help="Width of a value; that of a query without it.")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="No token sees a later one.")] = False,
    init: Annotated[
        Draws | None,
        typer.Option(
            help="How the matrices are drawn; uniform with a sentence of yours, else normal."
        ),
    ] = None,
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
    if code is not None:
        steps = steps_of_code(code, text, context, seed, heads, causal)
    else:
        sizes = {"head_dim": head_dim, "value_head_dim": value_head_dim}
        steps = steps_of(text, seed, causal, init, heads, context, **sizes)
    from clearhead.drawing.terminal.terminal import Traced

    console = Console()
    query = min(1, len(steps.tokens) - 1) if query is None else query
    console.print(Traced(steps, query, head), soft_wrap=True)
    if html is not None:
        say(console, f"\nThe page to step through is {steps.to_html(html)}")


def steps_of(
    text: str | None,
    seed: int,
    causal: bool,
    init: Draws | None,
    heads: int = 1,
    context: str | None = None,
    **sizes: int | None,
) -> "Trace":
    """Return the trace of a rung of the ladder of these sizes on a sentence, by the options of the command.

    `init` of None is normal for the example, uniform for a text. Seeds PyTorch's generator.
    """
    import torch

    import clearhead as ch
    from clearhead import ladder

    inputs, options = _sentences(text, context, seed)
    if init is None:
        init = Draws.normal if text is None else Draws.uniform
    torch.manual_seed(seed)
    options_of_rung: dict[str, Any] = {**sizes, "init": init.value}
    mask = ch.causal() if causal else None
    width = inputs[0].shape[1]
    rung: Any
    if heads > 1:
        rung = ladder.SplitHeads(width, num_heads=heads, mask=mask, **options_of_rung)
    elif mask is not None:
        rung = ladder.MaskedAttention(width, mask=mask, **options_of_rung)
    else:
        kind = ladder.SelfAttention if context is None else ladder.CrossAttention
        rung = kind(width, **options_of_rung)
    return ch.trace(rung, *inputs, **options)


def steps_of_code(
    place: str, text: str | None, context: str | None, seed: int, heads: int, causal: bool
) -> "Trace":
    """Return the trace of user code at a place on a sentence; the batch has one sample if a batch is needed.

    Seeds PyTorch's generator before each call, first without a batch, then with one.

    Raises:
        ModelError: code `trace.call`, for what it raises.
    """
    import torch

    import clearhead as ch
    from clearhead.checking.subject.refusals import raised_with_line

    inputs, options = _sentences(text, context, seed)
    declared = {"causal": True if causal else None, "num_heads": heads if heads > 1 else None}
    errors = []
    for given in (inputs, [each[None] for each in inputs]):
        torch.manual_seed(seed)
        try:
            return ch.trace(place, *given, **options, **declared)
        except ch.errors.ClearheadError:
            raise
        except Exception as error:  # whatever the code of another raises
            errors.append(error)
    shapes = " and ".join(str(list(each.shape)) for each in inputs)
    raise ModelError(
        "trace.call", f"{place} was called with {shapes} and raised {raised_with_line(errors[0])}"
    ) from errors[0]


def _sentences(
    text: str | None, context: str | None, seed: int
) -> "tuple[list[Tensor], dict[str, Any]]":
    """Return the embeddings of the sentence, and of `context` if given, in a list, and options of `trace`: their words.

    Without a text it is the example of the ladder.
    """
    from clearhead import ladder

    if text is None:
        tokens, inputs = ladder.EXAMPLE_TOKENS, [ladder.EXAMPLE_EMBEDDINGS]
    else:
        embedded = ladder.embed_words(text, seed=seed)
        tokens, inputs = embedded.words, [embedded.embeddings]
    options: dict[str, Any] = {"tokens": tokens}
    if context is not None:
        other = ladder.embed_words(context, seed=seed)
        inputs.append(other.embeddings)
        options["source_tokens"] = other.words
    return inputs, options
