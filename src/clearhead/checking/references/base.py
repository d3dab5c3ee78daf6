"""What a mutant is."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from clearhead.checking.contract import Contract
from clearhead.checking.recipes import Recipe


@dataclass(frozen=True)
class Mutant:
    """A mistake as functions that stand in for those of the definition."""

    code: str
    detail: str
    likely: str
    changes: dict[str, Callable[..., Any]]
    needs: Callable[[Contract], Any] = lambda contract: True

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this mistake in it."""
        return replace(recipe, **self.changes)


def is_masked(contract: Contract) -> bool:
    """Whether the contract hides anything by itself."""
    return bool(contract.causal) or contract.window is not None
