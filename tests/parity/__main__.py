"""Runs cells, all or those of named configurations, and writes outcomes and page."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import structlog
import typer

from tests.parity.answers import outcomes
from tests.parity.cells import CASES, DIFFERS, FILE, cells_of
from tests.parity.oracle import oracle_of
from tests.parity.page import PAGE, page


def run_case(case: str) -> dict[str, list[str]]:
    """By cell: the outcome in each place."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oracle = oracle_of(case, folder / "model")
        return {cell.key: outcomes(cell, oracle, folder) for cell in cells_of(case)}


def main(names: list[str]) -> int:
    """Return 1 if a cell differs."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if names and FILE.exists() else {}
    wanted = names or list(CASES)
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for number, (case, cells) in enumerate(
            zip(wanted, pool.map(run_case, wanted), strict=True), 1
        ):
            found[case] = cells
            wrong = {key: own for key, own in cells.items() if any(DIFFERS in o for o in own)}
            typer.echo(f"{number}/{len(wanted)} {case} {wrong or ''}")
    ordered = {case: found[case] for case in CASES if case in found}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return int(any(DIFFERS in o for cells in found.values() for own in cells.values() for o in own))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
