"""What a command tells its user when it cannot go on."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class CommandError(Exception):
    """Ends the command: what is wrong, what to do about it, and the exit code."""

    def __init__(self, message: str, *, advice: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.advice = advice
        self.exit_code = exit_code
