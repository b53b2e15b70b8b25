"""A test's tier is the folder that it lies in."""

from __future__ import annotations

TIERS = ("unit", "integration", "e2e", "composition", "fuzz", "gpu")


def tier_of(nodeid: str) -> str:
    """Of a test's id, or of the file's part of it; "" if it lies in none."""
    parts = nodeid.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" and parts[1] in TIERS else ""
