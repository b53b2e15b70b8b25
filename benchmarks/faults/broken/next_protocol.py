"""Not broken: a worker of the next major version of the protocol, for the rolling upgrade."""

from __future__ import annotations

from benchmarks.faults.broken.entry import run_service
from shared.worker import parts

if __name__ == "__main__":
    parts.PROTOCOL_MAJOR += 1  # type: ignore[attr-defined]  # broken on purpose
    run_service()
