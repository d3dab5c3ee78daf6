"""The cost of a call: seconds, bytes at its peak, and which operations ran."""

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler

Call = Callable[[], object]

# Shorter samples are told apart by the clock alone.
SAMPLE = 2e-3
GROWTHS = "constant", "tokens", "tokens²", "tokens³"
# What does not grow, and blocks that do, move the exponent of a kernel's memory by about so much.
NEAR = 0.2
FUSED = "_scaled_dot_product_"
PLAIN = "_scaled_dot_product_attention_math"


class Weight(NamedTuple):
    """Bytes that a call takes at its peak beside its inputs, and the operations that ran."""

    memory: int
    operations: frozenset[str]


def weigh(call: Call, device: torch.device) -> Weight:
    """Run a call once under PyTorch's profiler, which is told of everything that is allocated."""
    on_cuda = device.type == "cuda"
    before = 0
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with _quiet(), _no_garbage(), profiler.profile(profile_memory=True) as recorded:
        result = call()
        if on_cuda:
            torch.cuda.synchronize(device)
    del result
    # The stubs of PyTorch know neither that it is there nor that a memory event has a size.
    events: list[Any] = recorded.kineto_results.events()  # type: ignore[union-attr]
    names = frozenset(each.name().removeprefix("aten::") for each in events)
    if on_cuda:
        return Weight(torch.cuda.max_memory_allocated(device) - before, names)
    changes = sorted(
        (each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return Weight(peak, names)


def time_in_turn(calls: Sequence[Call], device: torch.device, rounds: int) -> list[float]:
    """Median seconds of each call, timed in turn (A B A B …), so that what slows the machine
    slows all of them."""

    def sample(call: Call, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / count

    counts = [max(1, math.ceil(SAMPLE / max(sample(call, 1), 1e-9))) for call in calls]
    samples = [
        [sample(call, count) for call, count in zip(calls, counts, strict=True)]
        for _ in range(rounds)
    ]
    return [statistics.median(each) for each in zip(*samples, strict=True)]


def kernels_in_words(operations: frozenset[str]) -> str:
    """The kernels of PyTorch that ran: a fused one, or what was there instead.

    Example:
        >>> kernels_in_words(frozenset({"bmm", "_softmax", "add"}))
        "bmm + softmax: none of PyTorch's fused kernels"
    """
    if PLAIN in operations:
        return f"{PLAIN}: the plain way of PyTorch's function, none of its fused kernels"
    fused = sorted(
        name for name in operations if name.startswith(FUSED) and not name.endswith("_backward")
    )
    if fused:
        return ", ".join(fused)
    parts = [name for name in ("bmm", "baddbmm", "mm", "einsum") if name in operations][:1]
    softmaxes = {"_softmax": "softmax", "_safe_softmax": "softmax", "exp": "exp"}
    parts += [word for name, word in softmaxes.items() if name in operations][:1]
    return f"{' + '.join(parts) or 'neither products nor softmax'}: none of PyTorch's fused kernels"


def exponent(lengths: Sequence[int], amounts: Sequence[float]) -> float:
    """The power of the length that the amounts grow with: the slope of their logarithms over the
    upper half of the lengths, by least squares.

    Example:
        >>> exponent([128, 256, 512], [3 * n**2 for n in (128, 256, 512)])
        2.0
    """
    pairs = [
        (math.log(length), math.log(max(amount, 1e-12)))
        for length, amount in zip(lengths, amounts, strict=True)
    ][-max(2, (len(lengths) + 2) // 2) :]
    middle = statistics.fmean(x for x, _ in pairs), statistics.fmean(y for _, y in pairs)
    slope = sum((x - middle[0]) * (y - middle[1]) for x, y in pairs) / sum(
        (x - middle[0]) ** 2 for x, _ in pairs
    )
    return round(slope, 2)


def in_words(power: float) -> str:
    """A power of the length as a person says it, if it is within 0.2 of a whole one; else itself.

    Example:
        >>> in_words(1.97), in_words(0.94), in_words(1.4)
        ('tokens²', 'tokens', 'tokens^1.40')
    """
    whole = round(power)
    if abs(power - whole) <= NEAR and 0 <= whole < len(GROWTHS):
        return GROWTHS[whole]
    return f"tokens^{power:.2f}"


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler of some builds of PyTorch writes to the terminal when it starts and stops."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """No memory from before is freed on the way, which would count as memory that is not taken."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
