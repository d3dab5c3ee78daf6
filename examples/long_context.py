"""Train a small GPT on one text that ranks share, and look at its attention, shared as well.

torchrun --nproc-per-node 2 examples/long_context.py book.txt --tokens 4096 --steps 5

On one process it prints the same losses.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch


class Block(nn.Module):
    """Attention, then a feed-forward network, each beside what comes in."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        parts = [ch.layers.Rotary(width // num_heads)]
        self.attention_norm, self.network_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = ch.MultiHeadAttention(
            width, num_heads=num_heads, num_kv_heads=1, mask=ch.causal(), parts=parts
        )
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, where: ch.types.Sharding) -> Tensor:
        x = x + self.attention(self.attention_norm(x), across=where)
        return x + self.network(self.network_norm(x))


class LongGPT(nn.Module):
    """Scores of the next byte, for each byte of this rank."""

    def __init__(self, width: int = 32, num_heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.head = nn.Linear(width, 256)

    def forward(self, ids: Tensor, where: ch.types.Sharding) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, where)
        return self.head(x)


def train(model: LongGPT, text: Tensor, where: ch.types.Sharding, steps: int) -> list[float]:
    """The loss of each step, nats a byte, over the whole text."""
    # Labels are shifted first and shared then: the next byte may be another rank's.
    ids, labels = (where.shard(each, dim=-1) for each in (text[:, :-1], text[:, 1:]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        scores = model(ids, where)
        total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = total / where.tokens
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = where.sum(parameter.grad)
        optimizer.step()
        losses.append(float(where.sum(loss.detach())))
    return losses


def look(model: LongGPT, text: Tensor, where: ch.types.Sharding) -> tuple[Tensor, Tensor]:
    """The mean entropy of each head of the first layer, and the weight that each byte receives."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    with torch.no_grad():
        x = block.attention_norm(model.embedding(where.shard(text[:, :-1], dim=-1)))
        matrix = block.attention.weights(x, across=where)
        entropy = where.sum(matrix.entropy().sum(dim=-1)) / where.tokens
        return entropy[0], matrix.received()[0, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on one text that ranks share.")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--how", choices=["gather", "ring", "heads"], default="gather")
    given = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LongGPT().double()
    text = torch.tensor(list(given.text.read_bytes()[: given.tokens + 1]))[None]
    where = ch.across(dist.group.WORLD, tokens=text.shape[1] - 1, mask=ch.causal(), how=given.how)
    losses = train(model, text, where, given.steps)
    entropy, received = look(model, text, where)
    if where.rank == 0:
        print("losses (nats a byte):", *(f"{loss:.9f}" for loss in losses))
        print("mean entropy of each head (nats):", *(f"{each:.6f}" for each in entropy))
        print(f"the byte that receives most: {int(received.argmax())}, {received.max():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
