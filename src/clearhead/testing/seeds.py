"""The seed that tests draw by: of the command line of pytest, or 0."""

import sys

from clearhead.errors import ArgumentTypeError


def chosen(seed: int | None) -> int:
    """Return the seed if it is not None, else that of `pytest --clearhead-seed`, else 0.

    Raises:
        ArgumentTypeError: code `seed.type`, for a seed that is no whole number (a bool is none).
    """
    if seed is None:
        # Without pytest nobody has loaded the plugin.
        plugin = sys.modules.get("clearhead.testing.pytest_plugin")
        return 0 if plugin is None else plugin.seed()
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ArgumentTypeError(
            "seed.type",
            "seed must be a whole number, or None for that of --clearhead-seed; got "
            f"{type(seed).__name__}.",
        )
    return seed
