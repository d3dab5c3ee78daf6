"""One edit of the definition: a stage that is replaced by a mistake."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import (
    Recipe,
)

Stage = Callable[..., Any]


@dataclass(frozen=True)
class StageEdit:
    """One edit of the definition.

    Attributes:
        code: the name of the mistake.
        way: the variant of its sentence in the catalogue.
        changes: the functions that replace stages, by the names of the fields of `Recipe`.
        needs: returns a true value if the edit is possible under a contract.
        values: the values of the sentence.
    """

    code: str
    way: str
    changes: Mapping[str, Stage]
    needs: Callable[[Contract], Any] = lambda contract: True
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """The part of the code before the dot."""
        return self.code.partition(".")[0]

    def applied(self, recipe: Recipe) -> Recipe:
        """Return a copy of the recipe with this edit."""
        return replace(recipe, **self.changes)


def causal(contract: Contract) -> bool | None:
    """Return `contract.causal`: True if causality is declared."""
    return contract.causal


def windowed(contract: Contract) -> bool:
    """Return True if a window is declared."""
    return contract.window is not None


def hides(contract: Contract) -> bool:
    """Return True if causality, a window or documents are declared; a mask that is passed does not count."""
    return bool(contract.causal) or contract.local


def biased(contract: Contract) -> bool:
    """Return True if a bias or ALiBi is declared."""
    return contract.bias is not None or contract.alibi_slopes is not None


def capped(contract: Contract) -> bool:
    """Return True if a softcap is declared."""
    return contract.softcap is not None


def rotary(contract: Contract) -> bool:
    """Return True if a rotation is declared."""
    return contract.rope is not None


def grouped(contract: Contract) -> bool:
    """Return True if the declared numbers of key heads and query heads differ, or only the first is declared."""
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


def looks_back(contract: Contract) -> bool:
    """Return True for a window that ends at its own token and goes back by more than one."""
    left, right = contract.window or (None, None)
    return left is not None and left > 1 and (contract.causal is True or right == 0)
