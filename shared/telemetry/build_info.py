"""A process's version and role, as a metric that is always 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Info

from shared.version import VERSION

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def add_build_info(registry: CollectorRegistry, *, role: str) -> None:
    """Register `baton_build_info{version, role}`; `role` is router, prefill or decode."""
    info = Info("baton_build", "The version that runs, and as what.", registry=registry)
    info.info({"version": VERSION, "role": role})
