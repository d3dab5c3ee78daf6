"""The plugin of pytest, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

# By its module, and not a second time by the name under which an installation has it.
LOADED = ("-p", "no:clearhead", "-p", "clearhead.testing.pytest_plugin", "-p", "no:cacheprovider")

WRONG = """
    import pytest
    import clearhead as ch
    from clearhead.testing import assert_attention, conformance


    def unscaled(query, key, value, mask=None):
        scores = query @ key.mT
        return scores.softmax(-1) @ value


    def breaks(query, key, value):
        return query @ value


    def test_mine():
        assert_attention(
            unscaled,
            takes="qkv",
        )


    @pytest.mark.parametrize("case", conformance(unscaled, features=()))
    def test_cases(case):
        case.run()


    @pytest.mark.parametrize("case", conformance(breaks, features=())[:1])
    def test_broken(case):
        case.run()


    def test_other():
        assert 1 + 1 == 3
"""


def ran(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*LOADED, *arguments)


@pytest.fixture
def place(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(WRONG)
    return pytester


def test_a_failure_is_the_report(place: pytest.Pytester) -> None:
    result = ran(place, "-k", "test_mine")
    result.assert_outcomes(failed=1)
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if "test_mine" in line and line[0] == "_")
    assert lines[start + 1].endswith(": in test_mine")
    assert lines[start + 2 : start + 4] == [
        "    assert_attention(",
        "E   AssertionError: unscaled, seed 0",
    ]
    assert lines[start + 4].startswith("E   ✗ scale.missing   the scores are not scaled")
    # What follows is the report, down to the summary.
    end = next(i for i, line in enumerate(lines) if "short test summary" in line)
    assert all(line.startswith("E   ") for line in lines[start + 4 : end])


def test_a_case_is_the_report_too(place: pytest.Pytester) -> None:
    result = ran(place, "-k", "test_cases and 7x11")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_cases?plain-7x11-float32? _*",
            "*: in test_cases",
            "    case.run()",
            "E   AssertionError: plain-7x11-float32: the context (float32) is wrong by *",
            "E     case: the plain attention; * seed 0",
            "*FAILED*",
        ]
    )
    assert "suite.py" not in result.stdout.str()
    assert "cases.py" not in result.stdout.str()


def test_what_somebody_else_raises_is_shown_in_full(place: pytest.Pytester) -> None:
    result = ran(place, "-k", "test_broken")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*def breaks(query, key, value):*", ">*return query @ value"])
    result = ran(place, "-k", "test_other")
    result.stdout.fnmatch_lines(["    def test_other():", ">       assert 1 + 1 == 3"])


def test_a_style_that_is_asked_for_stays(place: pytest.Pytester) -> None:
    result = ran(place, "-k", "test_mine", "--tb=line")
    result.stdout.fnmatch_lines(
        ["*test_a_style_that_is_asked_for_stays.py:*: AssertionError: unscaled, seed 0"]
    )


def test_the_seed(place: pytest.Pytester) -> None:
    result = ran(place, "--clearhead-seed=7", "-k", "test_mine or 7x11")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["clearhead: seed 7"])
    result.stdout.fnmatch_lines(["E   AssertionError: unscaled, seed 7"])
    result.stdout.fnmatch_lines(["E     case: the plain attention; * seed 7"])


def test_the_seed_is_shown_where_it_is_given(place: pytest.Pytester) -> None:
    assert "clearhead: seed" not in ran(place, "-k", "test_mine").stdout.str()
    ran(place, "--clearhead-seed=x").stderr.fnmatch_lines(
        ["*--clearhead-seed: invalid int value: 'x'"]
    )


def test_the_seed_is_gone_afterwards(place: pytest.Pytester) -> None:
    from clearhead.testing.tolerances import chosen

    ran(place, "--clearhead-seed=7", "-k", "test_other")
    assert chosen(None) == 0


def test_a_seed_that_is_given_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from clearhead.testing import assert_attention, conformance

        def test_seeds():
            cases = conformance(lambda q, k, v: q, features=()), conformance(lambda q, k, v: q, features=(), seed=3)
            assert [each[0].seed for each in cases] == [7, 3]

        def test_mine():
            assert_attention(lambda q, k, v: q @ k.mT @ v, takes="qkv", seed=3)
        """
    )
    result = ran(pytester, "--clearhead-seed=7")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E   AssertionError: <lambda>, seed 3"])


def test_who_does_not_use_it_does_not_import_pytorch(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_light():\n"
        "    assert 'clearhead.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'clearhead.testing.suite', 'jaxtyping', 'numpy'} & set(sys.modules)\n"
    )
    others = ("jaxtyping", "hypothesispytest", "anyio")
    without = [option for name in others for option in ("-p", f"no:{name}")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *LOADED, *without, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout
