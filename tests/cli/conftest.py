"""Models that the commands read, each loaded once a session."""

import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def loaded_once() -> Iterator[None]:
    from clearhead.integrations import huggingface

    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "load_for_pictures"):
            patch.setattr(huggingface, name, functools.cache(getattr(huggingface, name)))
        yield
