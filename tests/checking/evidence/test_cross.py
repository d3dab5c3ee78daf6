# pyright: basic
"""Cross-attention: which sides are made of x."""

from types import SimpleNamespace

import pytest
import torch

from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.recording.provenance import NONE, Provenance


def rows(*tokens):
    return torch.tensor([tokens])


X, CONTEXT, UNKNOWN = rows(0, 1), rows(2, 3), rows(NONE, NONE)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([Provenance(X, CONTEXT, CONTEXT)], ("query",)),
        ([Provenance(X, X, CONTEXT)], ("query", "key")),
        ([Provenance(CONTEXT, X, X)], ("key", "value")),
        ([Provenance(X, CONTEXT, CONTEXT), Provenance(X, CONTEXT, X)], ("query", "value")),
        ([Provenance(X, CONTEXT, CONTEXT), None], None),
        ([Provenance(UNKNOWN, CONTEXT, CONTEXT)], None),
        ([], None),
    ],
)
def test_what_comes_from_x_alone(sources, expected):
    of_two = SimpleNamespace(inputs=(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)), sources=sources)
    assert CrossEvidence.from_x.func(of_two) == expected
