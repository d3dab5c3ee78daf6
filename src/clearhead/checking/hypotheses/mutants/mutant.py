"""A mistake as a hypothesis: the definition with some of its functions replaced."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import Recipe


@dataclass(frozen=True)
class Mutant:
    """A mistake as functions that stand in for those of the definition.

    Attributes:
        code: its name.
        way: which of the sentences of the catalogue says it.
        changes: the functions, by the names that `Recipe` has for them.
        needs: whether it makes sense under a contract.
        values: what the sentence is filled with.
    """

    code: str
    way: str
    changes: Mapping[str, Callable[..., Any]]
    needs: Callable[[Contract], Any] = lambda contract: True
    values: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this mistake in it."""
        return replace(recipe, **self.changes)


def hides(contract: Contract) -> bool:
    """True if the contract hides anything by itself."""
    return bool(contract.causal) or contract.window is not None
