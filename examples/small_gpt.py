"""A small GPT of clearhead's parts: learns the characters of a text file, and goes on writing.

python examples/small_gpt.py book.txt --steps 500
"""

import argparse
import math
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch


class Block(nn.Module):
    """Attention, then a feed-forward network, each beside what comes in."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        head_dim = width // num_heads
        parts = [ch.layers.QueryKeyNorm(head_dim), ch.layers.Rotary(head_dim)]
        self.attention_norm = nn.RMSNorm(width)
        self.attention = ch.MultiHeadAttention(
            width, num_heads=num_heads, mask=ch.causal(), parts=parts
        )
        self.network_norm = nn.RMSNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, cache: ch.layers.Cache | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache=cache)
        return x + self.network(self.network_norm(x))


class SmallGPT(nn.Module):
    """Scores of the next character, for each character of a text."""

    def __init__(
        self, characters: str, width: int = 64, num_heads: int = 4, depth: int = 2
    ) -> None:
        super().__init__()
        self.characters = characters
        self.embedding = nn.Embedding(len(characters), width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, len(characters))

    def forward(self, ids: Tensor, caches: list[ch.layers.Cache] | None = None) -> Tensor:
        x = self.embedding(ids)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, cache)
        return self.head(self.norm(x))

    def encode(self, text: str) -> Tensor:
        place = {character: index for index, character in enumerate(self.characters)}
        return torch.tensor([place[character] for character in text])


def loss(model: SmallGPT, windows: Tensor) -> Tensor:
    """Nats a character, mean over windows of (batch, tokens + 1)."""
    scores = model(windows[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def train(model: SmallGPT, ids: Tensor, steps: int, tokens: int = 64, batch: int = 32) -> None:
    """Learn from windows of a text, at random places."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    windows = ids.unfold(0, tokens + 1, 1)
    quiet = not Console().is_terminal
    for _ in track(range(steps), description="learning", disable=quiet, transient=True):
        optimizer.zero_grad()
        loss(model, windows[torch.randint(len(windows), (batch,))]).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def held_out(model: SmallGPT, ids: Tensor, tokens: int = 64) -> float:
    """Nats a character on a text that was not learned from."""
    return float(loss(model.eval(), ids.unfold(0, tokens + 1, tokens)))


@torch.no_grad()
def write(model: SmallGPT, beginning: str, new: int) -> str:
    """Go on with a text, one character after the other: the cache knows those before."""
    caches: list[ch.layers.Cache] = [ch.layers.GrowingCache() for _ in model.blocks]
    text, ids = beginning, model.encode(beginning)[None]
    for _ in range(new):
        chances = model(ids, caches)[0, -1].softmax(dim=-1)
        ids = chances.multinomial(1)[None]
        text += model.characters[int(ids)]
    return text


def main() -> None:
    arguments = argparse.ArgumentParser(description="Learn a text, and go on writing.")
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--steps", type=int, default=500)
    arguments.add_argument("--new", type=int, default=200, help="how many characters to write")
    given = arguments.parse_args()
    text = given.file.read_text(encoding="utf-8")
    model = SmallGPT("".join(sorted(set(text))))
    ids = model.encode(text)
    cut = int(0.9 * len(ids))
    train(model, ids[:cut], given.steps)
    print(f"held out: {held_out(model, ids[cut:]):.3f} nats a character")
    print(write(model, text[:20], given.new))


if __name__ == "__main__":
    main()
