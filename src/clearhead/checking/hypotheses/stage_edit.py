"""One edit of the definition: a stage that is replaced by a mistake."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import Recipe

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


def declared(*fields: str) -> Callable[[Contract], bool]:
    """Return a function that is True for a contract that declares one of these fields, which False does not."""
    return lambda contract: any(
        getattr(contract, each) is not None and getattr(contract, each) is not False
        for each in fields
    )


def grouped(contract: Contract) -> bool:
    """Return True if the declared numbers of key heads and query heads differ, or only the first is declared."""
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


def looks_back(contract: Contract) -> bool:
    """Return True for a window that ends at its own token and goes back by more than one."""
    left, right = contract.window or (None, None)
    return left is not None and left > 1 and (contract.causal is True or right == 0)
