"""Samples for tests: a test that needs one is skipped, with the reason, where it is not installed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import transformers

from clearhead import samples
from clearhead.errors import MissingExtraError
from clearhead.samples import Sample, models


@cache
def _loaded(load: Callable[[], Sample]) -> Sample | str:
    try:
        return load()
    except MissingExtraError as error:
        return str(error).replace("\n", " ")


def needing(load: Callable[[], Sample]) -> Sample:
    """The sample, loaded once; skips the test without it."""
    found = _loaded(load)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def smollm2() -> Sample:
    return needing(samples.smollm2)


def rxnmapper() -> Sample:
    return needing(samples.rxnmapper)


def whisper() -> Sample:
    return needing(samples.whisper)


def dinov2() -> Sample:
    return needing(samples.dinov2)


@cache
def eager_smollm2() -> Any:
    """The same weights in eager attention, which gives dense ones."""
    folder = models.folder_of("smollm2")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
