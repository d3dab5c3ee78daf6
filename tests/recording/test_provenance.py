"""The token that each row of query, key and value comes from."""

import torch

from clearhead.recording.provenance import NONE, Provenance


def rows(*blocks: list[int]) -> torch.Tensor:
    return torch.tensor(blocks)


def test_a_block_whose_queries_are_learned_is_known_by_its_keys() -> None:
    learned, read = rows([NONE], [NONE]), rows([NONE, NONE], [0, 1])
    assert Provenance(learned, read, read).blocks.tolist() == [False, True]
