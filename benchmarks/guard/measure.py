"""Counts the workloads of the tree that it is run in: `python -m benchmarks.guard.measure NAME…`.

Prints one JSON object: counts by workload, or the error that kept a workload from running.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import structlog

from benchmarks.guard.counting import count_bytecodes
from benchmarks.guard.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Count each workload after it has run twice: imports and caches are not what is guarded."""
    counts: dict[str, dict[str, Any]] = {}
    for name in names:
        prepare, uses_torch = WORKLOADS[name]
        try:
            work = prepare()
            work()
            work()
            gc.collect()
            gc.disable()
            counts[name] = {"bytecodes": count_bytecodes(work)}
            if uses_torch:
                from benchmarks.guard.operators import count_operators  # noqa: PLC0415 seconds

                counts[name]["operators"] = count_operators(work)
        except Exception as error:  # noqa: BLE001 another tree may lack whatever it needs
            counts[name] = {"error": f"{type(error).__name__}: {error}"}
        finally:
            gc.enable()
    return counts


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    json.dump(measure(sys.argv[1:] or list(WORKLOADS)), answers)
