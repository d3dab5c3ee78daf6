"""An entry of the bank: an attention, how it is checked, and the name of its mistake, if any."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Made = TypeVar("Made")


@dataclass(frozen=True)
class Entry:
    """A subject with the arguments of `check`, and the code that it must get; None is clean."""

    subject: Any
    code: str | None
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.subject, "__name__", type(self.subject).__name__)


class Bank(list[Entry]):
    """Entries, each added by a decorator above its definition."""

    def wrong(self, code: str, takes: str, **arguments: Any) -> Callable[[Made], Made]:
        return self._adding(code, takes, arguments)

    def right(self, takes: str, **arguments: Any) -> Callable[[Made], Made]:
        return self._adding(None, takes, arguments)

    def _adding(self, code: str | None, takes: str, arguments: Any) -> Callable[[Made], Made]:
        def add(subject: Made) -> Made:
            self.append(Entry(subject, code, {"takes": takes, **arguments}))
            return subject

        return add
