"""Drawing in a terminal needs rich, which is optional."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from clearhead.errors import MissingExtraError


@pytest.mark.parametrize(
    ("missing", "error", "text"),
    [
        (["rich", "rich.console"], MissingExtraError, r"pip install '\.\[cli\]'"),
        (["rich.style"], ModuleNotFoundError, "^no rich.style$"),
    ],
)
def test_without_rich_the_command_that_installs_it(
    missing: list[str], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str, *others: Any) -> None:
        if name == missing[0]:
            raise ModuleNotFoundError(f"no {name}", name=name)

    for name in (*missing, "clearhead.drawing.terminal.shading"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    with pytest.raises(error, match=text) as raised:
        importlib.import_module("clearhead.drawing.terminal.shading")
    assert type(raised.value) is error
