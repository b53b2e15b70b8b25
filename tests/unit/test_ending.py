"""A process that ends at once still does what any process does at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from shared.ending import end_process

class Torn:
    def __del__(self):
        print("taken apart")

def late(what):
    time.sleep(0.2)
    # In one piece: the other thread may write between a print's text and its end of line.
    sys.stdout.write(what + "\\n")

kept = Torn()
atexit.register(print, "registered")
threading.Thread(target=late, args=("thread",)).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
ThreadPoolExecutor(1).submit(late, "pool")
sys.stderr.write("said")
CLOSE
end_process(3)
"""


def run(close: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("CLOSE", close)
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_waits_for_threads_runs_what_is_registered_and_writes_what_was_said() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (3, "said")
    *threads, last = done.stdout.splitlines()
    assert sorted(threads) == ["pool", "thread"]
    assert last == "registered"


def test_a_closed_stream_changes_nothing() -> None:
    assert run("sys.stderr.close()").returncode == 3


LIBRARY = """
import types, weakref

def _del_library():
    print("library taken apart")

sys.modules["torch.library"] = types.SimpleNamespace(_del_library=_del_library)
weakref.finalize(kept, _del_library)
weakref.finalize(kept, print, "finalized")
"""


def test_libraries_of_operators_stay_as_they_are() -> None:
    assert callable(torch.library._del_library)  # type: ignore[attr-defined]
    *_, one, other = run(LIBRARY).stdout.splitlines()
    assert (one, other) == ("finalized", "registered")
