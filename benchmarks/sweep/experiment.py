"""Runs every combination; what has been measured before is not measured again."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.sweep.server import running_server
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.sweep.combinations import Combination

_LOG = "server.log"


class BenchError(BatonError):
    """A load generator ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Commands, their parameters, and a folder for the results."""

    serve: Sequence[str]
    bench: Sequence[str]
    servers: Sequence[Combination]
    loads: Sequence[Combination]
    num_runs: int
    folder: Path
    url: str
    ready_timeout_s: float

    def commands(self) -> Iterator[list[str]]:
        """Yield what `run` would start."""
        for server in self.servers:
            yield server.applied_to(self.serve)
            for load in self.loads:
                yield load.applied_to(self.bench)

    def run(self) -> list[dict[str, Any]]:
        """Measure what has no result yet; return all results and write them to `summary.csv`.

        Raises:
            UnavailableError: a server does not start; its log is in the folder.
            BenchError: a load generator ended with an error.
        """
        console = Console(stderr=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        results = [each for server in self.servers for each in self._measure(server, console)]
        _write_table(self.folder / "summary.csv", results)
        return results

    def _measure(self, server: Combination, console: Console) -> Iterator[dict[str, Any]]:
        """Yield the results on one server, which is started only if one is missing."""
        runs = [(load, number) for load in self.loads for number in range(self.num_runs)]
        missing = [run for run in runs if not self._path(server, *run).exists()]
        if missing:
            command = server.applied_to(self.serve)
            console.print(f"server: {' '.join(command)}", highlight=False, soft_wrap=True)
            log = self.folder / f"SERVE-{server.name}-{_LOG}"
            with (
                log.open("w", encoding="utf-8") as file,
                running_server(command, self.url, log=file, timeout_s=self.ready_timeout_s),
            ):
                for load, number in missing:
                    console.print(f"  load {load.name or 'as given'}, run {number}")
                    self._put_load(server, load, number)
        for run in runs:
            result: dict[str, Any] = json.loads(self._path(server, *run).read_text("utf-8"))
            yield result

    def _path(self, server: Combination, load: Combination, number: int) -> Path:
        parts = [f"{kind}-{each.name}" for kind, each in (("SERVE", server), ("BENCH", load))]
        return self.folder / "-".join(parts) / f"run={number}.json"

    def _put_load(self, server: Combination, load: Combination, number: int) -> None:
        """Run the load generator; its result gets the values of both combinations."""
        path = self._path(server, load, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        where = ["--save-result", "--result-dir", str(part.parent), "--result-filename", part.name]
        command = [*load.applied_to(self.bench), *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        result = json.loads(part.read_text("utf-8"))
        result |= {"run_number": number, **server.values, **load.values}
        part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        part.rename(path)


def _write_table(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write one row for each result; lists are left out."""
    rows = [{k: v for k, v in each.items() if not isinstance(v, list | dict)} for each in results]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
