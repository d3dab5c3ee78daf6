"""`clearhead`, and `python -m clearhead`."""

import sys

from clearhead.errors import MissingExtraError


def main() -> int:
    """Run the command line; returns the exit code.

    Without what the command line needs, it says how to install that, and returns 1.
    """
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
