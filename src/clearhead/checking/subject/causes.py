"""The cause of an error that code raised, in one sentence, where the error leaves no other.

What is only likely is no cause: in a lesson the change that mends it is looked for, and elsewhere the parts of the
expression that raised are told as they were.
"""

import ast
import inspect
import re
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.lessons import ROWS
from clearhead._common.text import raised_words
from clearhead.checking.subject.operands import FailedExpression, failure_of

SHAPES = re.compile(
    r"shapes? cannot be multiplied|must match the size|size mismatch|expected size|Expected size|"
    r"only supported on matrices|tensors with 2 dimensions|\.T. on a tensor|same number of dimensions"
)
IMPORTS = {
    "torch": "import torch",
    "math": "import math",
    "nn": "from torch import nn",
    "F": "from torch.nn import functional as F",
}
METHODS = ("__init__", "forward", "__call__")
CONSTANTS = {"true": "True", "false": "False", "none": "None"}
# What the first lessons write, which the next ones may want again.
EARLIER = {row.names[0]: row for row in ROWS if row.is_part and row.number < 4}
PLAIN_T = re.compile(r"\.T$|\.t\(\)$")
NAMES = r"'?([A-Za-z_]\w*)'?"
# What is certain, and says less than the change that mends it.
GENERAL = (
    (r"got NoneType$", "it gives nothing back: return is missing"),
    (
        r"got list$",
        "it gives back a list: torch.stack makes a table of a list of rows, torch.tensor of numbers",
    ),
    (
        r"expand\(.*size=\[\]\)",
        "several numbers are put where there is room for one",
    ),
    (
        r"tensors used as indices must be",
        "what stands as an index holds numbers with a point, and a place is counted: range(len(…)) counts",
    ),
    (
        r"'NoneType' object|and 'NoneType'",
        "something here is None: a function without return gives None",
    ),
    (
        r"can't convert|only one element tensors can be converted",
        "a row stands where one number is wanted",
    ),
    (
        r"shape '.*' is invalid for input of size",
        "the sizes in view or reshape do not multiply to how many numbers there are",
    ),
)


def cause(error: BaseException, thing: Any) -> str:
    """The cause in a sentence, or "".

    Args:
        error: what the code raised.
        thing: the module or function that was called, or the class that was made.
    """
    words = raised_words(error)
    kind = thing if inspect.isclass(thing) else type(thing)
    failed = failure_of(error)
    found = _of_names(words, thing, kind) or _of_elsewhere(error) or _of_operations(words, failed)
    return f"{found}.\n" if found else ""


def in_general(error: BaseException) -> str:
    """What follows from the words of an error alone, in a sentence, or ""."""
    words = raised_words(error)
    found = next((said for pattern, said in GENERAL if re.search(pattern, words)), "")
    return f"{found}.\n" if found else ""


def _of_names(words: str, thing: Any, kind: type) -> str:
    """Causes of a name that is misspelt, or left out around a class."""
    if re.search(
        r"before Module\.__init__\(\) call|has no attribute '_(parameters|modules|buffers)'", words
    ):
        return "super().__init__() is missing: it is the first line of __init__"
    wanted = "forward" if 'missing the required "forward"' in words else ""
    lost = re.search(rf"'{kind.__name__}' object has no attribute '(\w+)'", words)
    if lost or re.search(r"__init__\(\) (takes|got)|takes no arguments", words):
        wanted = wanted or "__init__"
    if wanted and issubclass(kind, nn.Module):
        own = [
            re.sub(rf"^_{kind.__name__}(?=__)", "", name)  # as Python keeps __init_
            for name, each in vars(kind).items()
            if inspect.isfunction(each)
        ]
        near = get_close_matches(wanted, [each for each in own if each not in METHODS], 1, 0.6)
        if near and wanted not in own:
            return f"the method is called {near[0]}, and PyTorch calls {wanted}"
        if wanted == "forward":
            return "there is no method forward: PyTorch calls it with x"
    missing = re.search(rf"name {NAMES} is not defined", words)
    if missing and missing[1] in IMPORTS:
        return f"{IMPORTS[missing[1]]} is missing at the top of the file"
    if missing and missing[1] == "self":
        return "self is missing: def forward(self, x)"
    if missing and isinstance(thing, nn.Module) and hasattr(thing, missing[1]):
        return f"{missing[1]} belongs to the module: self.{missing[1]}"
    made = kind.__dict__.get("__init__")
    if missing and made is not None and missing[1] in made.__code__.co_varnames:
        return f"{missing[1]} is a name of __init__ alone, and gone when that ends: self.{missing[1]} keeps it"
    if lost and lost[1] not in METHODS:
        near = get_close_matches(lost[1], [*vars(thing), *getattr(thing, "_modules", {})], 1, 0.6)
        return f"it is called {near[0]} in __init__, and {lost[1]} here" if near else ""
    if re.search(r"takes (0|1) positional arguments? but 2 were given", words):
        return "a method takes self first: def forward(self, x)"
    return ""


