"""Fold the names in check.md: each in a section that opens by a click, under what it says first.

`python docs/generate_mistakes.py` writes it; a test holds it against the page.
"""

import html
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "check.md"
START = "## The mistakes\n"
HEADING = re.compile(r"^## (?=\S+$)", re.MULTILINE)
FOLDS = re.compile(r"^(<details>\n<summary>.*</summary>\n\n|</details>\n\n?)", re.MULTILINE)


def summary(text: str) -> str:
    """The first sentence of a section, in one line."""
    words = " ".join(text.strip().partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][.:]) (?=[A-Z`])", words)[0]
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(sentence, quote=False)).rstrip(".:")


def folded(section: str) -> str:
    """A section, without its mark, as one that is folded."""
    name, _, text = section.partition("\n")
    head = f"<details>\n<summary><code>{name}</code>: {summary(text)}</summary>\n"
    return f"{head}\n## {name}\n\n{text.strip()}\n\n</details>\n"


def page() -> str:
    before, start, names = PAGE.read_text(encoding="utf-8").partition(START)
    intro, *sections = HEADING.split(FOLDS.sub("", names))
    return before + start + intro + "\n".join(folded(each) for each in sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
