"""How examples are run: Python in this process, for what it imports is there already."""

from __future__ import annotations

import gc
import runpy
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMIT_S = 100.0


def run_python(text: str, folder: Path) -> None:
    """As `python` would, from a file in `folder`.

    Raises:
        Exception: what it raised.
    """
    script = folder / "example.py"
    script.write_text(text, encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    # Clients that nobody closed are gone before the next test, and with them what they complain of.
    gc.collect()


def run_command(command: Sequence[str]) -> str:
    """What it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_shell(text: str) -> str:
    """What bash printed."""
    return run_command(["bash", "-euo", "pipefail", "-c", text])
