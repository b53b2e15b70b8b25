"""All dashboards. A test compares their queries with docs/metrics.md."""

from __future__ import annotations

from scripts.dashboards.kv import KV
from scripts.dashboards.overview import OVERVIEW
from scripts.dashboards.request_life import LIFE
from scripts.dashboards.transfer import TRANSFER

PAGES = (OVERVIEW, LIFE, KV, TRANSFER)
