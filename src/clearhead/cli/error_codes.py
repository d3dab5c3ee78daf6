"""The codes of all errors with their messages, read from where the source raises them."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from clearhead import errors

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
