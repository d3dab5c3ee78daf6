"""Kinds of descriptions that say themselves by which name a file has them."""

from typing import ClassVar


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
        super().__init_subclass__(**rest)
        if kind is not None:
            Filed.KINDS[kind] = cls
