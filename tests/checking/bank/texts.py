"""Programs that are stored as text: a diff applied to one, and a module made of one."""

import hashlib
import linecache
import sys
from functools import cache
from types import ModuleType


def patched(text: str, diff: str) -> str:
    """Apply the hunks of a diff, which a line "@" separates; the old lines of a hunk occur once in the text."""
    for piece in diff.split("@\n"):
        lines = piece.splitlines(keepends=True)
        old, new = (
            "".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return text


@cache
def module_of(name: str, text: str) -> ModuleType:
    """Run a text as a module whose lines can be read; the same text gives the same module."""
    file = f"{name}.py"
    module = ModuleType(name)
    module.__file__ = file
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def digest(text: str) -> str:
    """Return a name for a text."""
    return hashlib.sha1(text.encode()).hexdigest()[:12]
