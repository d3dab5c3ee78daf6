"""A lesson as a page of the site: questions that judge, figures to touch, a gallery that answers."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clearhead.drawing.page.page import write_page
from clearhead.lessons.lesson import Block
from docs.site.sentence import sentence_payload
from docs.site.session import Session, Shown

SENTENCE = "## Your sentence\n"


@runtime_checkable
class Element(Protocol):
    """Anything that can be an element of any page."""

    def to_element(self, *, script: bool) -> str: ...


def lesson_page(session: Session, files: Path) -> str:
    """The page of a lesson that was run, as Markdown for MyST.

    Args:
        session: of the lesson.
        files: the folder of what the page embeds; its name is that of the address.
    """
    return "\n\n".join(_parts(session, files)) + "\n"


def _parts(session: Session, files: Path) -> Iterator[str]:
    lesson = session.lesson
    reports: dict[int, str] = {}
    for block in lesson.of_role("wrong"):
        reports[block.line] = "\n\n".join(map(str, session.grade(lesson.broken(block))))
    for number, part in enumerate(lesson.parts):
        if isinstance(part, str):
            if number == 0:
                heading, _, rest = part.partition("\n\n")
                byline, _, rest = rest.partition("\n\n")
                yield "\n\n".join((heading, byline, _downloads(session), rest))
            else:
                before, heading, after = part.partition(SENTENCE)
                frame = f"\n{_sentence(session, files)}\n" if heading else ""
                yield f"{before}{heading}{frame}{after}".strip()
            continue
        match part.role:
            case "predict":
                yield _question(part, session)
            case "solution" | "answer":
                yield _fenced("{dropdown} A solution", _fenced("python", part.source))
            case "hint" | "why":
                title = {"hint": "A hint", "why": "Why it is right"}[part.role]
                yield _fenced(f"{{dropdown}} {title}", part.source)
            case "exercise":
                yield _fenced("{container} ch-write", _fenced("python", part.source))
            case "write":
                yield _fenced("{container} ch-write", _fenced("python", part.source))
            case "wrong":
                yield _broken(part, session, reports[part.line])
            case "live":
                yield _live(part, session, files)
            case "train":
                yield _fenced("python", part.source)
            case "check":
                row = lesson.row
                yield f"In a terminal, run `clearhead check {row.file} --lesson {row.number}`. In Python:"
                yield _fenced("python", part.source)
            case _:
                yield _fenced(part.role, part.source)
    if any(isinstance(each, Element) for each in session.live.values()):
        yield _raw('<script src="../_static/figure.js" defer></script>')


def _downloads(session: Session) -> str:
    lesson = session.lesson
    notebook = f"lesson_{lesson.row.number:02}.ipynb"
    links = [
        f'<a class="ch-download" href="files/{name}" download>{words} <code>{name}</code></a>'
        for name, words in ((lesson.row.file, "the file to fill in"), (notebook, "as a notebook"))
    ]
    number = lesson.row.number
    links.append(f"<span>in a terminal <code>clearhead lesson {number}</code></span>")
    return _raw(f'<p class="ch-downloads">{" ".join(links)}</p>')


def _question(block: Block, session: Session) -> str:
    name, _, tolerance = block.question
    answer = session.answers[name]
    shown = f"{answer:.4f}".rstrip("0").rstrip(".")
    form = (
        f'<form class="ch-guess" data-answer="{answer!r}" data-tolerance="{tolerance!r}" data-shown="{shown}">'
        f'<label>your guess <input name="{escape(name)}" inputmode="decimal" autocomplete="off" size="8"></label> '
        '<button>compare</button> <output aria-live="polite"></output></form>'
    )
    return _fenced("{container} ch-predict", f"{block.source}\n{_raw(form)}")


def _broken(block: Block, session: Session, report: str) -> str:
    buttons = " ".join(
        f'<button type="button" value="{escape(code)}">{escape(code)}</button>'
        for code in session.lesson.codes
    )
    told = f"<details><summary>what check says</summary><pre>{escape(report)}</pre></details>"
    ask = (
        f'<form class="ch-name" data-answer="{escape(block.words)}"><span>Which one is it?</span> {buttons} '
        f'<output aria-live="polite"></output>{told}</form>'
    )
    return _fenced("{container} ch-broken", _fenced("python", block.source) + "\n" + _raw(ask))


def _live(block: Block, session: Session, files: Path) -> str:
    made: Any = session.live.get(block.line)
    code = _fenced("{dropdown} The code of this figure", _fenced("python", block.source))
    if made is None:
        return code
    if isinstance(made, Element):
        return _raw(made.to_element(script=False)) + "\n\n" + code
    shown = made if isinstance(made, Shown) else Shown(made, {})
    name = f"{session.lesson.row.slug}_{block.line}.html"
    shown.thing.to_html(files / name, **shown.options)
    title = f"{session.lesson.row.title}: {type(shown.thing).__name__.lower()}"
    state = ["embed=1", block.words] if block.words else ["embed=1"]
    return _frame(f"{files.name}/{name}#{'&'.join(state)}", title) + "\n\n" + code


def _sentence(session: Session, files: Path) -> str:
    """Return the page on which the model that the lesson trained reads what is typed."""
    name = f"{session.lesson.row.slug}_sentence.html"
    model, letters = (session.namespace[each] for each in ("model", "letters"))
    write_page(files / name, sentence_payload(model, letters))
    return _frame(f"{files.name}/{name}#embed", "Your sentence")


def _frame(address: str, title: str) -> str:
    frame = f'<iframe class="ch-live" src="{escape(address)}" title="{escape(title)}" loading="lazy"></iframe>'
    return _raw(frame)


def _raw(html: str) -> str:
    return _fenced("{raw} html", html)


def _fenced(words: str, inside: str) -> str:
    """A fence that is longer than any inside."""
    ticks = "```"
    while ticks in inside:
        ticks += "`"
    return f"{ticks}{words}\n{inside.rstrip()}\n{ticks}"
