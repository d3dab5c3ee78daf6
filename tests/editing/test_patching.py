"""Effects of z, measured and by gradients, held in every kind of model against attention that is written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from tests.editing.by_hand import by_hand, edited
from tests.editing.test_paths import EXACT, Patching, metric, model_of, terms
from tests.integrations.models import KINDS

effects: Any = ch.effects


def run(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The metric with its graph, and the contexts of the modules in their order."""
    hand = Patching()
    with edited(hand):
        number = metric(model(**given))
    return number, hand.kept["context"]


def estimates(model: Any, clean: dict[str, Tensor], corrupt: dict[str, Tensor]) -> Tensor:
    """(z of the clean run − z) · the gradient of z, of each head of each module."""
    with torch.no_grad():
        said = run(model, clean)[1]
    number, own = run(model, corrupt)
    found = zip(said, own, torch.autograd.grad(number, own), strict=True)
    return torch.cat([((new - z) * each).sum(dim=(0, 2, 3)) for new, z, each in found]).detach()


def single(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: each.float() if each.is_floating_point() else each for name, each in given.items()
    }


@pytest.mark.parametrize("name", [*KINDS, "vit", "whisper"])
def test_effects_and_their_estimates_are_those_by_hand(name: str) -> None:
    model, clean, corrupt = model_of(name)
    measured = effects(model, clean, corrupt, metric=metric, progress=False)
    estimated = effects(model, clean, corrupt, metric=metric, approximate=True, progress=False)
    hand = by_hand(model_of(name)[0])
    with torch.no_grad():
        whole, said = run(hand, clean)
        size = float(terms(hand(**corrupt)).abs().sum())
    rounding = 1e-10 if name in EXACT else torch.finfo(torch.float32).eps * size
    assert measured.clean == pytest.approx(float(whole), abs=rounding)
    heads = [(place, head) for place, each in enumerate(said) for head in range(each.shape[1])]
    for (place, head), row in zip(heads, measured, strict=True):
        patched = Patching()
        patched.put["context", place] = {head: said[place]}
        with torch.no_grad(), edited(patched):
            expected = float(metric(hand(**corrupt)))
        assert row.metric == pytest.approx(expected, abs=rounding)
    assert float(measured["change"].abs().max()) > 10 * rounding
    # What rounds to float32 on its way is no worse than a model that does so everywhere; two of these differ by twice
    # that.
    exact = estimates(hand, clean, corrupt)
    if name not in EXACT:
        rounded = estimates(hand.float(), single(clean), single(corrupt))
        rounding = 2 * float((rounded - exact).abs().max())
    torch.testing.assert_close(estimated["change"], exact, rtol=0, atol=rounding)
    assert float(exact.abs().max()) > 10 * rounding
