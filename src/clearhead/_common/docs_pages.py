"""The pages of the docs that are installed with the package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def docs(name: str) -> Path:
    """Return the path of a page or folder of the docs: in the installed package, else in the checkout around it.

    The second path is returned even if nothing is there.

    Example:
        >>> docs("lessons/01_one_number.md").is_file()
        True
    """
    installed = PACKAGE / "docs" / name
    return installed if installed.exists() else PACKAGE.parents[1] / "docs" / name
