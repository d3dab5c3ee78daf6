"""Mistakes that are read in what was written, or in what a module keeps, where the outcome is not right."""

from dataclasses import replace
from typing import Any

from torch import nn

from clearhead._common.foreign_names import role
from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.lessons import BATCHES
from clearhead.checking.mending.caching import left_behind, never_kept
from clearhead.checking.mending.mends import Promises
from clearhead.checking.mending.naming import chained, one_sample, read_first
from clearhead.checking.mending.outcomes import is_right, is_sized
from clearhead.checking.report import Finding
from clearhead.checking.reporting import defined_in
from clearhead.checking.subject.subject import Subject

# What is said of samples where rows are taken of one of them alone.
OF_SAMPLES = ("law.samples", "batch.mixed", "context.ignored", "law.pairs")


def of_source(
    first: Finding | None, thing: Any, subject: Subject, row: LessonRow, promises: Promises
) -> Finding | None:
    """A mistake that can be read in what was written, or in what it keeps; None where none is read."""
    if first is None or subject.module is None:
        return None
    if first.code == "cache.stale":
        names = left_behind(subject.fresh().run)
        if not names:
            return None
        told = {"names": " and ".join(f"self.{each}" for each in names)}
        place = defined_in(getattr(type(subject.module), "reset", None))
        return replace(first, sentence=words.filled("outcome", "left", told), place=place)
    if first.code == "cache.offset":
        names = never_kept(subject.fresh().run)
        if names:
            told = {"names": " and ".join(f"self.{each}" for each in names)}
            sentence = words.filled("outcome", "never-kept", told)
            place = read_first(thing, "step", names[0]) or first.place
            return replace(first, sentence=sentence, place=place)
    if first.code == "differs" and not as_told(subject):
        names = (name for name, _ in subject.module.named_parameters() if role(name) == "v")
        told = {"said": first.sentence, "name": next(names).removesuffix(".weight")}
        return replace(first, sentence=words.filled("outcome", "width", told), place=None)
    if first.code == "parameter.missing":
        plain = next((n for n, each in vars(subject.module).items() if _has_layers(each)), None)
        if plain is not None:
            sentence = words.filled("outcome", "plain-list", {"name": f"self.{plain}"})
            return replace(first, sentence=sentence)
    if first.code.startswith(OF_SAMPLES) and row.number >= BATCHES:
        one = one_sample(thing)
        if one is not None and is_right(subject.fresh().run, row, promises, samples=1):
            told = {"text": one.text, "rows": one.rows, "which": one.which}
            sentence = words.filled("outcome", "one-sample", told)
            return replace(first, sentence=sentence, measured="", place=one.place)
    link = chained(thing)
    if link is not None:
        sentence = words.filled("outcome", "renamed" if link.at else "chained", link._asdict())
        return replace(first, sentence=sentence, place=link.place)
    return None


def _has_layers(kept: Any) -> bool:
    """True of a plain list of layers."""
    several = kept if isinstance(kept, list | tuple) else ()
    return any(isinstance(each, nn.Module) for each in several)


def as_told(subject: Subject) -> bool:
    """True where values are as wide as the constructor was told."""
    return subject.module is None or is_sized(subject.module, subject.args)
