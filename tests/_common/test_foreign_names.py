"""One list of names used by other libraries, which every reader of modules uses."""

import re

import pytest

from clearhead._common import foreign_names
from clearhead._common.foreign_names import (
    LLAMA,
    SIZE_NAMES,
    TUTORIALS,
    ProjectionNames,
    is_output,
    role,
)
from tests.surface import ROOT

KINDS = [each for each in vars(foreign_names).values() if isinstance(each, ProjectionNames)]


@pytest.mark.parametrize("names", [*KINDS, *TUTORIALS], ids=lambda names: names.inputs[0])
def test_check_knows_what_convert_knows(names: ProjectionNames) -> None:
    # Latents are none of the three.
    expected = {3: ["q", "k", "v"], 2: [None, None], 1: ["qkv"]}
    assert [role(name) for name in names.inputs] == expected[len(names.inputs)]
    assert not any(role(name) for name in names.output)


def test_names_in_a_path_and_in_other_spellings() -> None:
    found = [role(name) for name in ("heads.2.Wq", "attn.linear_key", "V_proj.weight", "qkv", "x")]
    assert found == ["q", "k", "v", "qkv", None]
    assert [is_output(name) for name in ("Wo", "out_proj", "W_out", "W_v")] == [True] * 3 + [False]


def cells(page: str, row: str) -> list[str]:
    """The names in the first cell of the row of a page that has this text."""
    (line,) = (line for line in (ROOT / "docs" / page).read_text().splitlines() if row in line)
    return re.findall(r"`([^`]+)`", line.split("|")[1])


def test_other_tables_of_the_page_have_the_same_names() -> None:
    assert set(cells("names.md", "`n_kv_heads` | ")) <= set(SIZE_NAMES["num_kv_heads"])
    llama = cells("names.md", "see `convert`")
    assert llama == [*LLAMA.inputs, LLAMA.output[0]]
    first = [names.inputs[0] for names in TUTORIALS]
    assert set(cells("names.md", "the matrix, the linear layer")) <= set(first)
    assert set(cells("names.md", "the last linear layer")) <= set(TUTORIALS[0].output)


def test_the_page_on_layers_has_the_same_names() -> None:
    lines = (ROOT / "docs" / "layers.md").read_text().splitlines()
    known_by = [re.findall(r"`([^`]+)`", line.split("|")[2]) for line in lines if line[:2] == "| "]
    for names in KINDS:
        if names not in TUTORIALS[1:]:
            assert any(set(names.inputs) <= set(row) for row in known_by), names.kind
