"""Tries model types, all or named ones, and writes results and page."""

from __future__ import annotations

import json
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import structlog
import typer

from tests.parity.cells import REFUSED
from tests.parity.decoders.page import FILE, PAGE, page, stored_results
from tests.parity.decoders.trial import FAMILY, MODULE, MODULES, UNTRIED, result_of


def try_one(model_type: str) -> str:
    """See `result_of`, without a word beside it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return result_of(model_type)


def main(names: list[str]) -> int:
    """Return 1 if an answer differs."""
    found = stored_results() if names and FILE.exists() else {}
    wanted = names or sorted(MODULES)
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for name, result in zip(wanted, pool.map(try_one, wanted), strict=True):
            found[name] = result
            typer.echo(f"{name}: {result}")
    ordered = {name: found[name] for name in sorted(found)}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    known = (FAMILY, MODULE, REFUSED, UNTRIED)
    return int(not all(result.startswith(known) for result in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
