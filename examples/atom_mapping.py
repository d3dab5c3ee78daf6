"""Atoms through a reaction: which atom of the product was which of the reactants, from one head.

    clearhead samples install rxnmapper
    python examples/atom_mapping.py "CC[O-]~[Na+].BrCC>>CCOCC"

Head 5 of layer 10 of RXNMapper looks from the atoms of the product to where they came from, without anybody having
told it (Schwaller et al., 2021, https://doi.org/10.1126/sciadv.abe4166). The most certain atom is mapped first, and its
neighbours are then looked for beside it.
"""

import re
import sys

import torch
from torch import Tensor

import clearhead as ch

LAYER, HEAD = 10, 5
BESIDE = 90.0
"""The factor by which the neighbours of mapped atoms are likelier to belong together."""

ATOM = re.compile(r"\[\d*([A-Za-z][a-z]?)[^\]]*]|(Br|Cl|[BCNOPSFIbcnops])$")


def element(token: str) -> str:
    """The element of a token, in small letters; "" for what is no atom."""
    found = None if token in ("[CLS]", "[SEP]") else ATOM.match(token)
    return (found.group(1) or found.group(2)).lower() if found else ""


def neighbours(tokens: list[str]) -> Tensor:
    """True for the atoms that a bond joins, (atoms, atoms), of molecules in SMILES."""
    atoms = [place for place, token in enumerate(tokens) if element(token)]
    number = {place: atom for atom, place in enumerate(atoms)}
    joined = torch.zeros(len(atoms), len(atoms), dtype=torch.bool)
    last: int | None = None
    branches: list[int | None] = []
    rings: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if place in number:
            if last is not None:
                joined[last, number[place]] = True
            last = number[place]
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token in (".", "~", ">>"):
            last = None
        elif token.lstrip("%").isdigit() and last is not None:
            if token in rings:
                joined[rings.pop(token), last] = True
            else:
                rings[token] = last
    return joined | joined.mT


@torch.no_grad()
def weights_of(sample: ch.samples.Sample, reaction: str) -> tuple[list[str], Tensor]:
    """The tokens of a reaction, and the weights of the head between them."""
    given = sample.tokenizer(reaction, return_tensors="pt")
    with ch.watch(sample.model, heads=[HEAD]) as seen:
        sample.model(**given)
    # The layers share their weights: they are the calls of one module.
    calls = [call for layer in seen for call in seen.calls(layer)]
    return sample.tokenizer.convert_ids_to_tokens(given["input_ids"][0]), calls[LAYER][0, 0]


def mapping(tokens: list[str], weights: Tensor) -> list[int]:
    """For each atom of the product the number of its atom among the reactants, −1 for none."""
    arrow = tokens.index(">>")
    atoms = [place for place, token in enumerate(tokens) if element(token)]
    before = [place for place in atoms if place < arrow]
    after = [place for place in atoms if place > arrow]
    both = weights[after][:, before] + weights[before][:, after].mT
    kinds = [[element(tokens[place]) for place in side] for side in (after, before)]
    alike = torch.tensor([[mine == other for other in kinds[1]] for mine in kinds[0]])
    likely = torch.where(alike, both, 0.0).double()
    beside = neighbours(tokens[arrow + 1 :]), neighbours(tokens[:arrow])
    found = [-1] * len(after)
    for _ in after:
        shares = likely / likely.sum(dim=1, keepdim=True).clamp(min=1e-300)
        if float(shares.max()) < 1e-8:
            break
        atom, origin = divmod(int(shares.argmax()), len(before))
        found[atom] = origin
        likely[beside[0][atom][:, None] & beside[1][origin]] *= BESIDE
        likely[atom], likely[:, origin] = 0.0, 0.0
    return found


def main() -> None:
    reaction = sys.argv[1] if len(sys.argv) > 1 else "CC[O-]~[Na+].BrCC>>CCOCC"
    tokens, weights = weights_of(ch.samples.rxnmapper(), reaction)
    atoms = [place for place, token in enumerate(tokens) if element(token)]
    arrow = tokens.index(">>")
    product = [place for place in atoms if place > arrow]
    for place, origin in zip(product, mapping(tokens, weights), strict=True):
        source = "nothing" if origin < 0 else f"{tokens[atoms[origin]]} (token {atoms[origin]})"
        print(f"{tokens[place]:6} (token {place}) was {source}")


if __name__ == "__main__":
    main()
