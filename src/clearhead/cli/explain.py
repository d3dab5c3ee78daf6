"""`clearhead explain`: mistakes of `check`, findings of training, and errors, by their codes.

The codes of errors with their messages are read from where the source raises them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clearhead import errors
from clearhead._common.lessons import PACKAGE, lessons_of
from clearhead._text import shown
from clearhead.errors import ArgumentError

SOURCE = Path(errors.__file__).parent
CLASSES = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ClearheadError)
}

Variables = Mapping[str, ast.expr]


@cache
def error_codes(about: str = "") -> dict[str, list[tuple[str, str]]]:
    """Return for each code the names of its error classes with the message of each; cached.

    `…` stands in a code or a message for what is only known when it is raised.

    Args:
        about: a code; only files that may raise it are read. All files if it is empty.

    Example:
        >>> error_codes("mask.truth")["mask.truth"][0][0]
        'ArgumentTypeError'
    """
    # The first part of a code may be filled in, as in f"{name}.type".
    last = f'.{about.rpartition(".")[2]}"' if about else ""
    texts = (path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))
    rows = {row for text in texts if last in text for row in _raised(ast.parse(text))}
    found: dict[str, list[tuple[str, str]]] = {}
    for code, name, message in sorted(rows):
        found.setdefault(code, []).append((name, message))
    return found


def _raised(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield code, class name and message of each error that a module makes with two arguments."""
    variables = _variables(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in CLASSES
            and len(node.args) == 2
        ):
            known = variables.get(node, {})
            code, message = (_template(argument, known) for argument in node.args)
            yield code, node.func.id, " ".join(message.split())


def _variables(tree: ast.Module) -> dict[ast.AST, Variables]:
    """Return, for each node inside a function, the variables of the innermost one, each with its first value."""
    found: dict[ast.AST, Variables] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            values: dict[str, ast.expr] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    values.setdefault(node.targets[0].id, node.value)
            # Inner functions come later, and replace the variables of the outer one.
            found |= dict.fromkeys(ast.walk(function), values)
    return found


def _template(node: ast.expr, variables: Variables) -> str:
    """Return the text of an expression, with … for what is not a literal; a variable is replaced by its value."""
    match node:
        case ast.Name(id=name) if name in variables:
            others = {each: value for each, value in variables.items() if each != name}
            return _template(variables[name], others)
        case ast.Call(func=ast.Attribute(attr="join"), args=[first, *_]):
            return _template(first, variables)
        case ast.List(elts=elements):
            return " ".join(_template(each, variables) for each in elements)
        case ast.Starred(value=value):
            return _template(value, variables)
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=parts):
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in parts)
        case ast.BinOp(left=left, right=right):
            return _template(left, variables) + _template(right, variables)
        case _:
            return "…"


SECTION = re.compile(r"^## (\S+)\n\n((?:(?!## ).*\n)*)", re.MULTILINE)


def explain(
    code: Annotated[
        str, typer.Argument(help="Of a finding or of an error, such as mask.inverted.")
    ],
) -> None:
    """Explain a finding of check or an error code.

    For a finding it prints what is wrong, with wrong and with right code; for an error what is expected. An
    unknown code is an error that names the nearest ones.
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
