"""`clearhead kernels`."""

from rich.console import Console


def kernels() -> None:
    """Show which kernels can run here, and why the others cannot."""
    from clearhead.drawing.terminal.machine import print_machine

    print_machine(Console())
