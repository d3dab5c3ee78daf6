"""`clearhead explain`, from pages of the docs that are installed with the package."""

import re
from difflib import get_close_matches
from typing import Annotated

import typer
from rich.console import Console

from clearhead import errors
from clearhead._common.lessons import lessons_of
from clearhead._common.pages import docs
from clearhead._common.text import shown
from clearhead.errors import ArgumentError

SECTION = re.compile(r"^## (.+)\n\n((?:(?!## ).*\n)*)", re.MULTILINE)
# Of the findings of `check`, and of training.
PAGES = ("check.md", "training.md")
ROW = re.compile(r"^\| `(.+?)` \| (\w+) \| (.*) \|$", re.MULTILINE)


def explain(
    code: Annotated[
        str, typer.Argument(help="Of a finding or of an error, such as mask.inverted.")
    ],
) -> None:
    """Explain a finding of check or an error code.

    For a finding it prints what is wrong, with wrong and with right code, and a law of attention as
    numbers; for an error what is expected. An unknown code is answered with the nearest ones.
    """
    paragraphs = _explain_finding(code) + _explain_error(code)
    if not paragraphs:
        known = [each for each in (*_findings(), *_errors()) if "…" not in each]
        family = [each for each in known if each.startswith(f"{code.partition('.')[0]}.")]
        near = get_close_matches(code, known, n=5, cutoff=0.7) if "." in code else []
        near = near or sorted(set(family))
        hint = f"The nearest are {', '.join(near)}." if near else "One is mask.inverted."
        raise ArgumentError(
            "explain.code",
            f"code must be that of a finding or of an error; got {shown(code)}. {hint}",
        )
    print_page("\n\n".join((f"## {code}", *paragraphs)))


def print_page(text: str) -> None:
    """Print Markdown, as a page where a person looks at it."""
    console = Console()
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        print(text)


def _explain_finding(code: str) -> list[str]:
    """The section of a finding of `check`, and how its code is to be read."""
    section = _findings().get(code)
    if section is None:
        return []
    if code not in _sections(PAGES[0]):
        return [section.strip()]
    how_to_read = _sections(PAGES[0])["The mistakes"].split("\n\n")[1]
    from clearhead.cli.law_figures import figure

    drawn = figure(code)
    told = [each.pointer(code).rpartition(": ") for each in lessons_of(code)]
    lessons = [f"{where}: `{command}`" for where, _, command in told]
    met = [f"It is met in {', and in '.join(lessons)}"] if lessons else []
    return [section.strip(), *([f"```text\n{drawn}\n```"] if drawn else []), *met, how_to_read]


def _explain_error(code: str) -> list[str]:
    """The classes of an error, and all that it can say."""
    rows = _errors()
    # In `….type` an argument's name stands before the point.
    said = rows.get(code) or rows.get(f"….{code.partition('.')[2]}", [])
    paragraphs = []
    for name in dict.fromkeys(name for name, _ in said):
        kind = getattr(errors, name)
        bases = " and ".join(f"`{each.__name__}`" for each in kind.__bases__[1:])
        summary = kind.__doc__.partition("\n")[0]
        paragraphs.append(f"`{name}`, a subclass of {bases}. {summary}")
        paragraphs.append("\n".join(f"- {words}" for each, words in said if each == name))
    if said:
        paragraphs.append("`…` stands for what the message fills in: sizes, dtypes, names.")
    return paragraphs


def _findings() -> dict[str, str]:
    return {
        heading: text
        for page in PAGES
        for heading, text in _sections(page).items()
        if " " not in heading
    }


def _sections(page: str) -> dict[str, str]:
    """By its heading the text of each section, without what folds it."""
    found = SECTION.findall(_page(page))
    return {heading: text.partition("\n</details>")[0] for heading, text in found}


def _errors() -> dict[str, list[tuple[str, str]]]:
    """By its code, the class and the text of every error."""
    found: dict[str, list[tuple[str, str]]] = {}
    for code, name, words in ROW.findall(_page("errors.md")):
        found.setdefault(code, []).append((name, words.replace(r"\|", "|")))
    return found


def _page(name: str) -> str:
    """A page of the docs, as text."""
    return docs(name).read_text(encoding="utf-8")
