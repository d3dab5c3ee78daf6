"""The kernels that a machine can run: the words are their own."""

import io

import torch
from rich.console import Console

from clearhead.attention.planning import KERNELS
from clearhead.drawing.terminal.machine import devices, print_machine


def printed() -> str:
    console = Console(file=io.StringIO(), width=200)
    print_machine(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_kernel_is_explained() -> None:
    text = printed()
    for kernel in KERNELS:
        assert f"{kernel.NAME:9}  {kernel.SUMMARY}" in text
    assert torch.__version__ in text


def test_what_a_kernel_refuses_it_gives_a_reason_for() -> None:
    lines = {line[:18].strip(): line[18:].split() for line in printed().splitlines()}
    assert lines["on cpu"] == ["fused", "flex", "blockwise", "eager"]
    assert lines["float32"] == ["yes", "no", "yes", "yes"]
    assert lines["softcap"] == ["no", "no", "yes", "yes"]
    assert lines["trained bias"] == ["no", "no", "yes", "yes"]
    assert "not fused: softcap: PyTorch's fused attention has none" in printed()


def test_devices() -> None:
    assert "threads" in (devices()["cpu"] or "")
    assert (devices()["cuda"] is not None) == torch.cuda.is_available()
