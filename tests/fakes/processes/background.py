"""Commands that a script starts in the background, or `nohup`."""

from __future__ import annotations


def under_a_parent_that_ignores(name: str | None) -> tuple[str, ...]:
    """How their command line begins; the command then takes the parent's place. None: nothing."""
    return () if name is None else ("sh", "-c", f"trap '' {name}; exec \"$@\"", "sh")
