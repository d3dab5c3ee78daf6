"""Build the site of everything in docs, of the lessons and of the public names: `python -m docs.site.build`.

Sources are made in `.cache/site`, and Sphinx turns them into `site`, where nothing needs a network. A link that leads
nowhere is an error, and so is a lesson whose blocks print something else than its page says.
"""

import argparse
import importlib
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / ".cache" / "site"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="docs.site.build", description=__doc__)
    parser.add_argument("--brief", action="store_true", help="Train for three steps.")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--sources", type=Path, default=ROOT / ".cache" / "site")
    asked = parser.parse_args(arguments)
    global SOURCES
    SOURCES = asked.sources
    from tests.environment import prepare

    prepare()
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    pages = write_pages()
    different = write_lessons(brief=asked.brief)
    write_api()
    write_linked(pages)
    told("the site")
    code = build(asked.out)
    for each in different:
        told(f"another output than the page has\n{each}")
    return code or int(bool(different))


def told(words: str) -> None:
    print(f"docs: {words}", file=sys.stderr, flush=True)


def write_pages() -> set[Path]:
    """Each page of the docs, and whatever of the project they link to."""
    shutil.copytree(DOCS / "pictures", SOURCES / "pictures")
    linked: set[Path] = set()
    for page in sorted(DOCS.rglob("*.md")):
        place = page.relative_to(DOCS)
        if place.parts[0] == "lessons" and page.name != "README.md":
            continue
        text = page.read_text(encoding="utf-8")
        if page == DOCS / "README.md":
            write_sections(linked)
            continue
        if page == DOCS / "index.md":
            text = text.replace("FIGURE", front_figure()) + toctree(navigation())
        elif page.name == "README.md":
            text += toctree(sorted(each.stem for each in page.parent.glob("[0-9]*.md")))
        _write(place.with_name("index.md") if page.name == "README.md" else place, text, linked)
    return linked


def sections() -> dict[str, tuple[str, list[str]]]:
    """Return the sections of docs/README.md by title: the text of each, and the pages that its table lists."""
    found = {}
    for section in re.split(r"^## ", (DOCS / "README.md").read_text("utf-8"), flags=re.MULTILINE)[
        1:
    ]:
        title, _, text = section.partition("\n")
        rows = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\.md\)", text, re.MULTILINE)
        names = [row.replace("README", "index") for row in rows]
        found[title] = (text, names + ["api/index"] * (title == "Reference"))
    return found


def navigation() -> list[str]:
    """Return the entries of the navigation: the pages to start with, then one page a section."""
    (_, (_, first)), *rest = sections().items()
    return first + [f"section-{title.lower()}" for title, _ in rest]


def write_sections(linked: set[Path]) -> None:
    """Write a page for each section but the first, which lists its pages and holds them in the navigation."""
    for title, (text, names) in list(sections().items())[1:]:
        page = f"# {title}\n{text}{toctree(names)}"
        _write(Path(f"section-{title.lower()}.md"), page, linked)


def front_figure() -> str:
    """Return the figure of the first page, as raw HTML: three words that attend to each other, to touch."""
    import torch

    import clearhead as ch

    words = ["dog", "bites", "man"]
    x = torch.tensor([[1.0, 0.2], [0.3, 1.0], [0.9, -0.5]])
    figure = ch.figure(x, x, x, tokens=words, mask=ch.causal(), edit=("query", "mask"))
    return "```{raw} html\n" + figure.to_element(script=True) + "\n```"


def toctree(names: Sequence[str]) -> str:
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def write_lessons(brief: bool) -> list[str]:
    """The pages of the lessons; what their blocks print otherwise than the pages say."""
    from clearhead._common.lessons import LESSONS
    from clearhead.drawing.page.page import asset
    from clearhead.lessons.lesson import read_lesson
    from clearhead.lessons.notebook import notebook
    from docs.site.lesson_page import lesson_page
    from docs.site.session import Session
    from tests.test_docs import agrees, difference

    different: list[str] = []
    extra = SOURCES / "_extra" / "lessons"
    files, live = extra / "files", extra / "live"
    for folder in (files, live, SOURCES / "lessons", SOURCES / "_script"):
        folder.mkdir(parents=True, exist_ok=True)
    (SOURCES / "_script" / "figure.js").write_text(asset("figure.js"), encoding="utf-8")
    for number in LESSONS:
        lesson = read_lesson(number)
        (files / lesson.row.file).write_text(lesson.starter, encoding="utf-8")
        name = Path(lesson.row.file).with_suffix(".ipynb").name
        (files / name).write_text(notebook(lesson), encoding="utf-8")
        folder = SOURCES / "_sessions" / lesson.row.slug
        folder.mkdir(parents=True)
        trains = " and its training" if lesson.of_role("train") and not brief else ""
        told(f"lesson {number} of {max(LESSONS)}{trains}")
        session = Session(lesson, folder, brief=brief).run()
        different += [
            f"docs/lessons/{lesson.row.slug}.md:{block.line}\n{difference(block.source, printed)}"
            for block, printed in session.held
            if not agrees(block.source, printed)
        ]
        _write(Path("lessons") / f"{lesson.row.slug}.md", lesson_page(session, live), set())
    shutil.rmtree(SOURCES / "_sessions", ignore_errors=True)
    return different


