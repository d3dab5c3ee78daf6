"""The operation that a finding is about: where it stands in the code that is checked."""

import re
from pathlib import Path

from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.subject.refusals import place
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.operations import PRODUCTS, RANDOM
from clearhead.recording.weighing import Weighing

# By topic: the kinds of changes of the scores that are meant.
CHANGES = {
    "scale": ("scale", "scales"),
    "mask": ("hide", "fill", "number", "add"),
    "order": ("add", "cap"),
}
# What is about the mask as well; and what stands at the first product, or at the second.
OF_MASKS = ("padding", "empty", "leaks", "one-token", "nan", "lost")
SCORES = ("scale", "mask", "order", "positions", "batch", "softmax")
CONTEXT = ("heads", "product", "law")
MULTIPLIES = ("mul", *PRODUCTS)


def place_of(evidence: Evidence, topic: str, code: str) -> tuple[str, int] | None:
    """Return file and line of the operation that a finding is about.

    None if the topic has no operation, or its line is not known.
    """
    if topic == "repetition":
        names = evidence.lines.names.items()
        drawn = (n for n, name in names if name in RANDOM or "empty" in name)
        return evidence.lines.found.get(next(drawn, 0))
    if code in ("output.non-finite", "differs") and evidence.broke is not None:
        return evidence.broke[1]
    if code == "law.scores" and evidence.lines.halved is not None:
        return evidence.lines.found.get(evidence.lines.halved[0])
    if code == "shape.fixed" and evidence.settled.error is not None:
        at = place(evidence.settled.error)
        return None if at is None else at[:2]
    if code == "shape.fixed" and topic == "state" and isinstance(evidence, TokensEvidence):
        lines = re.findall(r"\n  (\S+), line (\d+)", "".join(evidence.lengths.values()))
        files = {Path(file).name: file for file, _ in evidence.lines.found.values()}
        return (files[lines[0][0]], int(lines[0][1])) if lines and lines[0][0] in files else None
    topic = "mask" if topic in OF_MASKS else topic
    if topic not in (*CHANGES, *SCORES, *CONTEXT):
        return None
    pairs = zip(evidence.observed, evidence.weighings, strict=True)
    numbers = (_operation(observed, weighing, topic) for observed, weighing in pairs)
    number = next((each for each in numbers if each is not None), None)
    lines = evidence.lines
    # In code that multiplies number by number no product is seen, and the last one is near the mistake.
    products = (n for n, name in reversed(lines.names.items()) if name in MULTIPLIES)
    known = (lines.found[n] for n in (number, *products) if n in lines.found)
    return next(known, None)


def _operation(observed: ObservedAttention, weighing: Weighing, topic: str) -> int | None:
    """Return the number of the recorded operation that a topic is about; None if the topic has none.

    Where what is meant was not recorded, such as a missing scale, it is the product of the scores for the topics of
    `SCORES`, the product with the value for those of `CONTEXT`, and None for "dropout".
    Of weights without a softmax it is the last operation on them.
    """
    kinds = CHANGES.get(topic, ())
    for change in weighing.changes:
        if change.kind in kinds and change.stage.place:
            return change.stage.place
    if topic == "softmax":
        made = [stage for stage in observed.stages if stage.place]
        for stage in (*(each for each in made if each.axis is not None), *made[-1:]):
            return stage.place
    if topic in SCORES:
        return observed.layout.scores.place
    return observed.layout.context.place if topic in CONTEXT else None
