# type: ignore
# Modules as people write them, hence without types.
"""Judge the mask by the tokens that outputs move with, where no attention is seen inside."""

import pytest
import torch
from torch import nn

import clearhead as ch


class Talking(nn.Module):
    """Heads that share their scores, so that no product of an attention is seen inside."""

    def __init__(self, hide, scale=1.0):
        super().__init__()
        self.hide, self.scale = hide, scale
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))
        self.talk = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (3, 4)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = self.talk((query @ key.mT / 2).movedim(1, -1)).movedim(-1, 1)
        places = torch.arange(x.shape[1])
        scores = self.hide(scores, places[:, None] - places)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def back(left):
    return lambda scores, far: scores.masked_fill((far < 0) | (far > left), -torch.inf)


def holes(scores, far):
    return scores.masked_fill((far < 0) | (far == 2), -torch.inf)


def steep(scores, far):
    return (scores - 20.0 * far.abs()).masked_fill(far < 0, -torch.inf)


def broken(scores, far):
    return back(99)(scores, far) / (torch.arange(len(far)) != 3)[:, None]


def ahead(scores, far):
    return scores.masked_fill((far < 0) & (far % 3 == 0), -torch.inf)


@pytest.mark.parametrize(
    ("hide", "declared", "code"),
    [
        (lambda scores, far: scores, {}, "mask.missing"),
        (ahead, {}, "differs"),
        (broken, {}, "differs"),
        (back(1), {"window": (2, 0)}, "mask.off-by-one"),
        (back(3), {"window": (2, 0)}, "mask.off-by-one"),
    ],
)
def test_who_moves_whom_names_the_mistake(hide, declared, code):
    torch.manual_seed(0)
    (finding,) = ch.check(Talking(hide), takes="x", causal=True, **declared).findings
    assert finding.code == code


@pytest.mark.parametrize("hide", [steep, holes])
def test_outputs_that_move_with_fewer_tokens_are_told_and_not_judged(hide):
    torch.manual_seed(0)
    report = ch.check(Talking(hide), takes="x", causal=True)
    assert report.outcome == "not judged", report
    assert any(each.startswith("some outputs do not change with") for each in report.told)