def _of_elsewhere(error: BaseException) -> str:
    """Causes of a name of Python, of PyTorch or of an earlier file."""
    if isinstance(error, NameError) and (name := error.name):
        if name in CONSTANTS:
            return f"Python writes {CONSTANTS[name]}, and not {name}"
        if name in EARLIER:
            file = EARLIER[name].file.removesuffix(".py")
            return f"{name} is written in another file, and unknown here: from {file} import {name}"
        for top, path in ((torch, "torch"), (nn, "nn")):
            if hasattr(top, name) and not name.startswith("_"):
                return f"{name} is one of {path}, and called by that name: {path}.{name}"
    if (
        isinstance(error, AttributeError)
        and error.name
        and isinstance(error.obj, ModuleType | Tensor)
    ):
        near = get_close_matches(error.name, dir(error.obj), 1, 0.8)
        return f"there is no {error.name}: {near[0]} is meant" if near else ""
    return ""


def _of_operations(words: str, failed: FailedExpression | None) -> str:
    """Causes in the use of a layer, a matrix or a function of PyTorch."""
    if re.search(r"unsupported operand .*Linear", words):
        return "a layer is called, not multiplied: self.W_query(x)"
    if "'Tensor' object is not callable" in words and failed is not None and failed.called:
        name = failed.called
        return f"{name} is a table and no function: {name}[…] takes something out of it"
    if "'Parameter' object is not callable" in words:
        return "a matrix multiplies, and is not called: x @ self.W_query"
    if "view size is not compatible" in words:
        return (
            "the numbers do not lie in memory in the order that view wants, as after a transpose: "
            ".contiguous().view(…), or .reshape(…)"
        )
    if "torch.return_types.max" in words:
        return "torch.max along an axis gives the largest and their places: amax gives the largest alone"
    if re.search(r"masked_fill.*bool|boolean mask", words):
        return "masked_fill wants a mask of True and False: mask.bool()"
    if "cannot assign" in words and "as parameter" in words:
        return "a product of a parameter is none: nn.Parameter(torch.rand(…) * 0.1)"
    if failed is None or not SHAPES.search(words):
        return ""
    for each in failed.operands:
        if PLAIN_T.search(each.text) and isinstance(each.value, Tensor) and each.value.ndim > 2:
            return ".T turns all axes round, that of the samples too: .mT turns the last two"
    return _of_weights(failed)


def _of_weights(failed: FailedExpression) -> str:
    """The weight of a layer that is multiplied by as if it were (d_in, d_out)."""
    if not isinstance(failed.node, ast.BinOp) or len(failed.operands) != 2:
        return ""
    (_, left, _), (text, right, _) = failed.operands
    if not text.endswith(".weight") or not isinstance(right, nn.Parameter) or right.ndim != 2:
        return ""
    if left.shape[-1] != right.shape[1]:
        return ""
    layer = text.removesuffix(".weight")
    return f"nn.Linear(d_in, d_out) keeps its weight as (d_out, d_in): @ {text}.T, or {layer}(…)"


def is_of_shapes(error: BaseException) -> bool:
    """True of an error of axes that do not meet."""
    words = raised_words(error)
    return bool(SHAPES.search(words) or re.search(r"shape '.*' is invalid|view size", words))
