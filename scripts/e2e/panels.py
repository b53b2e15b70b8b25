"""Asks Prometheus what each panel of the dashboards asks; whom it watches; what rules it has."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

#: Long enough for a few scrapes, short enough for a test.
RATE_INTERVAL = "1m"


def empty_panels(folder: Path, prometheus: str) -> Sequence[str]:
    """Dashboard and title of every panel none of whose queries has a result."""
    with httpx.Client(base_url=prometheus, timeout=30) as client:
        return [
            f"{path.stem}: {panel.get('title')}"
            for path in sorted(folder.glob("*.json"))
            for panel in _panels(json.loads(path.read_text())["panels"])
            if not any(_has_data(client, query) for query in _queries(panel))
        ]


def num_panels(folder: Path) -> int:
    """How many panels with queries the dashboards have."""
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("*.json"))
    return sum(1 for text in texts for _ in _panels(json.loads(text)["panels"]))


def watched(prometheus: str) -> Mapping[str, int]:
    """How many processes of each component it gets numbers from."""
    answer = _get(prometheus, "/api/v1/targets", state="active")
    labels = (target["labels"] for target in answer["activeTargets"] if target["health"] == "up")
    return Counter(label["component"] for label in labels)


def unloaded_rules(folder: Path, prometheus: str) -> Sequence[str]:
    """Alerts and recorded series of the files that it does not evaluate without an error."""
    groups = _get(prometheus, "/api/v1/rules")["groups"]
    loaded = {rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "ok"}
    return [name for name in rule_names(folder) if name not in loaded]


def rule_names(folder: Path) -> Sequence[str]:
    """Of all rules in the files."""
    files = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yaml"))
    rules = (rule for file in files for group in file["groups"] for rule in group["rules"])
    return [rule.get("alert") or rule["record"] for rule in rules]


def _get(prometheus: str, path: str, **params: str) -> Any:
    answer = httpx.get(f"{prometheus}{path}", params=params, timeout=30)
    answer.raise_for_status()
    return answer.json()["data"]


def _panels(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those with queries, also from rows that are folded."""
    for panel in panels:
        yield from _panels(panel.get("panels", ()))
        if _queries(panel):
            yield panel


def _queries(panel: dict[str, Any]) -> Sequence[str]:
    return [target["expr"] for target in panel.get("targets", ()) if target.get("expr")]


def _has_data(client: httpx.Client, query: str) -> bool:
    query = query.replace('"$model"', '".*"')
    for name in ("$__rate_interval", "$__interval", "$__range"):
        query = query.replace(name, RATE_INTERVAL)
    answer = client.get("/api/v1/query", params={"query": query})
    answer.raise_for_status()
    # A quantile of nothing is there, and is not a number.
    values = (float(series["value"][1]) for series in answer.json()["data"]["result"])
    return any(map(math.isfinite, values))
