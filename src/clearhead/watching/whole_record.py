"""One step of a record, the sequences of a generation, and norms and results of heads through output projections."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_ids
from clearhead._text import shown
from clearhead.errors import ArgumentError, SelectionError
from clearhead.matrix.head_results import HeadResults
from clearhead.matrix.norms import Norms
from clearhead.watching.kept_by_path import KeptByPath
from clearhead.watching.module_calls import Kept
from clearhead.watching.projections import output_projection
from clearhead.watching.token_ids import source_paths


class WholeRecord(KeptByPath[Kept]):
    """The calls of every module, taken together."""

    def step(self, number: int) -> Self:
        """Return the record of one call of each module: a step of a diffusion, a refinement, a layer that is shared.

        Args:
            number: of the call, in the order of the module's calls; negative ones from its last. Modules without such
                a call, as the encoder next to the steps of a decoder, are left out.

        Raises:
            SelectionError: code `watch.call`, if no module has such a call.

        Example:
            >>> import torch, clearhead as ch
            >>> layer, x = ch.MultiHeadAttention(8, num_heads=2), torch.randn(2, 1, 5, 8)
            >>> with torch.no_grad(), ch.watch(layer) as seen:
            ...     outputs = layer(x[0]), layer(x[1][:, :3])
            >>> seen.step(1)[0].shape
            torch.Size([1, 2, 3, 3])
        """
        steps = {name: module.step(number) for name, module in self._modules.items()}
        found = {name: step for name, step in steps.items() if step is not None}
        if not found:
            raise SelectionError(
                "watch.call", f"a step must be the number of a call; got {shown(number)}."
            )
        return self._of(found)

    def returned(self, sequences: Tensor) -> Self:
        """Return the record of the sequences that a generation returned, one matrix for each module.

        The rows of `seen[name]` are those of the last step. Here they are the sequences: of beams that were chosen,
        some of which had ended earlier, of `num_return_sequences`, and without the drafts that an assisted generation
        or prompt lookup refused. Modules whose tokens are not known, such as a vision tower, and the encoder of a
        source stay as they are.

        Args:
            sequences: what `generate` returned, token ids (batch, len), with the prompt; a sequence that ended early
                is padded. Its last token was not read, so that a matrix has len − 1 queries.

        Raises:
            ArgumentError: code `watch.returned`, where what was kept are neither matrices nor contexts.
            SelectionError: code `watch.returned`, for sequences that the model did not read.

        Example:
            >>> import torch, clearhead as ch
            >>> class Model(torch.nn.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.embedding = torch.nn.Embedding(9, 8)
            ...         self.attention = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
            ...     def get_input_embeddings(self):
            ...         return self.embedding
            ...     def forward(self, ids, cache):
            ...         return self.attention(self.embedding(ids), cache=cache)
            >>> model, cache = Model(), ch.layers.GrowingCache()
            >>> prompt, step = torch.tensor([[3, 1], [4, 1]]), torch.tensor([[5], [6]])
            >>> with torch.no_grad(), ch.watch(model) as seen:
            ...     outputs = model(prompt, cache), model(step, cache)
            >>> seen.returned(torch.tensor([[4, 1, 6, 2]]))["attention"].shape
            torch.Size([1, 2, 3, 3])
        """
        if self._keep not in ("matrix", "contexts"):
            raise ArgumentError(
                "watch.returned",
                f'returned needs a watch with keep="matrix" or "contexts"; keep was {self._keep!r}.',
            )
        ids = torch.atleast_2d(check_ids(sequences))
        source = source_paths(self._modules)
        texts = [pair for pair in self._modules.items() if pair[0] not in source]
        found = {name: module.returned(ids) for name, module in texts}
        reasons = [
            f"{shown(name)}: {each}" for name, each in found.items() if isinstance(each, str)
        ]
        if all(each is None for each in found.values()):
            reasons = ["the ids that the model read are not known"]
        if reasons:
            raise SelectionError(
                "watch.returned",
                f"sequences must be token ids that the model read, as generate returned them; {reasons[0]}.",
            )
        return self._of({name: found.get(name) or each for name, each in self._modules.items()})

    def norms(self, layer: str | int, model: nn.Module | None = None) -> Norms:
        """Return weights × ‖value · W‖ of a module, after a watch with `values=True`.

        It measures what each query takes from each key, and not only how much it looks at it (Kobayashi et al.,
        2020, https://arxiv.org/abs/2004.10102).

        Args:
            layer: a path, or a number.
            model: the one that was watched, whose output projection is read as it is now, W being the part of
                a head; found by the names that libraries give it. What else the model does to the context
                before, such as a gate, is not in it. None for the norms of the values themselves.

        Raises:
            ArgumentError: code `norms.value`, where no values were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`, where no output projection is known;
                `AttentionMatrix.norms` takes its weight.
            SelectionError: codes `watch.layer` and `watch.several`; `step` has one call.

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
        matrix: Any = self[path]
        output = None
        if model is not None and matrix.value is not None:
            output = output_projection(model, path, matrix, matrix.value.shape[-1])[0]
        return matrix.norms(output)

    def results(self, layer: str | int, model: nn.Module) -> HeadResults:
        """Return z · W of each head of a module: what the head adds to the output of the layer.

        It needs a watch with `keep="contexts"` or `contexts=True`. W is the head's part of the output projection.

        Args:
            layer: a path, or a number.
            model: as in `norms`.

        Raises:
            ArgumentError: code `results.context`, where no contexts were kept.
            ArgumentTypeError: code `norms.model`.
            UnsupportedError: code `norms.projection`.
            SelectionError: codes `watch.layer` and `watch.several`; `step` has one call.

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
        kept: Any = self[path]
        context = getattr(kept, "context", None)
        if context is None:
            raise ArgumentError(
                "results.context",
                'results need the contexts of the heads, watch(model, keep="contexts") or contexts=True; keep= was '
                f"{self._keep!r} without.",
            )
        return HeadResults(context, *output_projection(model, path, kept, context.shape[3]))
