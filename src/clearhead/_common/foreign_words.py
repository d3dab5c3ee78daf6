"""Names of other libraries, papers and tutorials, and their equivalents here: the tables of foreign.toml.

`hints` answers a call with their arguments, and `Answering` one of their attributes.
"""

import re
import sys
import tomllib
from collections.abc import Container, Mapping
from importlib import import_module, resources
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clearhead.errors import NoAttributeError

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("clearhead._common").joinpath("foreign.toml").read_text(encoding="utf-8")
)


def by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new table by single names, from one whose keys are several names each, split at spaces.

    Example:
        >>> by_name({"q query": 1})
        {'q': 1, 'query': 1}
    """
    return {name: answer for names, answer in table.items() for name in names.split()}


WORDS: Mapping[str, Mapping[str, str]] = by_name(TABLES["arguments"])
"""The answers for an argument, by an argument of ours: the first one that a callable takes counts."""

SIZES = {name: tuple(ours.split()) for name, ours in TABLES["size-arguments"].items()}
"""Arguments that are a size, by the names that `foreign_names` has for sizes."""

PLACES: Mapping[str, str] = TABLES["positional"]
"""What is meant by arguments by place, by the first one that is taken by name."""

ATTRIBUTES = {owner: by_name(table) for owner, table in TABLES["attributes"].items()}
"""The answers for an attribute, by the package or class of the attribute."""

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")
"""The arguments by which models and layers receive their KV cache; of transformers, from 5.24 on, the last."""


def cache_of(words: Container[str]) -> str | None:
    """Return the name in `words` by which a call receives its KV cache, the first in `CACHES`; None if there is none.

    Example:
        >>> cache_of(["x", "layer_past"]), cache_of(["x"])
        ('layer_past', None)
    """
    return next((each for each in CACHES if each in words), None)


PLACES_OF_CLASSES = ("errors", "layers", "masks", "types")
"""The modules whose classes are named if somebody looks for them in clearhead."""


class Answering:
    """A class whose objects answer attributes of other libraries with a hint at their equivalents.

    Example:
        >>> class Edit(Answering): ...
        >>> Edit().steer
        Traceback (most recent call last):
        ...
        clearhead.errors.NoAttributeError: [attribute.name] Edit has no steer; write edit[layer]...
    """

    if not TYPE_CHECKING:  # a type checker knows what is not there

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)


def no_attribute(owner: object, name: str, first: str = "") -> AttributeError:
    """Return the AttributeError for an attribute that an object lacks, with its equivalent here if there is one.

    Without an equivalent and without `first` it is worded as Python's.

    Args:
        owner: the object.
        name: the attribute.
        first: a sentence before the answer of the table; "" for none.
    """
    kinds = type(owner).__mro__
    answers = [ATTRIBUTES.get(each.__name__, {}).get(name) for each in kinds]
    answer = next((each for each in answers if each and _is_for(owner, each)), "")
    return _error(owner, kinds[0].__name__, name, answer, first)


def no_name(package: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that a package lacks, with its equivalent here if there is one.

    A capitalised name is also looked for in the modules of PLACES_OF_CLASSES, which are imported.

    Example:
        >>> print(no_name("clearhead", "DynamicCache"))
        [attribute.name] clearhead has no DynamicCache; write clearhead.layers.GrowingCache(), one for each layer.
        >>> print(no_name("clearhead", "Rotary"))
        [attribute.name] clearhead has no Rotary; write clearhead.layers.Rotary.
    """
    root = package.partition(".")[0]
    answer = ATTRIBUTES.get(root, {}).get(name, "")
    if not answer and name[:1].isupper():  # no module, which may be imported just now
        places = [import_module(f"{root}.{each}") for each in PLACES_OF_CLASSES]
        answer = next((f"{each.__name__}.{name}" for each in places if name in dir(each)), "")
    return _error(sys.modules.get(package), package, name, answer)


def _is_for(owner: object, answer: str) -> bool:
    """Return False if an answer begins with an "x.name" whose name the object lacks; True for `clearhead.name`."""
    first = re.match(r"(\w+)\.(\w+)", answer)
    return first is None or first[1] == "clearhead" or hasattr(owner, first[2])


def _error(owner: object, kind: str, name: str, answer: str, first: str = "") -> AttributeError:
    """Return the AttributeError for a name that `owner`, of kind `kind`, lacks.

    `answer` is what to write instead, `first` a sentence before it; without both the error is worded as Python's.
    """
    if not answer and not first:
        what = f"module {kind!r}" if isinstance(owner, ModuleType) else f"{kind!r} object"
        return AttributeError(f"{what} has no attribute {name!r}", name=name, obj=owner)
    write = f"{'Or write' if first else 'write'} {answer}." if answer else ""
    return NoAttributeError(
        "attribute.name", f"{kind} has no {name}; {' '.join(filter(None, (first, write)))}"
    )
