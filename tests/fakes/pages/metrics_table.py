"""What docs/metrics.md says: the metrics of each process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
_ROW = re.compile(r"\| `(baton_\w+)` \| (counter|gauge|histogram|info) \| ([^|]*) \| ([^|]+) \|")
#: What Prometheus makes of a family's name.
_SAMPLES = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "info": ("_info",),
}


@dataclass(frozen=True, slots=True)
class Documented:
    """One row."""

    section: str
    name: str
    kind: str
    labels: frozenset[str]

    def samples(self) -> Iterator[str]:
        """Names that queries may use."""
        for suffix in _SAMPLES[self.kind]:
            yield self.name + suffix


def documented(*sections: str) -> dict[str, Documented]:
    """By name; of all sections if none is named."""
    found: dict[str, Documented] = {}
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        row = _ROW.match(line)
        if row is not None and (not sections or section in sections):
            name, kind, labels, _ = row.groups()
            known = found.get(name)
            row_labels = frozenset(re.findall(r"`(\w+)`", labels))
            assert known is None or known.kind == kind, f"{name} has two kinds"
            found[name] = Documented(section, name, kind, row_labels)
    return found


def exposed(text: str) -> dict[str, tuple[str, frozenset[str] | None]]:
    """By family: kind, and the labels of its samples if it has any."""
    found: dict[str, tuple[str, frozenset[str] | None]] = {}
    created = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created") and family.type == "gauge":
            created[family.name] = family
            continue
        labels = [set(sample.labels) - {"le"} for sample in family.samples]
        name, kind = family.name, family.type
        if kind == "gauge" and name == "baton_build_info":
            name, kind = "baton_build", "info"
        found[name] = (kind, frozenset(labels[0]) if labels else None)
    return found
