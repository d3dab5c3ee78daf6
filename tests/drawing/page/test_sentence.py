"""The GPT that a page runs in the browser is PyTorch's."""

import json
from pathlib import Path

import torch

from clearhead.lessons.lesson import read_lesson
from docs.site.sentence import sentence_payload
from tests.drawing.element.test_core import run_in_node

LETTERS = [chr(code) for code in range(32, 127)]


def untrained() -> torch.nn.Module:
    """Return the GPT of the lesson with the weights that it begins with."""
    lesson = read_lesson(15)
    names: dict[str, object] = {"letters": LETTERS}
    (blocks,) = [each.source for each in lesson.of_role("python") if "class Block" in each.source]
    exec(lesson.solution + blocks, names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return model


def test_the_logits_and_maps_are_those_of_the_model(tmp_path: Path) -> None:
    model = untrained()
    payload, answers = tmp_path / "payload", tmp_path / "answers"
    payload.write_bytes(sentence_payload(model, LETTERS).to_bytes())
    ids = torch.randint(len(LETTERS), (40,))
    run_in_node("gpt_of_payload", tmp_path, [payload, answers, *ids.tolist()])
    found = json.loads(answers.read_text())

    rounded = model.half().double()
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in rounded.blocks:
        mine = block.attention
        mine.register_forward_hook(
            lambda mine, given, _: calls.append(
                (mine.split(mine.W_query(given[0])), mine.split(mine.W_key(given[0])))
            )
        )
    logits = rounded(ids[None])[0]
    made = torch.tensor(found["logits"], dtype=torch.float64).view(logits.shape)
    torch.testing.assert_close(made, logits.detach(), rtol=1e-9, atol=1e-9)
    for layer, (query, key) in enumerate(calls):
        scores = (query @ key.mT)[0] / query.shape[-1] ** 0.5
        later = torch.ones(40, 40, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        made = torch.tensor(found["maps"][layer], dtype=torch.float64).view(weights.shape)
        torch.testing.assert_close(made, weights.detach(), rtol=1e-9, atol=1e-9)
