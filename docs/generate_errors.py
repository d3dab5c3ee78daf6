"""Write errors.md: every error code, read from where the errors are raised.

`python docs/generate_errors.py` writes the page; a test holds it against the source.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "clearhead"
PAGE = ROOT / "docs" / "errors.md"

HEAD = """# Errors

Every error that clearhead raises on purpose is a `ClearheadError`, subclasses the builtin that a
caller would expect, and carries a stable `code`. Nothing has been computed when one is raised.

```python
import torch, clearhead as ch

try:
    ch.attend(torch.zeros(2, 3, 4), torch.zeros(2, 7, 4), torch.zeros(2, 5, 4))
except ValueError as error:
    print(type(error).__name__, error.code)
    print(error)
```

```text
ShapeError shape.kv-len
[shape.kv-len] key and value must have the same kv_len; got 7 and 5.
  query  [batch=1, num_heads=2, query_len=3, head_dim=4] float32 cpu
  key    [batch=1, num_kv_heads=2, kv_len=7, head_dim=4] float32 cpu
  value  [batch=1, num_kv_heads=2, kv_len=5, value_head_dim=4] float32 cpu
```

A `FileError` for a file or a folder that is not there is a `FileNotFoundError` as well.

In the table `…` stands for what the message fills in: sizes, dtypes, names. On the command line,
`clearhead explain shape.kv-len` prints what the table says of a code.

| code | error | what it says |
|---|---|---|
"""


def error_classes() -> set[str]:
    tree = ast.parse((SOURCE / "errors.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def template(node: ast.expr, variables: dict[str, ast.expr]) -> str:
    """The text of an expression, with … for what is only known when it runs."""
    if isinstance(node, ast.Name) and node.id in variables:
        others = {name: each for name, each in variables.items() if name != node.id}
        return template(variables[node.id], others)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join" and node.args:
        return template(node.args[0], variables)
    if isinstance(node, ast.List):
        return " ".join(template(each, variables) for each in node.elts)
    if isinstance(node, ast.Starred):
        return template(node.value, variables)
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return template(node.left, variables) + template(node.right, variables)
    return "…"


def variables_of(tree: ast.Module) -> dict[ast.AST, dict[str, ast.expr]]:
    """The variables of the function that each node stands in, as they are first assigned."""
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            variables: dict[str, ast.expr] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    variables.setdefault(node.targets[0].id, node.value)
            # Those of an inner function come later.
            found |= dict.fromkeys(ast.walk(function), variables)
    return found


def rows() -> list[tuple[str, str, str]]:
    classes = error_classes()
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        variables = variables_of(tree)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in classes
                and len(node.args) == 2
            ):
                known = variables.get(node, {})
                code, message = (template(argument, known) for argument in node.args)
                found.add((code, node.func.id, " ".join(message.split())))
    return sorted(found)


def page() -> str:
    lines = [
        f"| `{code}` | {name} | {message.replace('|', chr(92) + '|')} |"
        for code, name, message in rows()
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
