"""The plugin of pytest: `--clearhead-seed`, and failures that are the report and nothing else.

Every pytest loads it in whose environment clearhead is installed, so it imports nothing else of
clearhead; `clearhead.testing` looks for it where it is loaded.
"""

from collections.abc import Iterator

import pytest

# One for each pytest that is running: tests of plugins run one inside the other.
_seeds: list[int | None] = []


def seed() -> int:
    """Return the seed of the innermost running pytest session; 0 if its command line has none."""
    return next((each for each in _seeds[-1:] if each is not None), 0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --clearhead-seed."""
    parser.getgroup("clearhead").addoption(
        "--clearhead-seed",
        type=int,
        default=None,
        metavar="N",
        help="what clearhead's assert_attention and conformance draw their inputs by (default: 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the seed of the option for this session."""
    _seeds.append(config.getoption("clearhead_seed"))


def pytest_unconfigure() -> None:
    """Restore the seed from before the session."""
    _seeds.pop()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the header line with the seed, or None if no seed was given."""
    given = config.getoption("clearhead_seed")
    return None if given is None else f"clearhead: seed {given}"


# Not `wrapper=True`, which older versions of pytest do not know.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Use short tracebacks for a failed assertion of clearhead, so that the report is all that is shown.

    Another style than "auto" that was asked for stays, as do the tracebacks of errors of the tested code.
    """
    style = item.config.option.tbstyle
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError) and style == "auto":
        raised_by = call.excinfo.traceback[-1].frame.f_globals.get("__name__", "")
        if raised_by.startswith("clearhead.testing.") and call.excinfo.value.__cause__ is None:
            item.config.option.tbstyle = "short"
    yield
    item.config.option.tbstyle = style