def write_api() -> None:
    """Write a page for each public package, which Sphinx's autodoc fills with the names in `__all__`."""
    folder = SOURCES / "api"
    folder.mkdir()
    modules = public_modules()
    described: dict[int, str] = {}
    for place, module in modules.items():
        names = public_names(module)
        inner = {name for name in names if f"{place}.{name}" in modules}
        again = {name: described[id(each)] for name, each in names.items() if id(each) in described}
        described |= {id(each): place for name, each in names.items() if name not in inner}
        constants = [
            name for name, each in names.items() if not callable(each) and name not in inner
        ]
        left_out = ", ".join([*inner, *again, *constants])
        blocks = [f".. automodule:: {place}\n   :exclude-members: {left_out}"]
        blocks += [
            f".. py:data:: {place}.{name}\n   :type: {type(names[name]).__name__}"
            for name in constants
        ]
        text = f"# {place}\n\n```{{eval-rst}}\n" + "\n\n".join(blocks) + "\n```\n"
        text += "".join(f"\n- `{name}`: see [{home}]({home}.md)" for name, home in again.items())
        (folder / f"{place}.md").write_text(text, encoding="utf-8")
    rows = "".join(
        f"| [{place}]({place}.md) | {len(public_names(each))} |\n"
        for place, each in modules.items()
    )
    text = f"# API\n\nEvery public name, by its package.\n\n| package | names |\n|---|---|\n{rows}"
    (folder / "index.md").write_text(text + toctree(list(modules)), encoding="utf-8")


def public_modules() -> dict[str, ModuleType]:
    """Return clearhead.errors and the packages that have an `__all__`, by name."""
    source = ROOT / "src"
    paths = sorted(path.parent.relative_to(source) for path in source.rglob("__init__.py"))
    modules = [importlib.import_module(".".join(path.parts)) for path in paths]
    found = [each for each in modules if hasattr(each, "__all__")]
    return {each.__name__: each for each in [*found, importlib.import_module("clearhead.errors")]}


def public_names(module: ModuleType) -> dict[str, object]:
    """Return the objects in the module's `__all__` by name; without it, the classes that the module defines."""
    made = [each for each in vars(module).values() if isinstance(each, type)]
    defined = [each.__name__ for each in made if each.__module__ == module.__name__]
    return {name: getattr(module, name) for name in getattr(module, "__all__", defined)}


def write_linked(linked: set[Path]) -> None:
    """Pages of what is linked to outside of the docs: text as it is, sources in colour."""
    for path in sorted(linked):
        place = SOURCES / "source" / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            rows = "".join(f"- {each.name}\n" for each in sorted(path.iterdir()))
            text = f"# {name}\n\n{rows}"
        elif path.suffix == ".md":
            text = LINK.sub(
                lambda found: found[0] if "://" in found[2] else found[2],
                path.read_text(encoding="utf-8"),
            )
        else:
            language = LANGUAGES.get(path.suffix, "text")
            text = f"# {name}\n\n~~~~{language}\n{path.read_text(encoding='utf-8')}\n~~~~\n"
        place.with_name(f"{place.name}.md").write_text(
            f"---\norphan: true\n---\n\n{text}", encoding="utf-8"
        )


def _write(place: Path, text: str, linked: set[Path]) -> None:
    """A page at its place, with links to what stands elsewhere on the site."""

    def lead(found: re.Match[str]) -> str:
        address = found[2]
        if "://" in address:
            return found[0]
        target = Path(os.path.normpath((DOCS / place).parent / address))
        if target.is_relative_to(DOCS):
            address = re.sub(r"README\.md$", "index.md", address)
            return f"{found[1]}{address}{found[3]}"
        linked.add(target)
        inside = posixpath.join("source", target.relative_to(ROOT).as_posix() + ".md")
        return f"{found[1]}{posixpath.relpath(inside, place.parent.as_posix())}{found[3]}"

    made = SOURCES / place
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(LINK.sub(lead, text), encoding="utf-8")


def build(out: Path) -> int:
    from sphinx.cmd.build import build_main

    shutil.rmtree(out, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(DOCS / "site")]
    doctrees = SOURCES.with_name("site-doctrees")
    shutil.rmtree(doctrees, ignore_errors=True)
    settings = [
        f"-Dhtml_extra_path={SOURCES / '_extra'}",
        f"-Dhtml_static_path={DOCS / 'site' / 'static'},{SOURCES / '_script'}",
    ]
    code = build_main([*options, *settings, "-d", str(doctrees), str(SOURCES), str(out)])
    told(f"open {out / 'index.html'}" if code == 0 else "the site was not built")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
