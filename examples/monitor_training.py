"""The heads of a model in training, at each step: largest score, entropy, share of the first token.

    python examples/monitor_training.py TEXT [PICTURE.png]

Scores that grow without bound are how training diverges; a norm of query and key bounds them
(Dehghani et al., 2023, https://arxiv.org/abs/2302.05442). A small GPT is trained with a large learning rate,
without that norm and with it.
"""

import math
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from small_gpt import SmallGPT, loss
from torch import Tensor, nn

import clearhead as ch

STEPS, TOKENS, BATCH, RATE = 150, 64, 32, 0.03
WIDTH, HEADS = 64, 4


def numbers(path: str, matrix: ch.AttentionMatrix) -> Tensor:
    """Largest score, mean entropy (nats) and mean share of the first token, (3, num_heads)."""
    summary = matrix.summary()
    assert summary.max_score is not None  # as in a file of an earlier version
    scores, entropy, first = summary.max_score, summary.entropy, summary.first
    return torch.stack([scores.amax((0, 2)), entropy.mean((0, 2)), first.mean((0, 2))])


class Monitor:
    """The numbers of all heads at each step: `with monitor:` around the forward pass.

    Attributes:
        steps: a tensor for each step, (layers, 3, num_heads), as `numbers` has them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.steps: list[Tensor] = []

    def __enter__(self) -> "Monitor":
        self._watch = ch.watch(self._model, keep=numbers)
        self._seen = self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)
        # A layer that ran several times, as where gradients are accumulated, counts with its last.
        self.steps.append(torch.stack([self._seen.calls(path)[-1] for path in self._seen]))


def train(model: SmallGPT, ids: Tensor, monitor: Monitor, steps: int, every: int = 1) -> float:
    """Learn from windows of a text, with the monitor at every so many steps.

    Returns:
        How many times as long a step with the monitor takes; not a number if every step has it.
    """
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 50))
    windows = ids.unfold(0, TOKENS + 1, 1)
    times: dict[bool, list[float]] = {True: [], False: []}
    for step in range(steps):
        chosen = windows[torch.randint(len(windows), (BATCH,), generator=generator)]
        watched, start = step % every == 0, time.perf_counter()
        optimizer.zero_grad()
        with monitor if watched else nullcontext():
            error = loss(model, chosen)
        error.backward()
        optimizer.step()
        schedule.step()
        times[watched].append(time.perf_counter() - start)
    medians = [statistics.median(each or [math.nan]) for each in times.values()]
    return medians[0] / medians[1]


def trained(text: str, qk_norm: bool, steps: int = STEPS, every: int = 1) -> tuple[Monitor, float]:
    """A model that was trained on a text: its monitor, and the cost of that as `train` has it."""
    torch.manual_seed(0)
    model = SmallGPT("".join(sorted(set(text))), width=WIDTH, num_heads=HEADS)
    if not qk_norm:
        for block in model.blocks:
            parts = [ch.layers.Rotary(WIDTH // HEADS)]
            block.attention = ch.MultiHeadAttention(
                WIDTH, num_heads=HEADS, mask=ch.causal(), parts=parts
            )
    monitor = Monitor(model)
    return monitor, train(model, model.encode(text), monitor, steps, every)


def draw(monitors: dict[str, Monitor], path: Path) -> None:
    """The largest score of each head over the steps."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(
        1, len(monitors), sharey=True, figsize=(9, 3.2), layout="constrained"
    )
    for axes, (name, monitor) in zip(every, monitors.items(), strict=True):
        scores = torch.stack(monitor.steps)[:, :, 0]
        for layer in range(scores.shape[1]):
            lines = axes.plot(scores[:, layer], color=f"C{layer}", linewidth=1)
            lines[0].set_label(f"layer {layer}")
        axes.set(title=name, xlabel="step", yscale="log")
    every[0].set_ylabel("largest score of a head")
    every[0].legend()
    figure.savefig(path)


def main() -> None:
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    monitors = {}
    for name, qk_norm in (("without a norm of query and key", False), ("with it", True)):
        monitors[name], _ = trained(text, qk_norm)
        first, last = (
            each[:, 0].max().item() for each in (monitors[name].steps[0], monitors[name].steps[-1])
        )
        print(f"{name}: the largest score goes from {first:.1f} to {last:.1f}")
    _, cost = trained(text, True, 60, every=2)
    print(f"a step takes {cost:.2f} times as long with the monitor")
    if len(sys.argv) > 2:
        draw(monitors, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
