"""The bank of mutants: wrong references, the definition with one function replaced by a mistake.

A subject that equals a mutant, to tolerance and on every input tried, makes that mistake. Each
mutant says in `likely` what line makes it and what line is right.
"""

from clearhead.checking.contract import Contract
from clearhead.checking.references.adding import ORDER, SINKS
from clearhead.checking.references.base import Mutant
from clearhead.checking.references.heads import HEADS, MERGES, SPLITS
from clearhead.checking.references.hiding import HIDING
from clearhead.checking.references.masks import ALIGNMENT, GIVEN, MASKS
from clearhead.checking.references.rope import ROPE
from clearhead.checking.references.weighing import SCALES, SOFTMAX


def bank(contract: Contract, *, given: bool, flat: bool, masked: bool) -> list[Mutant]:
    """The mutants that make sense for a contract.

    Args:
        contract: what is declared.
        given: whether a mask is handed to the subject.
        flat: whether heads are split and merged by the subject.
        masked: whether anything is hidden at all.
    """
    found = [
        *MASKS,
        *(HIDING if masked else ()),
        *SOFTMAX,
        *SCALES,
        *ORDER,
        *SINKS,
        *HEADS,
        *MERGES,
        *ROPE,
        *ALIGNMENT,
    ]
    if given:
        found += GIVEN
    if flat:
        found += SPLITS
    return [mutant for mutant in found if mutant.needs(contract)]
