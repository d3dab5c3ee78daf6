"""The public names as pages: signatures, and docstrings, which are Markdown but for their sections."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SECTION = re.compile(r"(Args|Returns|Yields|Raises|Example|Examples|Attributes|Sources?):")
ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): +(.*)")


def places(source: Path) -> dict[str, list[str]]:
    """By its package, each public name."""
    found: dict[str, list[str]] = {}
    for path in sorted(source.rglob("__init__.py")):
        name = ".".join(path.parent.relative_to(source.parent).parts)
        module = importlib.import_module(name)
        if hasattr(module, "__all__"):
            found[name] = list(module.__all__)
    return found


def page(place: str, names: list[str], packages: dict[str, list[str]]) -> str:
    """The page of a package: each of its public names, and of a class its public methods."""
    module = importlib.import_module(place)
    parts = [f"# {place}", docstring(module.__doc__ or "")]
    for name in names:
        made = getattr(module, name)
        parts.append("## " + name.replace("_", r"\_"))
        if f"{place}.{name}" in packages:
            parts.append(f"The package [{place}.{name}]({place}.{name}.md).")
            continue
        parts += _described(name, made)
        if inspect.isclass(made):
            for method, each in _methods(made):
                parts.append(f"### {name}.{method}")
                parts += _described(method, each)
    return "\n\n".join(filter(None, parts)) + "\n"


def _methods(made: type) -> Iterator[tuple[str, object]]:
    for name, each in vars(made).items():
        raw = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        known = inspect.isfunction(raw) or isinstance(raw, property)
        if name[0] != "_" and known and raw.__doc__:
            yield name, raw


def _described(name: str, made: object) -> Iterator[str]:
    text = (
        made.__doc__
        if inspect.isclass(made) or callable(made) or isinstance(made, property)
        else ""
    )
    if callable(made):
        with suppress(TypeError, ValueError):  # of a class that C makes
            yield f"```python\n{name}{_signature(made)}\n```"
    elif not isinstance(made, property):
        yield f"A constant of type `{type(made).__name__}`."
    yield docstring(text or "")


def _signature(made: object) -> str:
    """The signature of what is called, each parameter on a line of its own where it is long."""
    written = inspect.signature(made)  # pyright: ignore[reportArgumentType]
    plain = str(written).replace("clearhead.", "")
    while re.search(r"\*?<[^<>]*>", plain):  # a default that is no literal
        plain = re.sub(r"\*?<[^<>]*>", "...", plain)
    plain = re.sub(r"(?:[a-z_]\w*\.)+([A-Z]\w*)", r"\1", plain)
    if len(plain) < 80:
        return plain
    inside, arrow, returned = plain.rpartition(") -> ")
    inside = inside if arrow else plain[:-1]
    pieces, depth, piece = [], 0, ""
    for letter in inside[1:]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += letter
    lines = "".join(f"    {each},\n" for each in (*pieces, piece.strip()) if each)
    return f"(\n{lines})" + (f" -> {returned}" if arrow else "")


def docstring(text: str) -> str:
    """A docstring as Markdown.

    Example:
        >>> print(docstring("Add one.\\n\\nArgs:\\n    x: a number,\\n        of any size."))
        Add one.
        <BLANKLINE>
        **Args**
        <BLANKLINE>
        - `x`: a number, of any size.
    """
    found: list[str] = []
    section, body = "", list[str]()
    for line in [*inspect.cleandoc(text).splitlines(), "Sources:"]:
        begins = SECTION.fullmatch(line)
        if not begins:
            body.append(line)
            continue
        inside = textwrap.dedent("\n".join(body)).strip("\n")
        if inside.strip():
            found += [f"**{section}**", _section(section, inside)] if section else [inside]
        section, body = begins[1], []
    return "\n\n".join(found)


def _section(name: str, inside: str) -> str:
    if name.startswith("Example"):
        return f"```pycon\n{inside}\n```"
    if name not in ("Args", "Raises", "Attributes"):
        return inside
    entries: list[str] = []
    for line in inside.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry and not line.startswith(" "):
            entries.append(f"- `{entry[1]}`: {entry[2]}")
        elif entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
    return "\n".join(entries)
