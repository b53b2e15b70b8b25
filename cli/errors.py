"""Errors of commands, with a remedy for the user."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class CommandError(Exception):
    """Ends the command: the problem, the remedy, and the exit code."""

    def __init__(
        self, message: str, *, advice: str = "", details: str = "", exit_code: int = EXIT_FAILED
    ) -> None:
        """Make an error. `details` are printed before the message, so that it stays visible."""
        super().__init__(message)
        self.advice = advice
        self.details = details
        self.exit_code = exit_code


def complain(error: CommandError) -> None:
    """Print the error on standard error."""
    import typer

    if error.details:
        typer.secho(error.details, err=True)
    typer.secho(f"baton: {error}", err=True, fg=typer.colors.RED)
    if error.advice:
        typer.secho(f"       {error.advice}", err=True)
