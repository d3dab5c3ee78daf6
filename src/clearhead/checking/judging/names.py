"""The names of what a witness saw: that member of the family of mistakes which gives the same.

A mask and a scale are named here and nowhere else, whichever witness saw them.
"""

from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.mutants.visibility import MASKS
from clearhead.checking.hypotheses.mutants.weights import SCALES
from clearhead.checking.hypotheses.recipe import RIGHT, Setting
from clearhead.checking.thresholds import SLOPE

RIGHT_MASK = Mutant("", "", {})
TOPICS = ("mask", "softmax", "scale", "order", "product")
# Which functions of a recipe a topic is about.
TOUCHES = {
    "mask": {"visible", "hide", "after", "start"},
    "softmax": {"share", "after", "hide"},
    "scale": {"scale", "prepare"},
    "order": {"prepare", "share"},
    "product": {"after", "arrange", "around"},
    "heads": {"arrange", "group", "merge", "end", "around"},
    "positions": {"rotate", "arrange"},
}
BY_CODE = {
    "mask": "mask",
    "softmax": "softmax",
    "scale": "scale",
    "bias": "order",
    "softcap": "order",
    "weights": "product",
    "heads": "heads",
    "rope": "positions",
    "key": "product",
    "law": "product",
    "parameter": "product",
    "differs": "order",
}


def topic_of(code: str) -> str:
    """The topic of a name that numbers can have."""
    return BY_CODE[code.partition(".")[0]]


def setting_of(contract: Contract, tokens: int, heads: int = 1) -> Setting:
    """The setting of tokens that see each other, of which nothing else is known."""
    return Setting(contract, 1, heads, heads, tokens, tokens, 1, 1)


def mask_named(seen: Tensor, at: Setting, told: Tensor) -> Mutant | None:
    """The mistake whose mask was seen, RIGHT_MASK for that of the contract, or None for neither;
    `told` are the pairs that the witness can see."""
    for mutant in (RIGHT_MASK, *MASKS):
        if mutant.needs(at.contract):
            other = mutant.applied(RIGHT).seen(at) ^ seen
            if not (other & told).any():
                return mutant
    return None


def scale_named(used: float, at: Setting) -> list[Mutant]:
    """The mistakes that multiply the scores by this number."""
    alone = [each for each in SCALES if set(each.changes) == {"scale"} and each.needs(at.contract)]
    return [each for each in alone if abs(used / each.changes["scale"](at) - 1) < SLOPE]
