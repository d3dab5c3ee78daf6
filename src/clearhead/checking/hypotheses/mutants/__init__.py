"""The bank of mutants: the definition with one function replaced by a mistake.

What equals a mutant, to tolerance and on every input tried, makes that mistake.
"""

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.adding import ORDER, SINKS
from clearhead.checking.hypotheses.mutants.head_splits import GROUPS, HEADS, MERGES, TAKEN
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.mutants.rope import ROPE
from clearhead.checking.hypotheses.mutants.visibility import ALIGNMENT, GIVEN, HIDING, MASKS
from clearhead.checking.hypotheses.mutants.weights import SCALES, SOFTMAX


def bank(contract: Contract, *, given: bool, masked: bool, whole: bool = True) -> list[Mutant]:
    """The mutants that make sense for a contract.

    Args:
        contract: what is declared.
        given: a mask is handed in.
        masked: something is hidden.
        whole: heads are shared and merged by what is judged; else it is what happens inside.
    """
    found = [
        *MASKS,
        *(HIDING if masked else ()),
        *SOFTMAX,
        *SCALES,
        *ORDER,
        *SINKS,
        *GROUPS,
        *([*HEADS, *MERGES, *TAKEN] if whole else ()),
        *ROPE,
        *ALIGNMENT,
        *(GIVEN if given else ()),
    ]
    return [mutant for mutant in found if mutant.needs(contract)]
