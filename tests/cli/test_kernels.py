"""`clearhead kernels`."""

from importlib.metadata import version

from tests.cli.commands import lines


def test_kernels() -> None:
    found = lines("kernels")
    assert found[0].startswith(f"clearhead {version('clearhead')}, torch ")
    assert any(line.split() == ["softcap", "no", "no", "yes", "yes"] for line in found)
