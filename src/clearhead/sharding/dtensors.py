"""DTensors, PyTorch's tensors that know which rank has which part of them, at the boundary of a call."""

import sys
from collections.abc import Sequence
from typing import Any

from clearhead.errors import UnsupportedError


def is_dtensor(tensor: object) -> bool:
    """Return True for a DTensor; its module is not imported, because that takes long.

    Without it nothing is a DTensor.
    """
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def check_plain(query: object, others: Sequence[object], options: str) -> None:
    """Raise an error unless query, key and value are all plain, or all DTensors without options in `options`.

    Args:
        query: of a call.
        others: its key and value.
        options: the names of the options given that no DTensor goes with, joined by commas; "" for none.

    Raises:
        UnsupportedError: code `dtensor.plain`.
    """
    given = [is_dtensor(each) for each in (query, *others)]
    if any(given) and (options or not all(given)):
        raise UnsupportedError(
            "dtensor.plain",
            "DTensors go into attend all three, and with no mask, bias, sinks or across=; got "
            f"{sum(given)} of three{options and ', with ' + options}. Give this rank's samples, heads or "
            "tokens alone: query.to_local().",
        )
