"""RXNMapper's ALBERT: its weights under watch are those that the package reads in eager attention, and the atoms
that it maps are those of the package's own tests."""

import re

import pytest
import torch
import transformers

import clearhead as ch
from clearhead.samples import converters, models
from tests.examples.loading import example as module
from tests.samples.needing import rxnmapper

example = module("atom_mapping")

REACTION = "CC[O-]~[Na+].BrCC>>CCOCC"
MAPPED = [
    "[CH3:5][CH2:4][O-:3]~[Na+].Br[CH2:2][CH3:1]>>[CH3:1][CH2:2][O:3][CH2:4][CH3:5]",
    "[CH3:6][CH2:5][CH2:4][O-:3]~[Na+].Br[CH2:1][CH3:2]>>[CH3:1][CH2:2][O:3][CH2:4][CH2:5][CH3:6]",
    "[NH2:1][CH2:2][CH2:3][O-:4]~[Na+].Br[CH2:5][CH3:6]>>[NH2:1][CH2:2][CH2:3][O:4][CH2:5][CH3:6]",
    "[CH2:1]([CH3:2])[CH2:3][O-:4]~[Na+].Br[CH2:5][CH3:6]"
    ">>[CH2:1]([CH3:2])[CH2:3][O:4][CH2:5][CH3:6]",
]
"""The answers in the tests of rxnmapper 0.4.3, for reactions in the order in which they were asked."""


def test_tokens_are_those_of_the_package() -> None:
    tokenizer = rxnmapper().tokenizer
    ids = tokenizer(REACTION)["input_ids"]
    read = "[CLS] C C [O-] ~ [Na+] . Br C C >> C C O C C [SEP]"
    assert tokenizer.convert_ids_to_tokens(ids) == read.split()


@torch.no_grad()
def test_weights_are_those_of_its_own_eager_attention() -> None:
    model, tokenizer = rxnmapper().model, rxnmapper().tokenizer
    given = tokenizer(REACTION, return_tensors="pt")
    with ch.watch(model) as seen:
        model(**given)
    folder = models.folder_of("rxnmapper")
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    theirs = eager(**given, output_attentions=True).attentions
    calls = [call for layer in seen for call in seen.calls(layer)]
    assert len(calls) == len(theirs) == 12
    for mine, dense in zip(calls, theirs, strict=True):
        assert float((mine.dense() - dense).abs().max()) <= 1e-5


@pytest.mark.parametrize("mapped", MAPPED)
def test_atoms_are_mapped_as_the_package_maps_them(mapped: str) -> None:
    sides = [re.findall(converters.SMILES, side) for side in mapped.split(">>")]
    numbered = [
        [re.search(r":(\d+)]", token) for token in side if example.element(token)] for side in sides
    ]
    before, after = ([each and each[1] for each in side] for side in numbered)
    # The same without the numbers is the question.
    plain = re.sub(r"\[([A-Z][a-z]?)(H\d?)?:\d+]", r"\1", mapped)
    plain = re.sub(r"\[([A-Z][a-z]?[+-]):\d+]", r"[\1]", plain)
    tokens, weights = example.weights_of(rxnmapper(), plain)
    assert example.mapping(tokens, weights) == [before.index(number) for number in after]


def test_bonds_are_read_from_branches_and_rings() -> None:
    tokens = re.findall(converters.SMILES, "C1CC1(N)O.[Na+]")
    joined = example.neighbours(tokens).nonzero().tolist()
    bonds = [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4)]
    assert [tuple(pair) for pair in joined if pair[0] < pair[1]] == bonds
