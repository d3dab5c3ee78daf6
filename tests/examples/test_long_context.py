from typing import Any

import torch

import clearhead as ch
from tests.examples.loading import example
from tests.sharding import ranks

TOKENS = 101


def trained(group: Any, how: str) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    gpt = example("long_context")
    torch.manual_seed(0)
    model = gpt.LongGPT(width=8, num_heads=2).double()
    text = torch.randint(256, (1, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    given: dict[str, Any] = {"world": 1} if group is None else {"mesh": group}
    where = ch.across(**given, tokens=TOKENS, mask=ch.causal(), how=how)
    return gpt.train(model, text, where, steps=3), *gpt.look(model, text, where)


def on_ranks(group: Any) -> list[Any]:
    return [trained(group, how) for how in ("gather", "ring", "heads")]


def test_the_losses_are_those_of_one_process() -> None:
    losses, entropy, received = trained(None, "gather")
    assert losses[2] < losses[0]
    for found in ranks.run(2, on_ranks):
        for each in found:
            torch.testing.assert_close(torch.tensor(each[0]), torch.tensor(losses))
            torch.testing.assert_close(each[1], entropy)
            torch.testing.assert_close(each[2], received)
