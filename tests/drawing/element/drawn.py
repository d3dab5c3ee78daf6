"""What stands in a figure that was drawn."""

import html
import json
import re
from typing import Any

import torch
from torch import Tensor

from clearhead.drawing.element.figure import Figure


def data_of(figure: Figure) -> dict[str, Any]:
    """What the script of a figure reads."""
    found = re.search(r'data-figure="([^"]*)"', figure.to_element(script=False))
    assert found is not None
    return json.loads(html.unescape(found[1]))


def numbers_of(listed: dict[str, Any]) -> Tensor:
    """A matrix as the script reads it."""
    numbers = torch.tensor([float(each) for each in listed["numbers"]], dtype=torch.float64)
    numbers = numbers.float().double() if listed["single"] else numbers
    return numbers.view(listed["rows"], listed["columns"])
