"""`clearhead explain`: mistakes of `check`, findings of training, and errors, by their codes."""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import typer
from rich.console import Console

from clearhead import errors
from clearhead._common.docs_pages import PACKAGE
from clearhead._common.lessons import lessons_of
from clearhead._text import shown
from clearhead.cli.error_codes import error_codes
from clearhead.errors import ArgumentError

SECTION = re.compile(r"^## (\S+)\n\n((?:(?!## ).*\n)*)", re.MULTILINE)


def explain(
    code: Annotated[
        str, typer.Argument(help="Of a finding or of an error, such as mask.inverted.")
    ],
) -> None:
    """Explain a finding of check or an error code.

    For a finding it prints what is wrong, with wrong and with right code; for an error what is expected. An
    unknown code is answered with the nearest ones.
    """
    now = _aliases().get(code, code)
    paragraphs = _explain_finding(now) + _explain_error(code)
    if not paragraphs:
        known = [each for each in (*_findings(), *error_codes()) if "…" not in each]
        family = [each for each in known if each.startswith(f"{code.partition('.')[0]}.")]
        near = get_close_matches(code, known, n=5, cutoff=0.7) if "." in code else []
        near = near or sorted(set(family))
        hint = f"The nearest are {', '.join(near)}." if near else "One is mask.inverted."
        raise ArgumentError(
            "explain.code",
            f"code must be that of a finding or of an error; got {shown(code)}. {hint}",
        )
    renamed = [f"`{code}` is a part of `{now}`."] if now != code else []
    print_page("\n\n".join((f"## {now}", *renamed, *paragraphs)))


def print_page(text: str) -> None:
    """Print Markdown, rendered if the output is a terminal."""
    console = Console()
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        print(text)


def _explain_finding(code: str) -> list[str]:
    """Return the section of a finding, and a paragraph on its lessons if there are any; [] for an unknown code."""
    if code not in _findings():
        return []
    told = [each.pointer(code).rpartition(": ") for each in lessons_of(code)]
    lessons = [f"{where}: `{command}`" for where, _, command in told]
    return [_findings()[code].strip(), *([f"Lessons: {'; '.join(lessons)}."] if lessons else [])]


def _explain_error(code: str) -> list[str]:
    """Return paragraphs on the classes of an error, and all messages with this code; [] for an unknown one."""
    rows = error_codes(code)
    # In `….type` the name of an argument takes the place of the ellipsis.
    messages = rows.get(code) or rows.get(f"….{code.partition('.')[2]}", [])
    paragraphs = []
    for name in dict.fromkeys(name for name, _ in messages):
        kind = getattr(errors, name)
        bases = " and ".join(f"`{each.__name__}`" for each in kind.__bases__[1:])
        summary = kind.__doc__.partition("\n")[0]
        paragraphs.append(f"`{name}`, a subclass of {bases}. {summary}")
        paragraphs.append("\n".join(f"- {words}" for each, words in messages if each == name))
    if messages:
        paragraphs.append("`…` stands for what the message fills in: sizes, dtypes, names.")
    return paragraphs


@cache
def _findings() -> Mapping[str, str]:
    """Return the explanation of each finding, of check and of training, by its code; read once."""
    texts = [page.read_text(encoding="utf-8") for page in PACKAGE.glob("*/mistakes.md")]
    return {heading: body for text in texts for heading, body in SECTION.findall(text)}


@cache
def _aliases() -> Mapping[str, Any]:
    """Return the present code by each code of earlier versions; read once."""
    words = (PACKAGE / "checking" / "words.toml").read_text(encoding="utf-8")
    return tomllib.loads(words)["alias"]
