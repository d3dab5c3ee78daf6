"""Classes of descriptions that are saved in files under a name of their own."""

from typing import Any, ClassVar

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
        """Enter a subclass into `KINDS` under `kind`, if given."""
        super().__init_subclass__(**rest)
        if kind is not None:
            Filed.KINDS[kind] = cls

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the answers cached by calls."""
        return {name: value for name, value in vars(self).items() if name != ANSWERS}
