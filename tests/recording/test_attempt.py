"""The result of a call, or its error."""

import pytest

from clearhead.recording.attempt import attempt


def test_a_result_has_no_error() -> None:
    assert attempt(int, "7") == (7, None)


def test_an_error_has_no_result() -> None:
    result, error = attempt(int, "seven")
    assert result is None
    assert isinstance(error, ValueError)


def test_an_end_of_the_program_is_no_error_of_the_code() -> None:
    def ends() -> None:
        raise SystemExit(2)

    with pytest.raises(SystemExit):
        attempt(ends)
