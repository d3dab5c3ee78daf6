"""One piece of attention code, and what is true of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from tests.checking.bank.texts import digest, module_of


@dataclass(frozen=True)
class Entry:
    """A piece of code, how it is called, what its author declares, and its mistake.

    Args:
        name: unique in the bank.
        object: the expression that makes the function, the module or the class.
        takes: the calling convention.
        declared: what its author would declare.
        codes: the names that are right for the mistake; empty if the code is correct.
        text: the program.
        line: the line of the program that is at fault, without its indentation; empty if none is reported.
        facts: what is true in addition and is not declared; the definition receives it, `check` does not.
        unproved: why the definition cannot show what the code does; empty where it does.
    """

    name: str
    object: str
    takes: str
    declared: Mapping[str, Any]
    codes: tuple[str, ...]
    text: str
    line: str
    facts: Mapping[str, Any]
    unproved: str

    @property
    def module(self) -> ModuleType:
        """The program as a module, the same one every time."""
        return module_of(f"bank_{digest(self.text)}", self.text)

    def make(self) -> Any:
        """Make the object with a fixed seed; the caller's random state is unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return eval(self.object, self.module.__dict__)

    def options(self) -> dict[str, Any]:
        """Return what is declared; a bias is a function of the program."""
        if "bias" in self.declared:
            return {**self.declared, "bias": getattr(self.module, self.declared["bias"])}
        return dict(self.declared)

    def with_facts(self) -> "Entry":
        """Return the entry with its facts among what is declared."""
        sizes = {**self.facts.get("sizes", {}), **self.declared.get("sizes", {})}
        declared = {**self.facts, **self.declared}
        return replace(self, declared={**declared, "sizes": sizes} if sizes else declared)
