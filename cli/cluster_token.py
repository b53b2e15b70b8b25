"""The secret that a cluster's processes share: made for a local cluster, shown when asking one."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from shared.rpc.auth import ClusterToken

if TYPE_CHECKING:
    from pathlib import Path


def make_cluster_token(path: Path) -> None:
    """Write a new random token that only this user can read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def token_metadata(path: Path | None) -> tuple[tuple[str, str], ...]:
    """What goes with a call to the cluster's own services; nothing where there is no token.

    Raises:
        ConfigError: the file cannot be used.
    """
    return () if path is None else ClusterToken(path).metadata
