"""Adapters: a converted layer with the call signature of the module that it replaces."""

import inspect
from functools import cache
from typing import Any

from torch import Tensor, nn

from clearhead.errors import UnsupportedError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.reader import ModuleReader


class Adapter(nn.Module):
    """A layer of ours with the arguments and the returns of the module that it was made of.

    Its class is made for each class of modules, as a subclass of it, so that a model which asks for
    the class of its attention finds it (`adapter_for`). Public attributes of the module that are no
    tensors and no modules are copied to it.

    Args:
        reader: of the module.
        layer: the layer that was made of it.

    Attributes:
        layer: the layer that attends.
        output_dropout: probability of dropout on the output.
        kinds: the kind of adapter and the module's class, of which its class is made.
        signature: of the forward of the module's class.
    """

    kinds: tuple[type["Adapter"], type[nn.Module]]
    signature: inspect.Signature

    def __init__(self, reader: ModuleReader, layer: AttentionLayer) -> None:
        """Set `layer` and `output_dropout`, and copy the module's public attributes that are no tensors or modules."""
        # Not the constructor of their class, which would make its projections.
        nn.Module.__init__(self)
        plain = {
            name: value
            for name, value in vars(reader.module).items()
            if not name.startswith("_") and not isinstance(value, Tensor)
        }
        vars(self).update(plain)
        self.output_dropout = reader.output_dropout
        self.layer = layer

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name of the module's forward, defaults included.

        Those that go into its **kwargs have their own names. Raises TypeError if they do not fit the signature.
        """
        bound = self.signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        found = dict(list(bound.arguments.items())[1:])
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                found |= found.pop(name)
        return found

    def dropped(self, output: Tensor) -> Tensor:
        """Return the output after the dropout that the module applies to its output; unchanged in eval mode."""
        return nn.functional.dropout(output, self.output_dropout, self.training)

    def extra_repr(self) -> str:
        """Return "": `repr` shows the layer inside only."""
        return ""

    def __reduce__(self) -> Any:
        """Return the function, the classes and the attributes by which pickle and copy make an equal adapter."""
        return _blank, self.kinds, vars(self)


class PlainAdapter(Adapter):
    """The call of a class that takes x, or x and a context: that of the user's own model.

    Args:
        reader: of the module; a copy of it was run.
        layer: the layer that was made of it.

    Raises:
        UnsupportedError: code `convert.argument`, in a call with another argument that is not what
            the module's class takes when it is left out.
    """

    def __init__(self, reader: ModuleReader, layer: AttentionLayer) -> None:
        """Set also how many arguments the layer gets, and how many values a call returns, 0 for no tuple."""
        super().__init__(reader, layer)
        assert reader.call is not None
        self.inputs, self.returns = reader.call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output; if the module returns a tuple of n, a tuple of the output and n − 1 times None.

        Raises:
            UnsupportedError: code `convert.argument`, for another argument that is given.
        """
        given = self.arguments(args, kwargs)
        names = list(given)[: self.inputs]
        for name, value in given.items():
            if name not in names and not is_left_out(self.signature, name, value):
                raise UnsupportedError(
                    "convert.argument",
                    f"{name} of {self.kinds[1].__name__} was not known when it was converted: what it "
                    "means to the attention is in its code. Call conversion.undo(), or leave it out.",
                )
        output = self.dropped(self.layer(*(given[name] for name in names)))
        return output if self.returns == 0 else (output, *[None] * (self.returns - 1))


def other_arguments(module: nn.Module, count: int) -> list[str]:
    """Return the names of the parameters of a module's forward after self and the first `count`."""
    return list(inspect.signature(type(module).forward).parameters)[1 + count :]


def is_left_out(signature: inspect.Signature, name: str, value: object) -> bool:
    """Return True if passing `value` as `name` changes nothing: None, its default if a plain value, or an empty *args.

    A name that the signature does not have has no default.
    """
    parameter = signature.parameters.get(name)
    if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
        return not value
    default = None if parameter is None else parameter.default
    return value is None or (isinstance(value, bool | int | float | str) and value == default)


def adapter_for(kind: type[Adapter], reader: ModuleReader, layer: AttentionLayer) -> Adapter:
    """Return an adapter of one kind for a module, in the module's training mode.

    Its class also derives from the module's.
    """
    return _class_of(kind, type(reader.module))(reader, layer).train(reader.module.training)


@cache
def _class_of(kind: type[Adapter], theirs: type[nn.Module]) -> type[Adapter]:
    """Return a class that derives from the adapter `kind` and a module's class `theirs`; cached, one for each pair."""
    held = {
        "kinds": (kind, theirs),
        "signature": inspect.signature(theirs.forward),
        "__module__": kind.__module__,
    }
    return type(f"Converted{theirs.__name__}", (kind, theirs), held)


def _blank(kind: type[Adapter], theirs: type[nn.Module]) -> Adapter:
    """Return an uninitialised adapter of class `kind` and of a module's class `theirs`, for unpickling and copying."""
    return _class_of(kind, theirs).__new__(_class_of(kind, theirs))
