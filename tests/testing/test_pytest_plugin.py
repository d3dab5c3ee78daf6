"""The plugin of pytest, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.testing.tolerances import chosen

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


    def test_given():
        assert conformance(unscaled, features=())[0].seed == 7
        assert conformance(unscaled, features=(), seed=3)[0].seed == 3
        assert_attention(unscaled, takes="qkv", seed=3)


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
    pytester.makepyfile(test_them=WRONG)
    return pytester.runpytest_inprocess(*LOADED, *arguments)


def test_a_failure_is_the_report(pytester: pytest.Pytester) -> None:
    result = ran(pytester, "-k", "test_mine")
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
    assert "clearhead: seed" not in result.stdout.str()


CASE = [
    "*_ test_cases?plain-7x11-float32? _*",
    "*: in test_cases",
    "    case.run()",
    "E   AssertionError: plain-7x11-float32: the context (float32) is wrong by *",
    "E     case: the plain attention; * seed 7",
    "*FAILED*",
]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["-k", "test_cases and 7x11", "--clearhead-seed=7"], CASE),
        # What somebody else raises is shown in full, and a style that is asked for stays.
        (["-k", "test_broken"], ["*def breaks(query, key, value):*", ">*return query @ value"]),
        (["-k", "test_other"], ["    def test_other():", ">       assert 1 + 1 == 3"]),
        (["-k", "test_mine", "--tb=line"], ["*test_them.py:*: AssertionError: unscaled, seed 0"]),
        (
            ["-k", "test_mine", "--clearhead-seed=7"],
            ["clearhead: seed 7", "*E   AssertionError: unscaled, seed 7"],
        ),
        (["-k", "test_given", "--clearhead-seed=7"], ["*E   AssertionError: unscaled, seed 3"]),
        (["--clearhead-seed=x"], ["*--clearhead-seed: invalid int value: 'x'"]),
    ],
    ids=lambda each: "",
)
def test_what_is_shown(pytester: pytest.Pytester, options: list[str], lines: list[str]) -> None:
    result = ran(pytester, *options)
    (result.stderr if "=x" in options[0] else result.stdout).fnmatch_lines(lines)
    assert "suite.py" not in result.stdout.str()
    assert "cases.py" not in result.stdout.str()
    # The seed is gone afterwards.
    assert chosen(None) == 0


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
