"""Starts the router."""

from __future__ import annotations

import sys

from services.router.program import main
from shared.ending import end_process

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
