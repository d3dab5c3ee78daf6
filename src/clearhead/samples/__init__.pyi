from .models import (
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
