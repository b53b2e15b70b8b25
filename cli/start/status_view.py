"""Live display of a cluster's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cli.start.status import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from cli.start.status import Status


class StatusView:
    """A line per process, redrawn in place; without a terminal, a line per change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=10, transient=True)
        self._shown: dict[str, State] = {}
        self._spinners: dict[str, Spinner] = {}

    def show(self, statuses: Sequence[Status]) -> None:
        """Draw the changes."""
        for status in statuses:
            if self._shown.get(status.name) is status.state:
                continue
            self._shown[status.name] = status.state
            if not self._console.is_terminal:
                self._console.print(f"{status.name}: {status.state}")
        if self._console.is_terminal:
            self._live.update(self._table(statuses))

    def __enter__(self) -> StatusView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _table(self, statuses: Sequence[Status]) -> Table:
        table = Table.grid(padding=(0, 2))
        for status in statuses:
            table.add_row(self._mark(status), status.name, Text(status.state, style="dim"))
        return table

    def _mark(self, status: Status) -> RenderableType:
        if status.state is State.READY:
            return Text("●", style="green")
        return self._spinners.setdefault(status.name, Spinner("dots", style="yellow"))
