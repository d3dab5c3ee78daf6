"""The cause of an error that code raised, in one sentence: what PyTorch says is what followed from it."""

import inspect
import re
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from clearhead._common.text import raised_words
from clearhead.checking.subject.refusals import place

SHAPES = re.compile(
    r"shapes? cannot be multiplied|must match the size|size mismatch|expected size|Expected size|"
    r"only supported on matrices|tensors with 2 dimensions|\.T. on a tensor|same number of dimensions"
)
METHODS = ("__init__", "forward", "__call__")
PLAIN_T = re.compile(r"\.T\b|\.t\(\)")
TURNED = re.compile(r"\.mT\b|\.T\b|\.t\(\)|transpose|permute|einsum|swapaxes|movedim")
MULTIPLIES = re.compile(r"@|matmul|\bmm\(|bmm\(")
NAMES = r"'?([A-Za-z_]\w*)'?"


def cause(
    error: BaseException, thing: Any, width: int | None = None, axes: int = 0, takes: str = ""
) -> str:
    """The likely cause in a sentence, or "".

    Args:
        error: what the code raised.
        thing: the module or function that was called, or the class that was made.
        width: of the tokens that went in.
        axes: of what went in.
        takes: how it was called.
    """
    words = raised_words(error)
    at = place(error)
    line = at[2] if at is not None else ""
    kind = thing if inspect.isclass(thing) else type(thing)
    found = (
        _of_names(words, thing, kind)
        or _of_layers(words, line, thing, width)
        or _of_shapes(words, line, axes, takes)
        or _of_values(words, line)
    )
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
        own = [name for name, each in vars(kind).items() if inspect.isfunction(each)]
        near = get_close_matches(wanted, [each for each in own if each not in METHODS], 1, 0.6)
        if near and wanted not in own:
            return f"the method is called {near[0]}, and PyTorch calls {wanted}"
        if wanted == "forward":
            return "there is no method forward: PyTorch calls it with x"
    missing = re.search(rf"name {NAMES} is not defined", words)
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


def _of_layers(words: str, line: str, thing: Any, width: int | None) -> str:
    """Causes in the use of a layer."""
    if re.search(r"unsupported operand .*Linear", words):
        return "a layer is called, not multiplied: self.W_query(x)"
    if re.search(r"'Parameter' object is not callable|'Tensor' object is not callable", words):
        return "a matrix multiplies, and is not called: x @ self.W_query"
    other = re.search(r"to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]", words)
    if other and MULTIPLIES.search(line) and width is not None and int(other[1]) == width:
        return (
            f"what is {width} wide, as x is, meets what is {other[2]} wide: query and key are each made by a "
            "matrix of their own"
        )
    if "shapes cannot be multiplied" not in words or not isinstance(thing, nn.Module):
        return ""
    bare = re.search(r"@ *(self\.\w+)\.weight\b(?!\.(T|mT|t\(|transpose))", line)
    if bare:
        return f"nn.Linear(d_in, d_out) keeps its weight as (d_out, d_in): @ {bare[1]}.weight.T, or {bare[1]}(…)"
    for name in re.findall(r"@ *self\.(\w+)", line):
        matrix = getattr(thing, name, None)
        if (
            isinstance(matrix, Tensor)
            and matrix.ndim == 2
            and matrix.shape[1] == width != matrix.shape[0]
        ):
            return f"{name} is turned round: its rows are as many as x is wide, (d_in, d_out), and that is {width}"
    turned = [
        name
        for name, part in thing.named_modules()
        if isinstance(part, nn.Linear)
        and part.out_features == width != part.in_features
        and (name.rpartition(".")[2] in line or "self." not in line)
    ]
    if turned:
        return (
            f"{turned[0]} is turned round: nn.Linear(d_in, d_out) says first how wide is what goes in, and "
            f"that is {width}"
        )
    return _of_widths(words, line, width)


