"""Asks Prometheus what each panel of the dashboards asks, and says which have nothing to show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


def _panels(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those with queries, also from rows that are folded."""
    for panel in panels:
        yield from _panels(panel.get("panels", ()))
        if _queries(panel):
            yield panel


def _queries(panel: dict[str, Any]) -> Sequence[str]:
    return [target["expr"] for target in panel.get("targets", ()) if target.get("expr")]


def _has_data(client: httpx.Client, query: str) -> bool:
    for name in ("$__rate_interval", "$__interval", "$__range"):
        query = query.replace(name, RATE_INTERVAL)
    answer = client.get("/api/v1/query", params={"query": query})
    answer.raise_for_status()
    return bool(answer.json()["data"]["result"])
