"""Effects of z, measured and by gradients, held in every kind of model against attention that is written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from tests.editing.by_hand import by_hand, edited
from tests.editing.test_paths import Patching, metric
from tests.integrations.models import Exact, pair

effects: Any = ch.effects


def run(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The metric with its graph, and the contexts of the modules in their order."""
    hand = Patching()
    with edited(hand):
        number = metric(model(**given))
    return number, hand.kept["context"]


def patched(model: Any, given: dict[str, Tensor], place: int, head: int, new: Tensor) -> float:
    """The metric where one head has another context."""
    hand = Patching()
    hand.put["context", place] = {head: new}
    with edited(hand):
        return float(metric(model(**given)))


def estimates(model: Any, clean: dict[str, Tensor], corrupt: dict[str, Tensor]) -> Tensor:
    """(z of the clean run − z) · the gradient of z, of each head of each module."""
    with torch.no_grad():
        said = run(model, clean)[1]
    number, own = run(model, corrupt)
    found = zip(said, own, torch.autograd.grad(number, own), strict=True)
    return torch.cat([((new - z) * each).sum(dim=(0, 2, 3)) for new, z, each in found]).detach()


KINDS = ("llama", "gemma2", "gpt_oss", "deepseek_v3", "t5", "whisper", "vit")
"""One of each: rotary positions, a softcap, sinks, latent attention, a bias, two texts, and no mask."""


@pytest.mark.parametrize("name", KINDS)
def test_effects_and_their_estimates_are_those_by_hand(name: str) -> None:
    model, clean, corrupt = pair(name)
    hand = by_hand(pair(name)[0])
    with Exact():
        measured = effects(model, clean, corrupt, metric=metric, progress=False)
        estimated = effects(model, clean, corrupt, metric=metric, approximate=True, progress=False)
        exact = estimates(hand, clean, corrupt)
        with torch.no_grad():
            whole, said = run(hand, clean)
            alone = [
                patched(hand, corrupt, place, head, each)
                for place, each in enumerate(said)
                for head in range(each.shape[1])
            ]
    assert measured.clean == pytest.approx(float(whole), rel=0, abs=1e-10)
    assert measured["metric"].tolist() == pytest.approx(alone, rel=0, abs=1e-10)
    assert float(measured["change"].abs().max()) > 1e-4
    torch.testing.assert_close(estimated["change"], exact, rtol=1e-10, atol=1e-10)
    assert float(exact.abs().max()) > 1e-4
