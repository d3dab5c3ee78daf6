"""Norms and results of the heads of a whole record, through the output projections of the model."""

from typing import Any

from torch import nn

from clearhead._common.checks import as_place
from clearhead._text import shown
from clearhead.errors import ArgumentError, SelectionError
from clearhead.matrix.head_results import HeadResults
from clearhead.matrix.norms import Norms
from clearhead.watching.calls import Kept
from clearhead.watching.kept_by_path import KeptByPath
from clearhead.watching.projections import output_projection


class WholeRecord(KeptByPath[Kept]):
    """The calls of every module, taken together."""

    def norms(
        self, layer: str | int, model: nn.Module | None = None, *, call: int | None = None
    ) -> Norms:
        """Return weights × ‖value · W‖ of a module, after a watch with `values=True`.

        It measures what each query takes from each key, and not only how much it looks at it (Kobayashi et al.,
        2020, https://arxiv.org/abs/2004.10102).

        Args:
            layer: a path, or a number.
            model: the one that was watched, whose output projection is read as it is now, W being the part of
                a head; found by the names that libraries give it. What else the model does to the context
                before, such as a gate, is not in it. None for the norms of the values themselves.
            call: which one of `calls`, of a module that attended several times; None is all of them as one.

        Raises:
            ArgumentError: code `norms.value`, where no values were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`, where no output projection is known;
                `AttentionMatrix.norms` takes its weight.
            SelectionError: codes `watch.layer`, `watch.several` and `watch.call`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
            >>> with torch.no_grad(), ch.watch(layer, values=True) as seen:
            ...     output = layer(torch.randn(1, 5, 16))
            >>> seen.norms("self_attn", layer)
            Norms [batch=1, num_heads=2, query_len=5, kv_len=5] of weights × ‖value · W‖
        """
        if self._keep != "matrix":
            raise ArgumentError(
                "norms.value",
                f"norms need matrices with their values, watch(model, values=True); keep= was {self._keep!r}.",
            )
        path = self.path(layer)
        matrix = self._one(path, call)
        output = None
        if model is not None and matrix.value is not None:
            output = output_projection(model, path, matrix, matrix.value.shape[-1])[0]
        return matrix.norms(output)

    def _one(self, path: str, call: int | None) -> Any:
        """Return one of the calls of a module, or all of them as one."""
        if call is None:
            return self[path]
        calls = self.calls(path)
        number = as_place(call, len(calls))
        if number is None:
            raise SelectionError(
                "watch.call",
                f"{shown(path)} attended {len(calls)} times; there is no {shown(call)}.",
            )
        return calls[number]

    def results(
        self, layer: str | int, model: nn.Module, *, call: int | None = None
    ) -> HeadResults:
        """Return z · W of each head of a module: the term that the head adds to the layer's output.

        It needs a watch with `keep="contexts"` or `contexts=True`. W is the head's part of the output projection.

        Args:
            layer: a path, or a number.
            model: as in `norms`.
            call: the number of the call, in the same form.

        Raises:
            ArgumentError: code `results.context`, where no contexts were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`.
            SelectionError: codes `watch.layer`, `watch.several` and `watch.call`.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True)
            >>> x = torch.randn(1, 5, 8)
            >>> with torch.no_grad(), ch.watch(layer, keep="contexts") as seen:
            ...     output, _ = layer(x, x, x)
            >>> torch.allclose(seen.results(0, layer).total(), output, atol=1e-6)
            True
        """
        path = self.path(layer)
        kept = self._one(path, call)
        context = getattr(kept, "context", None)
        if context is None:
            raise ArgumentError(
                "results.context",
                'results need the contexts of the heads, watch(model, keep="contexts") or contexts=True; keep= was '
                f"{self._keep!r} without.",
            )
        return HeadResults(context, *output_projection(model, path, kept, context.shape[3]))
