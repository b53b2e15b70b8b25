"""How many random cases a run is meant to have: few, unless `BATON_FUZZ=full` asks for all."""

from __future__ import annotations

import os

#: Whether the caller wants all of them.
FULL = os.environ.get("BATON_FUZZ") == "full"


def examples(usual: int, full: int) -> int:
    """So many examples for Hypothesis, which draws other ones in each run."""
    return full if FULL else usual
