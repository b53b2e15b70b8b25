"""Starts a worker that prefers decode."""

from __future__ import annotations

import sys

from shared.ending import end_process
from shared.imports import without_searches

with without_searches():
    from services.worker.program import run
    from shared.identity import Role

if __name__ == "__main__":
    end_process(run(Role.DECODE, sys.argv[1:]))
