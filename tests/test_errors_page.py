"""docs/errors.md lists the codes that the source raises."""

import runpy

from clearhead import errors
from tests.surface import ROOT


def test_the_page_is_that_of_the_source_with_every_kind_of_error() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))
    page = (ROOT / "docs" / "errors.md").read_text()
    assert page == generator["page"](), "write it anew: python docs/generate_errors.py"
    named = {row.split(" | ")[1] for row in page.splitlines() if row.startswith("| `")}
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.ClearheadError)
        and kind is not errors.ClearheadError
        and kind is not errors.MissingFileError  # a FileError whose file is not there
    }
    assert named == kinds
