"""The GPT that a page runs in the browser is PyTorch's."""

import json
from pathlib import Path
from typing import Any

import torch

import clearhead as ch
from clearhead.lessons.lesson import read_lesson
from docs.site.sentence import sentence_payload
from tests.drawing.element.test_core import run_in_node

LETTERS = [chr(code) for code in range(32, 127)]


def untrained() -> Any:
    """Return the GPT of the lesson with the weights that it begins with."""
    lesson = read_lesson(15)
    names: dict[str, object] = {"letters": LETTERS}
    (blocks,) = [each.source for each in lesson.of_role("python") if "class Block" in each.source]
    exec(lesson.solution + blocks, names)
    return names["model"]


def test_the_next_letters_and_maps_are_those_of_the_model(tmp_path: Path) -> None:
    model = untrained()
    payload, answers = tmp_path / "payload", tmp_path / "answers"
    payload.write_bytes(sentence_payload(model, LETTERS).to_bytes())
    ids = torch.randint(len(LETTERS), (40,))
    run_in_node("gpt_of_payload", tmp_path, [payload, answers, *ids.tolist()])

    maps: list[torch.Tensor] = []

    def keep(mine: Any, given: tuple[torch.Tensor], _: object) -> None:
        query, key = (mine.split(part(given[0])) for part in (mine.W_query, mine.W_key))
        maps.append(ch.AttentionMatrix(query, key, mask=ch.causal())[:])

    for block in model.double().blocks:
        block.attention.register_forward_hook(keep)
    with torch.no_grad():
        expected = {"next": model(ids[None])[0].softmax(dim=-1), "maps": torch.cat(maps)}
    for name, found in json.loads(answers.read_text()).items():
        made = torch.tensor(found, dtype=torch.float64).view(expected[name].shape)
        torch.testing.assert_close(made, expected[name], rtol=1e-9, atol=1e-9)
