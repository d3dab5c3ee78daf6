"""Classes of descriptions that are saved in files under a name of their own."""

import inspect
from abc import ABC
from typing import Any, ClassVar

from clearhead.errors import ArgumentTypeError

ANSWERS = "_answers"
"""The attribute of a mask that holds a tensor, in which small calls keep what they have computed of it."""


class Filed:
    """The base of descriptions that a file can hold: a class with `kind=` is written as its fields.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Even(Filed, kind="even"):
        ...     step: int
        >>> Filed.KINDS.pop("even").__name__
        'Even'
    """

    KINDS: ClassVar[dict[str, type]] = {}
    """The classes by their names in files, which outlive those of the classes."""

    def __init_subclass__(cls, kind: str | None = None, **rest: object) -> None:
        """Enter a subclass into `KINDS` under `kind`, if given; raise if it leaves all abstract methods undefined.

        A subclass that is a base itself, with ABC among its bases, or that defines one of them, may leave others.

        Raises:
            ArgumentTypeError: code `class.methods`, with the signature of each method that is missing.
        """
        super().__init_subclass__(**rest)
        found: dict[str, Any] = {name: getattr(cls, name, None) for name in dir(cls)}
        abstract = {k: v for k, v in found.items() if getattr(v, "__isabstractmethod__", False)}
        if abstract and ABC not in cls.__bases__ and vars(cls).keys().isdisjoint(abstract):
            lines = [f"{cls.__name__} must define what its base declares:"]
            for name, method in abstract.items():
                names = ", ".join(inspect.signature(method).parameters) if callable(method) else ""
                summary = (inspect.getdoc(method) or "").partition("\n")[0]
                lines.append(f"  def {name}({names}): {summary}")
            raise ArgumentTypeError("class.methods", "\n".join(lines))
        if kind is not None:
            Filed.KINDS[kind] = cls

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the answers cached by calls."""
        return {name: value for name, value in vars(self).items() if name != ANSWERS}
