"""`clearhead`, and `python -m clearhead`."""

import os
import sys

from clearhead.errors import MissingExtraError


def main() -> int:
    """Run the command line; return the exit code, 130 after Ctrl-C.

    Without what the command line needs, it says how to install that, and returns 1. Sets OMP_WAIT_POLICY if it is
    unset.
    """
    # PyTorch's threads spin after each parallel region, which next to other busy processes is most of what a call
    # costs. It is read when PyTorch is loaded, so a library cannot say it for others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from clearhead.cli import run

        return run()
    except MissingExtraError as error:
        print(f"clearhead: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while the command line itself was being imported
        return 130


if __name__ == "__main__":
    sys.exit(main())
