"""What is left of a compilation."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from kernels.native import build

if TYPE_CHECKING:
    from pathlib import Path

#: Like a compiler's driver: another process does the work, and its number is written down.
DRIVER = """#!/bin/sh
case "$*" in *--version*) echo fake; exit 0;; esac
sleep 600 &
echo $! >> "$CHILDREN"
wait
"""


def test_no_process_is_left_when_a_compiler_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, children = tmp_path / "driver", tmp_path / "children"
    driver.write_text(DRIVER)
    driver.chmod(0o755)
    monkeypatch.setenv("CXX", str(driver))
    monkeypatch.setenv("CHILDREN", str(children))
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "_COMPILE_TIMEOUT_S", 1)
    with pytest.raises(build.NativeUnavailableError, match="did not end in time"):
        build.build_library()
    started = [int(line) for line in children.read_text().split()]
    assert started
    deadline = time.monotonic() + 30
    while any(map(_runs, started)):
        assert time.monotonic() < deadline, started
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
