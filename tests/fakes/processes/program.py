"""Runs a file as the main one: `python -m tests.fakes.processes.program FILE ARGUMENT …`.

See `run_warm`.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import TYPE_CHECKING

from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from pathlib import Path


def run_warm(text: str, folder: Path, timeout_s: float = 60.0) -> tuple[int, str]:
    """What a program ends with and writes, in a process that has loaded a worker's modules."""
    program, log = folder / "program.py", folder / "program.log"
    program.write_text(text, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("wb") as file:
        argv = ("tests.fakes.processes.program", str(program))
        process = WarmProcess(argv, cwd=folder, env=environ, log=file)
    try:
        return process.wait(timeout_s), log.read_text(encoding="utf-8")
    finally:
        process.kill()


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
