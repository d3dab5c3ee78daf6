"""The pages of the docs that are installed with the package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def docs(name: str) -> Path:
    """A page or a folder of the docs: in the package where it is installed, else in the checkout around it.

    Example:
        >>> docs("training.md").is_file()
        True
    """
    installed = PACKAGE / "docs" / name
    return installed if installed.exists() else PACKAGE.parents[1] / "docs" / name
