"""Rules for restarting ended processes of a running cluster, and for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.processes import ServiceProcess

#: A process that ends this soon after a restart is not restarted again.
MIN_LIFE_S = 10.0


class Restarts:
    """The processes of one kind. While one of them runs, ended ones are restarted."""

    def __init__(self, processes: Sequence[ServiceProcess]) -> None:
        self._processes = processes
        self._started_again: set[str] = set()
        self._given_up: set[str] = set()

    def look(self, say: Callable[[str], None]) -> None:
        """Restart ended processes, and `say` a line about each.

        Raises:
            CommandError: none is running; with the reason of the first end.
        """
        ended = [each for each in self._processes if not each.running]
        if ended and len(ended) == len(self._processes):
            ended[0].require_running()
        for process in ended:
            if process.name not in self._given_up:
                say(self._start_again(process))

    def _start_again(self, process: ServiceProcess) -> str:
        why = process.why_it_ended()
        if process.name in self._started_again and process.age_s < MIN_LIFE_S:
            self._given_up.add(process.name)
            return f"{why}; it is not restarted, the others continue (log: {process.log})"
        self._started_again.add(process.name)
        process.start()
        return f"{why}; it is restarted, the others continue meanwhile (log: {process.log})"
