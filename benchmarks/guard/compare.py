"""Two trees' counts side by side, and whether the difference is allowed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Counts = Mapping[str, Mapping[str, Any]]

#: Growth that passes without a word.
LIMIT = 1.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One count. `before` is None where the base cannot run the workload; `after` likewise."""

    workload: str
    count: str
    before: int | None
    after: int | None
    limit: float = LIMIT
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Of what it was; None where there is nothing to compare."""
        if self.before is None or self.after is None:
            return None
        return self.after / self.before if self.before else float(self.after > 0) + 1

    @property
    def passes(self) -> bool:
        """A workload that this tree cannot run fails; one that the base cannot run is new."""
        if self.after is None:
            return False
        return self.ratio is None or self.ratio <= self.limit


def compare(before: Counts, after: Counts, allowed: Mapping[str, float]) -> Iterator[Finding]:
    """One finding per count of every workload of this tree."""
    for name, own in after.items():
        base = before.get(name, {"error": "the base has no such workload"})
        limit = max(LIMIT, allowed.get(name, 0.0))
        if "error" in own:
            yield Finding(workload=name, count="", before=None, after=None, note=own["error"])
            continue
        for count, value in own.items():
            yield Finding(
                workload=name,
                count=count,
                before=base.get(count),
                after=value,
                limit=limit,
                note=base.get("error", ""),
            )


def load_allowed(path: Path) -> dict[str, float]:
    """Growth that is meant, by workload.

    Raises:
        ConfigError: an entry without a ratio or a reason.
    """
    if not path.is_file():
        return {}
    allowed = {}
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if not isinstance(entry, dict) or not entry.get("reason") or "ratio" not in entry:
            raise ConfigError(f"{path}: [{name}] needs `ratio` and `reason`")
        allowed[name] = float(entry["ratio"])
    return allowed
