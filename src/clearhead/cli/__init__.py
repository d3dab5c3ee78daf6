"""The command line, one module per command.

PyTorch, transformers and matplotlib take seconds to import, so each command imports what it needs.
"""

import warnings

from clearhead.errors import missing_extra

# PyTorch says so as often as it is loaded, and nothing here needs NumPy.
warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)

try:
    from clearhead.cli.command_line import app as app
    from clearhead.cli.command_line import run as run
except ModuleNotFoundError as error:
    if error.name not in ("rich", "typer"):
        raise
    raise missing_extra(error.name, "cli", "the command line") from error
