"""The QK and OV circuits of each head, computed from its weights."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.checks import as_int, check_tensor
from clearhead._common.elements import Drawn
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from clearhead.layers.converting.convert import convert
from clearhead.layers.converting.families import family_of
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.parts import Part
from clearhead.layers.query_key_norm import QueryKeyNorm
from clearhead.layers.rotary import Rotary
from clearhead.matrix.head_results import FactoredHeads, triangle
from clearhead.matrix.no_tensor import NoTensor
from clearhead.watching.finding import attending, path_of_layer
from clearhead.watching.projections import projection_of

Into = Literal["query", "key", "value"]


class Circuits(NoTensor, Drawn):
    """The circuits of the heads of a layer (Elhage et al., 2021, https://transformer-circuits.pub/2021/framework).

    Made of a layer and the norm before it, or None, which is folded into the projections; the layer is not changed.

    They leave out biases, the scale of the scores, and the lengths by which norms of query and key divide. Made by
    `clearhead.reading.circuits`.

    Attributes:
        layer: the attention as a `MultiHeadAttention`.
        ov: the matrix that turns an attended token into what the head adds: output projection · value projection.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, bias=False)
        >>> circuits = ch.reading.circuits(layer)
        >>> circuits
        Circuits [num_heads=2, num_kv_heads=2, embed_dim=8, head_dim=4]
        >>> x = torch.randn(5, 8)
        >>> scores = x @ circuits.qk().product(1) @ x.T / 4**0.5
        >>> torch.allclose(scores.softmax(dim=-1), layer.weights(x[None]).dense()[0, 1], atol=1e-5)
        True
    """

    def __init__(self, layer: MultiHeadAttention, norm: nn.Module | None) -> None:
        self.layer = layer
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        self._query = _weight(layer.query_projection, heads)
        self._key = _weight(layer.key_projection, kv_heads)
        value = _weight(layer.value_projection, kv_heads)
        if norm is not None:
            self._query, self._key, value = (
                _normed(each, norm) for each in (self._query, self._key, value)
            )
        for part in layer.parts:
            if isinstance(part, QueryKeyNorm):
                gains = part.query_norm.weight, part.key_norm.weight
                query, key = (each.detach().view(-1, layer.head_dim, 1) for each in gains)
                self._query, self._key = self._query * query, self._key * key
        output = stages.upcast(layer.output_projection.weight.detach())
        self.ov = FactoredHeads(output.unflatten(1, (heads, -1)).transpose(0, 1), value)

    def qk(self, distance: int = 0) -> FactoredHeads:
        """Return the score of a query and a key as a bilinear form, query projectionᵀ · key projection, of each head.

        Args:
            distance: how many tokens the key is before the query, for rotary positions; without them it changes
                nothing.

        Raises:
            ArgumentTypeError: code `circuits.distance`.
        """
        number = as_int(distance)
        if number is None:
            raise ArgumentTypeError(
                "circuits.distance",
                f"distance must be a whole number of tokens; got {shown(distance)}.",
            )
        # Each column of the projections is a token of its own; (embed_dim, heads, 1, head_dim).
        query, key = (each.permute(2, 0, 1)[:, :, None] for each in (self._query, self._key))
        places = torch.tensor([max(number, 0)]), torch.tensor([max(-number, 0)])
        for part in self.layer.parts:
            if isinstance(part, Rotary):
                query, key = part.transform_query_key(
                    query, key, *(each.to(query.device) for each in places)
                )
        return FactoredHeads(query[:, :, 0].transpose(0, 1), key[:, :, 0].permute(1, 2, 0))

    def copying(self, embedding: Tensor | None = None, unembedding: Tensor | None = None) -> Tensor:
        """Return a score of how much each head copies, Σλ / Σ|λ|, from −1 to 1, (num_heads,).

        λ are the eigenvalues of unembedding · OV · embedding. Elhage et al. interpret heads with a score near 1 as
        copying heads.

        Args:
            embedding: (vocabulary, embed_dim), the rows of tokens; None for eigenvalues of OV alone.
            unembedding: (vocabulary, output_dim), times the gain of the last norm, if there is one.

        Raises:
            ArgumentError: code `circuits.embedding`, for one of them without the other.
            ArgumentTypeError: codes `embedding.type` and `unembedding.type`.
            ShapeError: code `circuits.between`.
        """
        if (embedding is None) != (unembedding is None):
            raise ArgumentError(
                "circuits.embedding", "embedding and unembedding go together; got one of them."
            )
        between = None
        if embedding is not None and unembedding is not None:
            check_tensor("embedding", embedding)
            check_tensor("unembedding", unembedding)
            rows = len(embedding) == len(unembedding)
            if embedding.ndim != 2 or unembedding.ndim != 2 or not rows:
                raise ShapeError(
                    "circuits.between",
                    "embedding and unembedding must have shape (vocabulary, width) with the same vocabulary; got "
                    f"{tuple(embedding.shape)} and {tuple(unembedding.shape)}.",
                )
            between = embedding.detach().mT.to(self._key) @ unembedding.detach().to(self._key)
        found = self.ov.eigenvalues(between)
        return found.sum(dim=-1).real / found.abs().sum(dim=-1)

    def composition(self, other: "Circuits", into: Into, *, distance: int = 0) -> Tensor:
        """Return how strongly heads of a later layer read each head's output, (num_heads, its num_heads).

        It is ‖A · OV‖ / (‖A‖ · ‖OV‖), with Frobenius norms, where A is what the later head does with its input.
        Heads that have nothing to do with each other score about 1/√embed_dim.

        Args:
            other: the circuits of the later layer.
            into: its "query", where A is QKᵀ; its "key", QK; or its "value", OV.
            distance: as in `qk`.

        Raises:
            ArgumentTypeError: code `circuits.other`.
            ArgumentError: code `into.value`.
            ShapeError: code `circuits.width`.

        Example:
            >>> import torch, clearhead as ch
            >>> first, second = (ch.reading.circuits(ch.MultiHeadAttention(8, num_heads=n)) for n in (2, 4))
            >>> first.composition(second, "key").shape
            torch.Size([2, 4])
        """
        if not isinstance(other, Circuits):
            raise ArgumentTypeError(
                "circuits.other", f"other must be the circuits of a layer; got {shown(other)}."
            )
        if into not in get_args(Into):
            words = ", ".join(f'"{each}"' for each in get_args(Into))
            raise ArgumentError("into.value", f"into must be one of {words}; got {shown(into)}.")
        read = other.ov if into == "value" else other.qk(distance)
        reads = read.left.mT if into == "query" else read.right
        if reads.shape[2] != self.ov.shape[1]:
            raise ShapeError(
                "circuits.width",
                f"the later layer must read what this one writes, {self.ov.shape[1]} wide; it reads {reads.shape[2]}.",
            )
        # (here, there, width, width): where heads share a projection it is multiplied once.
        middle = torch.einsum("bio,aoj->abij", reads, self.ov.left)
        outer = triangle(self.ov.right.mT).mT
        middle = middle @ self.ov.shared(outer)[:, None]
        if into == "query":
            middle = read.shared(triangle(read.right.mT)) @ middle
        else:
            middle = triangle(read.left) @ read.shared(middle, axis=1)
        sizes = self.ov.norms()[:, None] * read.norms()
        return torch.linalg.matrix_norm(middle) / sizes

    def __repr__(self) -> str:
        """Return one line with the sizes of the layer."""
        names = ("num_heads", "num_kv_heads", "embed_dim", "head_dim")
        sizes = ", ".join(f"{name}={getattr(self.layer, name)}" for name in names)
        return f"Circuits [{sizes}]"


@with_hints
def circuits(
    model: nn.Module, layer: str | int | None = None, *, norm: nn.Module | None = None
) -> Circuits:
    """Return the QK and OV circuits of each head, computed from its weights.

    They stay factors, as wide as a head, and a projection that several heads share is there once. An attention of
    another library is read as `convert` reads it, in a copy. Source: Elhage et al., 2021,
    https://transformer-circuits.pub/2021/framework.

    Args:
        model: the attention, or a model that it is in.
        layer: which one of the model, by its path or number; None for one that is given itself.
        norm: the norm before it, LayerNorm or RMSNorm, whose gain then belongs to what the heads read, and the
            subtraction of its mean. What it divides by differs from token to token, and is left out.

    Returns:
        `Circuits`, with `ov`, `qk(distance)`, and scores of copying, of the previous token, and of composition.

    Raises:
        ArgumentTypeError: codes `circuits.model` and `circuits.norm`.
        SelectionError: code `watch.layer`.
        UnsupportedError: codes `circuits.unknown`, unless it is an attention with its own projections,
            `circuits.parts`, for one whose heads are no products of them, such as a gated one, and those of `convert`.

    Example:
        >>> import torch, clearhead as ch
        >>> model = torch.nn.Sequential(*(ch.MultiHeadAttention(8, num_heads=2) for _ in "ab"))
        >>> first, second = ch.reading.circuits(model, 0), ch.reading.circuits(model, "1")
        >>> first.ov.shape, first.copying().shape, first.composition(second, "query").shape
        (torch.Size([2, 8, 8]), torch.Size([2]), torch.Size([2, 2]))
    """
    for name, each in {"model": model, "norm": norm}.items():
        if not isinstance(each, nn.Module) and not (name == "norm" and each is None):
            raise ArgumentTypeError(
                f"circuits.{name}", f"{name} must be a torch.nn.Module; got {shown(each)}."
            )
    module, output = model, None
    if layer is not None:
        path = path_of_layer(layer, dict(enumerate(attending(model))))
        module, output = model.get_submodule(path), projection_of(model, path)
        inside = any(each is output for each in module.modules())
        output = None if inside else output
    if not isinstance(module, MultiHeadAttention):
        if family_of(module) is None:
            raise UnsupportedError(
                "circuits.unknown",
                f"a {type(module).__name__} is no attention whose projections are known. Of a model give layer=, the "
                "number or the path of one that attends.",
            )
        made: Any = convert(module, output=output).layer
        module = made
    if not isinstance(module, MultiHeadAttention):
        raise UnsupportedError(
            "circuits.unknown",
            f"the heads of a {type(module).__name__} have no projections of their own.",
        )
    changed = [
        type(part).__name__
        for part in module.parts
        if type(part).transform_value is not Part.transform_value
        or type(part).transform_context is not Part.transform_context
        or (
            type(part).transform_query_key is not Part.transform_query_key
            and not isinstance(part, Rotary | QueryKeyNorm)
        )
    ]
    if changed:
        raise UnsupportedError(
            "circuits.parts",
            f"the circuits of this attention are no products of its projections: {', '.join(changed)} changes what "
            "stands between them.",
        )
    return Circuits(module, norm)


def _weight(projection: nn.Linear, heads: int) -> Tensor:
    """Return the weight of each head, (heads, width, columns), detached, in float32 or wider."""
    return stages.upcast(projection.weight.detach()).unflatten(0, (heads, -1))


@torch.no_grad()
def _normed(weight: Tensor, norm: nn.Module) -> Tensor:
    """Return the weight, (…, columns), with the gain and the centring of the norm before it folded in; detached.

    Both are measured by calling the norm with a random vector, which it must accept; it is not changed.
    """
    width = weight.shape[-1]
    own: Any = next(norm.parameters(), weight)
    x = torch.randn(width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (100 * x).to(own)  # next to which epsilon is nothing
    # The norm of −x takes the bias away.
    made, moved = ((norm(each) - norm(-each)).to(weight) / 2 for each in (x, x + 100))
    is_centred = bool((made - moved).norm() < 0.1 * made.norm())
    x = x.to(weight)
    x = x - x.mean() if is_centred else x
    gain = made / x * x.square().mean().sqrt()
    weight = weight * gain
    return weight - weight.mean(dim=-1, keepdim=True) if is_centred else weight
