"""`onnxgrad` commands in this process."""

from typer.testing import CliRunner

from onnxgrad import cli


def run(*arguments: object, status: int = 0) -> tuple[str, str]:
    """Run a command, check its exit status, return standard output and standard error."""
    done = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert done.exit_code == status, done.output
    return done.stdout, done.stderr
