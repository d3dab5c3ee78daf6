"""Results of a whole record: its norms, its difference to another, the kernel of each layer."""

from typing import Any

from torch import nn

from clearhead._common.checks import as_place
from clearhead._common.text import shown
from clearhead.errors import ArgumentError, SelectionError
from clearhead.matrix.head_results import HeadResults
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.norms import Norms
from clearhead.watching.calls import Kept
from clearhead.watching.difference import RunDifference, difference_of
from clearhead.watching.kept_by_path import KeptByPath
from clearhead.watching.kernels import Kernels, kernels_of
from clearhead.watching.projections import output_projection, output_weight


class WholeRecord(KeptByPath[Kept]):
    """The calls of every module, taken together."""

    def difference(self, other: KeptByPath[AttentionMatrix]) -> RunDifference:
        """Return how far the attention of two runs is apart, head by head: the total variation.

        Of a query that is half of what its weights in the one run and in the other differ by, the share of its
        attention that is elsewhere, 0 to 1; of a head the mean over its queries, those left out that are padding
        in both. Some rows of weights are computed at a time.

        Args:
            other: a record of the same layers and heads, with as many samples, queries and keys.

        Raises:
            ArgumentTypeError: code `difference.type`, for what is no record of a watch.
            ArgumentError: code `difference.keep`, where either did not keep matrices.
            ShapeError: codes `difference.layers`, `difference.heads` and `difference.shape`, for runs that do not
                fit.
            UnsupportedError: code `across.whole`, for queries that ranks share.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(1, 5, 8)
            >>> with torch.no_grad(), ch.watch(layer) as before:
            ...     output = layer(x)
            >>> with torch.no_grad(), ch.watch(layer) as after:
            ...     output = layer(x, mask=ch.causal())
            >>> found = before.difference(after)
            >>> found.columns
            ('layer', 'layer_number', 'head', 'queries', 'total_variation')
            >>> before.difference(before)["total_variation"]
            tensor([0., 0.], dtype=torch.float64)
        """
        return difference_of(self, other)

    def plan(self) -> Kernels:
        """Return the kernel that each layer ran on, and why: of layers of clearhead and models on
        `attn_implementation="clearhead"` the one that was chosen, of others the function that they called.

        Raises:
            ArgumentError: code `watch.plan`, for a record that is not of one run of a model, such as one of a file.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            >>> with torch.no_grad(), ch.watch(layer) as seen:
            ...     output = layer(torch.randn(1, 5, 8))
            >>> seen.plan()[0].kernel, seen.plan()[0].how
            ('fused', 'one fused call on cpu, with the causal flag')
            >>> seen.plan()[0].plan.reasons["flex"]
            ('it is compiled for CUDA; the tensors are on cpu',)
        """
        numbers = {path: self.number(path) for path in self.layers}
        return kernels_of(self._kernels, numbers)

    def norms(
        self, layer: str | int, model: nn.Module | None = None, *, call: int | None = None
    ) -> Norms:
        """Return weights × ‖value · W‖ of a module, after a watch with `values=True`: what each query takes from
        each key, and not only how much it looks at it (Kobayashi et al., 2020,
        https://arxiv.org/abs/2004.10102).

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
        self._need_values()
        path = self.path(layer)
        return self._norms(path, self._one(path, call), model)

    def _one(self, path: str, call: int | None) -> Any:
        """One of the calls of a module, or all of them as one."""
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
        """Return z · W of each head of a module, what it adds to the output of the layer, after a watch with
        `keep="contexts"` or `contexts=True`; W is the part of the output projection that belongs to the head.

        Args:
            layer: a path, or a number.
            model: as in `norms`.
            call: likewise.

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

    def _norms(self, path: str, matrix: AttentionMatrix, model: nn.Module | None) -> Norms:
        output = None
        if model is not None and matrix.value is not None:
            output = output_weight(model, path, matrix)
        return matrix.norms(output)

    def _need_values(self) -> None:
        if self._keep != "matrix":
            raise ArgumentError(
                "norms.value",
                f"norms need matrices with their values, watch(model, values=True); keep= was {self._keep!r}.",
            )
