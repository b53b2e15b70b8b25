"""Breaks a real cluster in every way, at every moment of a request, and says what became of it.

    python -m benchmarks.faults run --subset ci
    python -m benchmarks.faults run --faults kill,drain --states streaming --out results.json
    python -m benchmarks.faults page results.json
    python -m benchmarks.faults mutants
    python -m benchmarks.faults soak --minutes 30

The exit code is 1 if a promise of `thresholds.py` was broken. As root, processes live in network
namespaces of their own; as anybody else, on loopback.
"""

from __future__ import annotations

import sys

from benchmarks.faults.system import network

_WITH_PROCESSES = ("run", "mutants", "soak")


def main(arguments: list[str]) -> None:
    """Go into namespaces first: there this process starts again, with seconds of imports."""
    plain = {"--loopback", "--help"}.intersection(arguments)
    if not plain and arguments[:1] and arguments[0] in _WITH_PROCESSES:
        network.go_inside()
    from benchmarks.faults.commands import app  # noqa: PLC0415 see above

    app()


if __name__ == "__main__":
    main(sys.argv[1:])
