"""The command line, one module per command.

PyTorch, transformers and matplotlib take seconds to import, so each command imports what it needs.
"""

import warnings

from clearhead._common.lazy import importing

# PyTorch says so as often as it is loaded, and nothing here needs NumPy.
warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)

with importing("rich", "typer", extra="cli", purpose="the command line"):
    from clearhead.cli.command_line import app as app
    from clearhead.cli.command_line import run as run
