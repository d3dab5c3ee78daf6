"""An encoder and a decoder with cross-attention, on a language that is made up.

A sentence is some letters. Its translation has each letter in another alphabet, neighbours change
places, and now and then a letter is misspelled. Only by looking at the sentence can it be told.

    python examples/translate.py --steps 600
"""

import argparse
import math

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch

LETTERS, LONGEST, MISSPELLED = 12, 10, 0.1
START = LETTERS


def sentences(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences, their translations and which letters are real, each (batch, LONGEST)."""
    source = torch.randint(LETTERS, (batch, LONGEST))
    lengths = 2 * torch.randint(1, LONGEST // 2 + 1, (batch, 1))
    valid = torch.arange(LONGEST) < lengths
    target = (5 * source + 3) % LETTERS  # the other alphabet
    target = target.unflatten(1, (-1, 2)).flip(2).flatten(1)
    wrong = torch.rand(target.shape) < MISSPELLED
    return source, torch.where(wrong, torch.randint(LETTERS, target.shape), target), valid


def least_loss() -> float:
    """Nats a letter that nobody can do without: how uncertain the misspelling is."""
    each = MISSPELLED / LETTERS
    right = 1 - MISSPELLED + each
    return -right * math.log(right) - (LETTERS - 1) * each * math.log(each)


class Network(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )


class Translator(nn.Module):
    """Scores of the next letter of a translation."""

    def __init__(self, width: int = 48, num_heads: int = 4) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 1, width)
        self.places = nn.Embedding(LONGEST, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.reading = ch.MultiHeadAttention(width, num_heads=num_heads)
        self.read_network = Network(width)
        self.writing = ch.MultiHeadAttention(width, num_heads=num_heads, mask=ch.causal())
        self.looking = ch.MultiHeadAttention(width, num_heads=num_heads)
        self.write_network = Network(width)
        self.head = nn.Linear(width, LETTERS)

    def read(self, source: Tensor, valid: Tensor) -> Tensor:
        """The sentence as the decoder looks at it, (batch, LONGEST, width)."""
        x = self.letters(source) + self.places.weight
        x = x + self.reading(self.norms[0](x), valid=valid)
        return x + self.read_network(x)

    def write(
        self,
        sentence: Tensor,
        valid: Tensor,
        target: Tensor,
        first: int = 0,
        caches: tuple[ch.layers.Cache, ch.layers.Cache] | None = None,
    ) -> Tensor:
        """Scores of what follows each letter of target, whose first one stands at `first`."""
        own, of_sentence = caches or (None, None)
        x = self.letters(target) + self.places.weight[first : first + target.shape[1]]
        x = x + self.writing(self.norms[1](x), cache=own)
        sentence = self.norms[2](sentence)
        x = x + self.looking(self.norms[3](x), sentence, valid=valid, cache=of_sentence)
        return self.head(x + self.write_network(x))


def loss(model: Translator, batch: int) -> Tensor:
    """Nats a letter, mean over the real letters of new sentences."""
    source, target, valid = sentences(batch)
    before = F.pad(target[:, :-1], (1, 0), value=START)
    scores = model.write(model.read(source, valid), valid, before)
    return F.cross_entropy(scores[valid], target[valid])


def train(model: Translator, steps: int, batch: int = 128) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    quiet = not Console().is_terminal
    for _ in track(range(steps), description="learning", disable=quiet, transient=True):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def translate(model: Translator, source: Tensor, valid: Tensor) -> Tensor:
    """The likeliest letter at each step; the sentence is projected for the decoder once."""
    sentence = model.read(source, valid)
    caches = ch.layers.StaticCache(LONGEST), ch.layers.StaticCache(LONGEST)
    last, letters = torch.full_like(source[:, :1], START), []
    for place in range(LONGEST):
        last = model.write(sentence, valid, last, place, caches)[:, -1:].argmax(dim=-1)
        letters.append(last)
    return torch.cat(letters, dim=1)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Learn to translate a made-up language.")
    arguments.add_argument("--steps", type=int, default=600)
    model = Translator()
    train(model, arguments.parse_args().steps)
    with torch.no_grad():
        found = float(loss(model, 2048))
    print(f"new sentences: {found:.3f} nats a letter; {least_loss():.3f} is the least there is")
    source, target, valid = sentences(4)
    for rows in zip(source, translate(model, source, valid), target, valid, strict=True):
        words = ["".join(chr(97 + int(i)) for i in row[rows[3]]) for row in rows[:3]]
        print("{:>10} → {:10} ({} was given)".format(*words))


if __name__ == "__main__":
    main()
