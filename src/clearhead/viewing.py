"""The page in a cell of a notebook."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from clearhead.matrix import AttentionMatrix
from clearhead.seen import Seen
from clearhead.showing import drawing
from clearhead.summary import Summary
from clearhead.tracing import Trace


def view(
    thing: Seen[Any] | AttentionMatrix | Summary | Trace,
    *,
    tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
    source_tokens: Sequence[str] | Sequence[int] | Tensor | None = None,
    sample: int = 0,
) -> Any:
    """The page of what was seen, of a matrix or of a trace, to look around in, inside a notebook.

    It is a widget of anywidget, which works in JupyterLab, VS Code, Colab and marimo. Nothing is
    fetched from a network. While the kernel runs, zooming into a long text asks it for exact tiles; without a
    kernel, in a notebook that was saved with its widgets, the page shows what it holds.

    Args:
        thing: what to look at.
        tokens: what the queries are, as strings or ids, one for each token; those that were saved
            with it, if None. A trace has its own.
        source_tokens: what the keys are, in attention between two texts.
        sample: which row of the batch. A page of a trace has all to choose from.

    Returns:
        The widget; a cell that ends in it draws it.

    Raises:
        MissingExtraError: if anywidget is not installed.
        ArgumentTypeError: code `view.type`, for anything else; masks, summaries and reports draw
            themselves.
        ArgumentError: code `view.trace`, for tokens or a sample of a trace.
        ClearheadError: for tokens that do not fit, or nothing that attended.

    Example:
        >>> query = key = torch.randn(1, 2, 5, 4)
        >>> widget = ch.view(ch.AttentionMatrix(query, key), tokens=["to", "be", "or", "not", "to"])
        >>> widget.payload[:9]
        b'clearhead'
    """
    return drawing("notebook").widget_of(
        thing, tokens=tokens, source_tokens=source_tokens, sample=sample
    )
