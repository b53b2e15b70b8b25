"""The scripted router as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def router_process() -> Iterator[str]:
    """Its address, for as long as the block runs."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.scripted.router"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
