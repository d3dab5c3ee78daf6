"""The command line, one file a command.

PyTorch, transformers and matplotlib take seconds to import, so each command imports what it needs.
"""

from clearhead.errors import missing_extra

try:
    from clearhead.cli.program import app as app
    from clearhead.cli.program import run as run
except ModuleNotFoundError as error:
    if error.name not in ("rich", "typer"):
        raise
    raise missing_extra(error.name, "cli", "the command line") from error
