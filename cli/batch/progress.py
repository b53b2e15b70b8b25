"""Progress of a batch: a bar on a terminal, and a summary at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console

#: Number of answers for the measured speed: older ones predict the remaining time less well.
SPEED_WINDOW_S = 30.0


class BatchProgress:
    """Counters and display; use it as a context manager."""

    def __init__(self, console: Console, *, num_items: int, num_done: int) -> None:
        """Start the display. `num_done` of `num_items` were answered before."""
        self.num_answered = 0
        self.num_refused = 0
        self.num_tokens = 0
        self._started_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=SPEED_WINDOW_S,
        )
        self._task = self._progress.add_task(
            "requests", total=num_items, completed=num_done, speed=""
        )

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second since the beginning."""
        return self.num_tokens / max(time.monotonic() - self._started_s, 1e-9)

    def answered(self, line: dict[str, Any]) -> None:
        """Count an answered request."""
        self.num_answered += 1
        response = line["response"]
        if response["status_code"] != 200 or line["error"] is not None:
            self.num_refused += 1
        self.num_tokens += _num_tokens(response["body"])
        self._progress.update(self._task, advance=1, speed=f"{self.tokens_per_s:.1f} tokens/s")

    def summary(self) -> str:
        """Return the summary of this run."""
        took_s = time.monotonic() - self._started_s
        return (
            f"{self.num_answered} answers in {took_s:.1f} s, {self.num_tokens} tokens "
            f"({self.tokens_per_s:.1f} tokens/s)"
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _num_tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0
    # The APIs have two names for it.
    value = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return value if isinstance(value, int) else 0
