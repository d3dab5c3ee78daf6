"""Attention layers of other libraries as layers of ours, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from clearhead._common.elements import Drawn
from clearhead._common.hints import with_hints
from clearhead._text import kind_of, readable
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.families import family_of
from clearhead.layers.converting.fitting import build, refuse
from clearhead.layers.converting.model_conversion import convert_model, is_theirs
from clearhead.layers.converting.probing import read
from clearhead.layers.converting.tensor_pairs import Row
from clearhead.layers.latent_attention import LatentAttention
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.masks.base import Mask
from clearhead.masks.dense import and_masks, as_mask
from clearhead.masks.full import Full


@dataclass(frozen=True, repr=False)
class Conversion(Drawn):
    """The result of a conversion: the layer, and a report of each tensor and setting.

    Attributes:
        layer: the layer of ours.
        rows: one for each tensor and each setting; see `print(conversion)`.
        theirs: the name of the other library's class.

    Example:
        >>> import torch, clearhead as ch
        >>> conversion = ch.convert(torch.nn.MultiheadAttention(6, 2, dropout=0.1))
        >>> conversion.rows[0].theirs, conversion.rows[0].ours, conversion.rows[0].how
        ('in_proj_weight[0:6]', 'query_projection.weight', 'copied')
        >>> conversion.layer.dropout
        0.1
    """

    layer: MultiHeadAttention | LatentAttention
    rows: tuple[Row, ...]
    theirs: str

    def __str__(self) -> str:
        """Return the report as text: the two classes, and a line of `rows` each."""
        names = [(row.theirs or "-", row.ours or "-") for row in self.rows]
        first, second = (max(map(len, column)) for column in zip(*names, strict=True))
        lines = [
            f"  {theirs:<{first}}  →  {ours:<{second}}  {row.how}"
            for (theirs, ours), row in zip(names, self.rows, strict=True)
        ]
        return readable("\n".join([f"{self.theirs} → {type(self.layer).__name__}", *lines]))


@with_hints
def convert(
    module: nn.Module,
    *,
    output: nn.Module | None = None,
    relative_bias: nn.Module | None = None,
    mask: Mask | Tensor | None = None,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
) -> Any:
    """Convert an attention layer of another library to one of ours, or every attention of a model.

    The outputs are equal, for the tokens and masks that the module gets in its model. A single attention is converted
    only if each of its parameters and buffers is accounted for. A copy of a class that no library has is run on a few
    tokens, to find what its weights do not tell.

    Of a whole model every attention is replaced *in place* by a layer of ours behind the call of the
    module that it takes the place of, so that the model runs as before: with its masks, its positions,
    its KV cache, and with `generate`. What cannot be converted is left, and the result says why. A
    model of transformers is run before and after, in eval mode; each attention is compared with the layer
    that is made of it on what the model gives it, and then the outputs, with a KV cache too. Layers share
    the weights of the model where they have the same numbers, and `undo` puts its modules back.

    Args:
        module: an attention, which is not changed and shares no memory with the result; or a model, which is changed in
            place.
        output: the projection of the output where it stands elsewhere, as BERT's `output.dense`
            does. Without one, the layer's is the identity.
        relative_bias: the table of T5's first block, which the others get from it.
        mask: the mask that the module gets at each call, besides what it hides itself; `full()` where neither
            hides anything and the module does not say so.
        inputs: of a whole model, the arguments of a call to compare with: one tensor, a tuple, or a mapping by name;
            None for ones that are made, of a model of transformers, and for no call of any other.

    Returns:
        A `Conversion` of a module that is an attention, a `ModelConversion` of one that has some inside.

    Raises:
        UnsupportedError: code `convert.unknown`, for a module of no known kind;
            `convert.refused`, with every reason why there is no layer with its outputs, such as parameters
            and buffers that have no place in a layer of ours.
        ArgumentTypeError: codes `convert.type` and `inputs.type`.
        ArgumentError: code `convert.beside`, for an argument of a module next to a model, or of a
            model next to a module.

    Example:
        >>> import torch, clearhead as ch
        >>> theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True, bias=False)
        >>> conversion = ch.convert(theirs)
        >>> print(conversion)
        MultiheadAttention → MultiHeadAttention
          in_proj_weight[0:6]    →  query_projection.weight   copied
          in_proj_weight[6:12]   →  key_projection.weight     copied
          in_proj_weight[12:18]  →  value_projection.weight   copied
          out_proj.weight        →  output_projection.weight  copied
        >>> x = torch.randn(1, 5, 6)
        >>> torch.allclose(conversion.layer(x), theirs(x, x, x)[0], atol=1e-6)
        True
    """
    related = {"output": output, "relative_bias": relative_bias}
    given = {name: each for name, each in related.items() if each is not None}
    _check_types(module, given)
    mask = as_mask(mask)
    is_whole = family_of(module) is None and any(map(is_theirs, module.modules()))
    of_one = {**given, "mask": mask}
    wrong = [name for name, each in of_one.items() if each is not None] if is_whole else []
    if wrong or (inputs is not None and not is_whole):
        raise ArgumentError(
            "convert.beside",
            f"output, relative_bias and mask must be None for a model, and inputs for one attention; got "
            f"{', '.join(wrong) or 'inputs'} for {type(module).__name__}.",
        )
    if is_whole:
        return convert_model(module, inputs)
    reader = read(module, given)
    unsaid = [reader.unsaid] if reader.unsaid and mask is None else []
    refuse(f"read this {type(module).__name__} by itself", reader.alone + unsaid)
    # A mask that hides nothing is none.
    both = reader.mask if isinstance(mask, Full) else and_masks(reader.mask, mask)
    layer: Any = build(reader, reader.kind, both)
    return Conversion(layer, reader.rows, type(module).__name__)


def _check_types(module: object, related: Mapping[str, object]) -> None:
    """Raise ArgumentTypeError, code `convert.type`, if the module or one of `related` is no module or a layer of ours.

    The names in `related` are those of the arguments, for the message.
    """
    for name, each in {"module": module, **related}.items():
        if not isinstance(each, nn.Module) or isinstance(each, AttentionLayer):
            raise ArgumentTypeError(
                "convert.type",
                f"{name} must be a torch.nn.Module that is not a layer of clearhead; got {kind_of(each)}.",
            )
