"""The operation that a finding is about: where it stands in the code that is checked."""

from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.observed import ObservedAttention
from clearhead.checking.evidence.weighing import Weighing

# By topic: the kinds of changes of the scores that are meant.
CHANGES = {
    "scale": ("scale", "scales"),
    "mask": ("hide", "fill", "number", "add"),
    "order": ("add", "cap"),
    "dropout": ("dropout",),
}
# What is about the mask as well; and what stands at the first product, or at the second.
OF_MASKS = ("padding", "empty", "leaks", "one-token", "nan", "lost")
SCORES = ("scale", "mask", "order", "positions", "batch", "softmax")
CONTEXT = ("heads", "product")


def place_of(evidence: Evidence, topic: str) -> tuple[str, int] | None:
    """File and line of the operation that a finding of this topic is about; None where it is about none."""
    topic = "mask" if topic in OF_MASKS else topic
    if topic not in (*CHANGES, *SCORES, *CONTEXT):
        return None
    try:
        pairs = zip(evidence.observed, evidence.weighings, strict=True)
        numbers = (_operation(observed, weighing, topic) for observed, weighing in pairs)
        number = next((each for each in numbers if each is not None), None)
        return None if number is None else evidence.lines.found.get(number)
    except Exception:  # what cannot be read has no line
        return None


def _operation(observed: ObservedAttention, weighing: Weighing, topic: str) -> int | None:
    """The number of the operation, in the call that was recorded."""
    kinds = CHANGES.get(topic, ())
    for change in weighing.changes:
        if change.kind in kinds and change.stage.place:
            return change.stage.place
    if topic == "softmax":
        for stage in observed.stages:
            if stage.axis is not None and stage.place:
                return stage.place
    if topic in SCORES:
        return observed.layout.scores.place
    return observed.layout.context.place if topic in CONTEXT else None
