"""The solution of a lesson under the names of a learner's program."""

import ast
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import cache
from typing import TypeGuard

from clearhead._common.foreign_names import role
from clearhead._common.lessons import LessonRow, docs

# The least similarity of the values of two names that mean the same.
ALIKE = 0.7


def in_words_of(tree: ast.Module, solution: str) -> ast.Module:
    """Return the definitions of a solution in the order and under the names of a program; the tree is not changed.

    Args:
        tree: of the program; a definition that the solution lacks is taken as it is.
        solution: the text of the lesson's own.
    """
    theirs, mine = ast.parse(solution), attributes(tree)
    free = [each for each in mine if each not in attributes(theirs)]
    held = {
        each: each if each in mine else next((name for name in free if _is_alike(name, each)), each)
        for each in attributes(theirs)
    }
    named = {
        each.name: each for each in theirs.body if isinstance(each, ast.FunctionDef | ast.ClassDef)
    }
    return ast.Module([_matched(each, named, held) for each in tree.body], [])


@cache
def _on_page(slug: str) -> str:
    """Return the text of the solution on the page of a lesson, "" if the page has none; cached."""
    page = docs(f"lessons/{slug}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python solution\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return "\n\n".join(blocks)


def solution_of(row: LessonRow) -> str:
    """Return the program of an exercise, or else that on the page of its lesson."""
    return row.solution or _on_page(row.slug)


def attributes(tree: ast.AST) -> list[str]:
    """Return the attributes of self in a tree, each once."""
    return list(dict.fromkeys(each.attr for each in ast.walk(tree) if is_of_self(each)))


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return whether a node is an attribute of self."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def scope(function: ast.FunctionDef) -> list[str]:
    """Return the arguments of a function without self, and the names that it assigns, each once."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    for each in ast.walk(function):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.append(each.id)
    return list(dict.fromkeys(names))


def _is_alike(one: str, other: str) -> bool:
    """Return True if two names have the same role, such as query; False if they have none."""
    return role(other) is not None and role(one) == role(other)


def _matched(
    mine: ast.stmt, named: Mapping[str, ast.FunctionDef | ast.ClassDef], held: Mapping[str, str]
) -> ast.stmt:
    """Return the solution's definition of the same name under the learner's names, or the statement if there is none.

    A class gets the learner's methods and bases, and the methods that only the solution has.
    """
    theirs = named.get(getattr(mine, "name", ""), mine)
    if isinstance(mine, ast.FunctionDef) and isinstance(theirs, ast.FunctionDef):
        return _renamed(theirs, mine, held)
    if isinstance(mine, ast.ClassDef) and isinstance(theirs, ast.ClassDef):
        own, others = (
            {each.name: each for each in some.body if isinstance(each, ast.FunctionDef)}
            for some in (mine, theirs)
        )
        body: list[ast.stmt] = [
            _renamed(others.get(name, each), own.get(name, each), held)
            for name, each in {**own, **others}.items()
        ]
        return ast.ClassDef(mine.name, mine.bases, mine.keywords, body, [])
    return mine


def _renamed(
    theirs: ast.FunctionDef, mine: ast.FunctionDef, held: Mapping[str, str]
) -> ast.FunctionDef:
    """Return a copy of a function of the solution under the names of the learner's.

    Arguments match by position, variables by equal names, by similar values, then by their role; others keep their
    names.
    """
    names = {
        one.arg: other.arg for one, other in zip(theirs.args.args, mine.args.args, strict=False)
    }
    known = scope(mine)
    names |= {each: each for each in scope(theirs) if each in known and each not in names}
    own = [(ast.unparse(each.targets[0]), ast.unparse(each.value)) for each in _assigned(mine)]
    for each in _assigned(theirs):
        if isinstance(each.targets[0], ast.Name) and each.targets[0].id not in names:
            words = re.split(r"\b", ast.unparse(each.value))
            value = "".join(names.get(word, word) for word in words)
            alike = [
                (SequenceMatcher(None, value, other, autojunk=False).ratio(), name)
                for name, other in own
                if name.isidentifier() and name not in names.values()
            ]
            likeness, name = max(alike, default=(0.0, ""))
            if likeness > ALIKE:
                names[each.targets[0].id] = name
    for each in scope(theirs):
        same = [name for name in known if _is_alike(name, each)]
        names.setdefault(each, (same or [each])[0])
    (made,) = ast.parse(ast.unparse(theirs)).body
    assert isinstance(made, ast.FunctionDef)
    for node in ast.walk(made):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)
        elif is_of_self(node):
            node.attr = held.get(node.attr, node.attr)
    return made


def _assigned(function: ast.FunctionDef) -> list[ast.Assign]:
    """Return the assignments in a function, those in nested blocks included."""
    return [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
