"""What an error of a learner's code is taken for: what mends it, or what leaves nothing else; and what stood there."""

import linecache
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead._common.lessons import LESSONS
from clearhead.checking.subject.operands import failure_of

HEADS = {
    1: "def scores(query, key):\n",
    2: "def weights(scores):\n",
    3: "def context(weights, value):\n",
}


def written(number: int, body: str) -> Any:
    """What a file of this lesson defines: a function by its body, or whole."""
    text = HEADS.get(number, "") + body
    file = f"lesson_{number:02}_{abs(hash(text))}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = ModuleType(file.removesuffix(".py"))
    module.__dict__.update(torch=torch, nn=nn)
    exec(compile(text, file, "exec"), module.__dict__)
    return getattr(module, next(name for name in LESSONS[number].names if hasattr(module, name)))


def refused(number: int, body: str) -> str:
    with pytest.raises(ch.ModelError) as caught:
        ch.check(written(number, body), lesson=number)
    assert caught.value.code == "check.call"
    return caught.value.message
