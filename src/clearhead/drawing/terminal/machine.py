"""The output of `clearhead --version --verbose`: which kernels can run on this machine."""

import platform
from collections.abc import Iterator
from typing import Any

import torch
from rich.table import Table

from clearhead._common.version import __version__
from clearhead.attention.planning import KERNELS
from clearhead.attention.problem import Problem, make_problem
from clearhead.drawing.terminal.shading import Console, Text
from clearhead.masks import causal, padding

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def print_machine(console: Console) -> None:
    """Print versions and devices, and which problems each kernel can run on each device.

    Example:
        >>> import io
        >>> console = Console(file=io.StringIO(), width=80)
        >>> print_machine(console)
        >>> "softcap" in console.file.getvalue()
        True
    """
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    console.print(Text(f"clearhead {__version__}, torch {torch.__version__}, {system}"))
    for device, description in devices().items():
        console.print(Text(f"{device}: {description or 'none that this torch can use'}"))
    console.print()
    summaries = Table.grid(padding=(0, 2, 0, 0))
    for kernel in KERNELS:
        summaries.add_row(Text(kernel.NAME, "bold"), Text(kernel.SUMMARY))
    console.print(summaries)
    console.print(
        Text(
            'kernel="auto" takes the first of these that can, unless a later one is faster.', "dim"
        )
    )
    for device, description in devices().items():
        if description:
            console.print()
            _print_refusals(console, device)


def devices() -> dict[str, str | None]:
    """Return the kinds of devices with a description of each; None for a device that is not there.

    Example:
        >>> list(devices())
        ['cpu', 'cuda']
    """
    cpu = f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    cuda = None
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        cuda = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
    return {"cpu": cpu, "cuda": cuda}


def _print_refusals(console: Console, device: str) -> None:
    """Print which kernels run which problems on a device, and why the others do not."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(*(Text(name, "bold") for name in (f"on {device}", *(k.NAME for k in KERNELS))))
    reasons: list[str] = []
    for about, problem in _problems(device):
        refusals = {kernel.NAME: kernel.refusals(problem) for kernel in KERNELS}
        answers = (
            Text("no", "red") if found else Text("yes", "green") for found in refusals.values()
        )
        table.add_row(about, *answers)
        reasons += [f"not {name}: {reason}" for name, found in refusals.items() for reason in found]
    console.print(table)
    for reason in dict.fromkeys(reasons):
        console.print(Text(reason, "dim"))


def _problems(device: str) -> Iterator[tuple[str, Problem]]:
    """Yield the name and a small problem on a device; each differs from a plain one in one respect."""

    def posed(heads: int = 4, dtype: torch.dtype = torch.float32, **options: Any) -> Problem:
        """Return a problem of 4 query heads, `heads` key heads and 8 tokens, with options of `make_problem`."""
        query = torch.zeros(1, 4, 8, 16, dtype=dtype, device=device)
        return make_problem(query, query[:, :heads], query[:, :heads], **options)

    for dtype in DTYPES:
        yield str(dtype).removeprefix("torch."), posed(dtype=dtype)
    yield "causal mask", posed(mask=causal())
    yield "causal and padding", posed(mask=causal() & padding([5]))
    yield "grouped heads", posed(heads=2)
    yield "bias", posed(bias=torch.zeros(8, 8, device=device))
    yield "trained bias", posed(bias=torch.zeros(8, 8, device=device, requires_grad=True))
    yield "softcap", posed(softcap=30.0)
    yield "sinks", posed(sinks=torch.zeros(4, device=device))
    yield "dropout", posed(dropout=0.1)
