"""The process that loads changed checkpoints: it may crash, and its memory and time are its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds of the clock for one load, however busy the machine is.
_CASE_S = 90.0


@dataclass(frozen=True)
class Outcome:
    """The result of a load."""

    #: `loaded`, `refused`, or `failed`: with anything but an error for people.
    what: str
    message: str = ""
    trace: str = ""
    growth_bytes: int = 0
    #: Of rotary angles, which are computed and not read.
    table_bytes: int = 0


class LoadingProcess:
    """One that is started again if it ends."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._process: subprocess.Popen[str] | None = None

    def load(self, model: Path, *, backend: str, dtype: str = "auto") -> Outcome:
        """Load a model there."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"model": str(model), "backend": backend, "dtype": dtype}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        is_there, _, _ = select.select([process.stdout], [], [], _CASE_S)
        line = process.stdout.readline() if is_there else ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return Outcome(found.pop("outcome"), **found)
        process.kill()
        code = process.wait()
        self._process = None
        return Outcome("failed", f"the process ended with {code}" if is_there else "it hangs")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.checkpoints.worker", str(self._cache)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ".:proto:client"},
            )
        return self._process
