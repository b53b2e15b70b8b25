"""Starts the router."""

from __future__ import annotations

import sys

from shared.ending import end_process
from shared.imports import without_searches

with without_searches():
    from services.router.program import main

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