def _of_widths(words: str, line: str, width: int | None) -> str:
    """A row of another width than what it meets."""
    met = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", words)
    name = re.search(r"self\.(\w+)\(", line)
    if met and name and int(met[2]) != width == int(met[3]):
        return (
            f"{name[1]} takes rows of x, {width} wide, and is given rows of {met[2]}: query, key and value are "
            "each made of x"
        )
    return ""


def is_of_shapes(error: BaseException) -> bool:
    """True of an error of axes that do not meet."""
    words = raised_words(error)
    return bool(SHAPES.search(words) or re.search(r"shape '.*' is invalid|view size", words))


def _of_shapes(words: str, line: str, axes: int, takes: str) -> str:
    """Axes that do not meet."""
    if "view size is not compatible" in words:
        return (
            "after a transpose the numbers are no longer in a row in memory, which view wants: "
            ".contiguous().view(…), or .reshape(…)"
        )
    if re.search(r"shape '.*' is invalid for input of size", words):
        return "the sizes in view or reshape do not multiply to how many numbers there are"
    if axes > 2 and PLAIN_T.search(line) and (SHAPES.search(words) or "deprecated" in words):
        return ".T turns all axes round, that of the samples too: .mT turns the last two"
    if SHAPES.search(words) and re.search(r"\b(cos|sin|angles?)\b", line):
        return "the angles are a table of tokens and pairs: rows.shape[-2] counts the tokens, rows.shape[-1] the width"
    if SHAPES.search(words) and re.search(r"mask|tril|triu|past|future|hidden", line):
        return "the mask is not cut to the tokens at hand: mask[:n, :n], with n = x.shape[-2]"
    if takes == "decode" and (SHAPES.search(words) or "must match" in words):
        return (
            "keys and values do not fit what is kept: both are put behind the old ones along the axis of "
            "tokens, torch.cat([…], dim=1)"
        )
    if SHAPES.search(words) and MULTIPLIES.search(line) and takes == "weights,value":
        return (
            "a row of the weights has a number for each key, and the values have a row for each key: they "
            "meet as weights @ value"
        )
    if SHAPES.search(words) and MULTIPLIES.search(line) and not TURNED.search(line):
        return "the keys are not turned: queries @ keys.mT pairs the rows of both"
    if SHAPES.search(words) and "sum(" in line and "keepdim" not in line:
        return "the sums of the rows are laid along the columns: sum(dim=-1, keepdim=True)"
    if axes == 2 and SHAPES.search(words) and "*" in line and not MULTIPLIES.search(line):
        return "* goes number by number, and these two are of different sizes"
    if re.search(r"index \d+ is out of bounds", words):
        return (
            "an index is larger than its axis: the two of [i, j] are turned round, or a loop counts "
            "another axis than the one that it reads"
        )
    return ""


def _of_values(words: str, line: str) -> str:
    """Causes of a thing that is not there, or of another kind."""
    if re.search(r"got NoneType$", words):
        return "it gives nothing back: return is missing"
    if re.search(r"got list$", words):
        return "it gives back a list: torch.stack makes a table of a list of rows, torch.tensor of numbers"
    if "tensors used as indices must be" in words:
        return "a row stands where its number is wanted: for i in range(len(rows)) counts them"
    if "torch.return_types.max" in words:
        return "torch.max along an axis gives the largest and their places: amax gives the largest alone"
    if re.search(r"expand\(.*size=\[\]\)", words):
        return "several numbers are put where there is room for one: add them up first"
    if "'NoneType' object" in words or "and 'NoneType'" in words:
        return "something here is None: a function without return gives None"
    if re.search(r"masked_fill.*bool|boolean mask", words):
        return "masked_fill wants a mask of True and False: mask.bool()"
    if "cannot assign" in words and "as parameter" in words:
        return "a product of a parameter is none: nn.Parameter(torch.rand(…) * 0.1)"
    if re.search(r"can't convert|only one element tensors can be converted", words):
        return "a row stands where one number is wanted"
    return ""
