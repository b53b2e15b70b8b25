"""Tenants of the cluster under test, with real keys in a file as `baton keys` writes it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from services.router.admission.keys.api_key import new_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Asks while there is no race, and may read the metrics.
ANYBODY = "anybody"
#: Who takes part in the race for a crowded cluster, and the share that each should get.
WEIGHTS = {"gold": 2.0, "iron": 1.0}


def write_keys(path: Path) -> Mapping[str, str]:
    """Write the file; returns each tenant's key."""
    keys = {}
    lines = [f'salt_secret = "{secrets.token_hex(32)}"']
    for name in (ANYBODY, *WEIGHTS):
        key = new_key()
        keys[name] = key.text
        lines += [
            "[[tenants]]",
            f'name = "{name}"',
            f"weight = {WEIGHTS.get(name, 1.0)}",
            f"operator = {'true' if name == ANYBODY else 'false'}",
            "[[tenants.keys]]",
            f'id = "{key.key_id}"',
            f'sha256 = "{key.sha256}"',
        ]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return keys
