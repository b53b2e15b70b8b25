"""Grafana's panels and pages as data; knows nothing of Baton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One query of a panel."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over time, or the last values as numbers."""

    title: str
    lines: tuple[Line, ...]
    #: In Grafana's words: s, bytes, percentunit, reqps, short …
    unit: str = "short"
    help: str = ""
    is_stat: bool = False
    is_stacked: bool = False
    #: Of the 24 columns of a page.
    width: int = 8

    def to_json(self, panel_id: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's form, at a place."""
        custom: dict[str, Any] = {
            "fillOpacity": 20 if self.is_stacked else 0,
            "showPoints": "never",
        }
        if self.is_stacked:
            custom["stacking"] = {"mode": "normal"}
        return {
            "id": panel_id,
            "type": "stat" if self.is_stat else "timeseries",
            "title": self.title,
            "description": self.help,
            "datasource": _DATASOURCE,
            "gridPos": {
                "x": x,
                "y": y,
                "w": self.width,
                "h": _HEIGHT // (2 if self.is_stat else 1),
            },
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    **({} if self.is_stat else {"custom": custom}),
                },
                "overrides": [],
            },
            "options": _options(self),
            "targets": [
                {
                    "refId": chr(ord("A") + number),
                    "datasource": _DATASOURCE,
                    "expr": line.expr,
                    "legendFormat": line.legend or "__auto",
                }
                for number, line in enumerate(self.lines)
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading; as many beside one another as fit."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picker:
    """A choice of values of a label: one, several, or all."""

    name: str
    title: str
    #: A metric that has the label.
    metric: str
    label: str

    def to_json(self) -> dict[str, Any]:
        """Grafana's form."""
        return {
            "name": self.name,
            "label": self.title,
            "type": "query",
            "datasource": _DATASOURCE,
            "query": f"label_values({self.metric}, {self.label})",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A dashboard."""

    uid: str
    title: str
    help: str
    rows: tuple[Row, ...]
    pickers: tuple[Picker, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What Grafana reads from a file or a ConfigMap."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.help,
            "tags": ["baton"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "refresh": "10s",
            "timezone": "browser",
            "time": {"from": "now-30m", "to": "now"},
            "links": [
                {"type": "dashboards", "tags": ["baton"], "title": "Baton", "keepTime": True}
            ],
            "templating": {
                "list": [
                    {
                        "name": "datasource",
                        "label": "Data source",
                        "type": "datasource",
                        "query": "prometheus",
                        "current": {},
                    },
                    *(picker.to_json() for picker in self.pickers),
                ]
            },
            "annotations": {"list": []},
            "panels": list(_placed(self.rows)),
        }


def _placed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({"id": len(placed) + 1, "gridPos": place, **heading})
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y, height = 0, y + height, 0
            made = panel.to_json(len(placed) + 1, x, y)
            placed.append(made)
            x += panel.width
            height = max(height, made["gridPos"]["h"])
        y += height
    return placed


def _options(panel: Panel) -> dict[str, Any]:
    if panel.is_stat:
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
