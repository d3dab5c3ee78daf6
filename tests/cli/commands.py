"""Running the command line inside a test."""

from typer.testing import CliRunner, Result

from clearhead.cli import app


def invoke(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=text, env={"COLUMNS": "80"})


def lines(*arguments: str, text: str | None = None) -> list[str]:
    result = invoke(*arguments, text=text)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout.splitlines()
