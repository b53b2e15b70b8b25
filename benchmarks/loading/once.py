"""Loads one checkpoint in this process, and prints what it took. See `benchmarks.loading`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from shared.gguf.folder import model_folder
from shared.model.loader import load_model

_STATUS = Path("/proc/self/status")
_EACH_S = 0.005


def status_kib() -> dict[str, int]:
    """Return the memory of this process: peak, now, and how much of it is the files'."""
    lines = (line.split() for line in _STATUS.read_text(encoding="ascii").splitlines())
    return {
        words[0].rstrip(":"): int(words[1])
        for words in lines
        if words[0] in ("VmHWM:", "VmRSS:", "RssAnon:", "RssFile:")
    }


class Peak:
    """The most memory that is no file's, seen every few milliseconds: the kernel keeps no peak."""

    def __init__(self) -> None:
        self.anon_kib = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(_EACH_S):
            self.anon_kib = max(self.anon_kib, status_kib()["RssAnon"])

    def end(self) -> int:
        """Return it."""
        self._ended.set()
        self._thread.join()
        return self.anon_kib


def measure(path: Path, backend: str) -> dict[str, Any]:
    """Load it."""
    folder = model_folder(path)
    before = status_kib()
    peak = Peak()
    start = time.perf_counter()
    loaded = load_model(folder, attention_backend=backend)
    seconds = time.perf_counter() - start
    anon = peak.end()
    after = status_kib()
    return {
        "seconds": seconds,
        "cpu_seconds": sum(os.times()[:2]),
        "peak_anon_kib": anon,
        "before": before,
        "after": after,
        "weight_bytes": loaded.num_weight_bytes,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])) + "\n")
