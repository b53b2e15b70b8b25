"""The secrets of a cluster of containers: made at the first start, each role's in its own folder.

A service mounts its own folder and sees no other role's secrets.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import shared.directory.redis as redis_directory
from cli.errors import CommandError
from shared.errors import ConfigError
from shared.rpc.exposure import require_guard

ACL = Path(redis_directory.__file__).parent / "baton.acl"
CLUSTER_TOKEN, REDIS_PASSWORD = "cluster-token", "redis-password"
USERS_ACL, ADMIN_PASSWORD = "users.acl", "admin-password"
_ONLY_OURS, _OF_ANOTHER_USER = 0o600, 0o644


def provide_secrets(folder: Path) -> str:
    """Make missing secrets in the folders `router`, `worker`, `redis`, `grafana`; return a report.

    The router's secrets are kept; the others get equal ones, or in Redis' case their hashes. Redis
    and Grafana run as users of their own, so the modes of their files let those read them: nothing
    else mounts their folders.

    Raises:
        CommandError: a folder is missing, or not writable.
    """
    try:
        router = folder / "router"
        made = []
        for name in (CLUSTER_TOKEN, REDIS_PASSWORD):
            if not (router / name).exists():
                made.append(name)
                _write(router / name, secrets.token_hex(32) + "\n", _ONLY_OURS)
            _write(folder / "worker" / name, (router / name).read_text(), _ONLY_OURS)
        password = (router / REDIS_PASSWORD).read_text().strip()
        _write(folder / "redis" / USERS_ACL, _users(password), _OF_ANOTHER_USER)
        grafana = folder / "grafana" / ADMIN_PASSWORD
        if not grafana.exists():
            made.append(ADMIN_PASSWORD)
            _write(grafana, secrets.token_urlsafe(24), _OF_ANOTHER_USER)
    except OSError as error:
        raise CommandError(f"cannot write the secrets: {error}") from error
    return f"{folder}: made {', '.join(made)}" if made else f"{folder}: all secrets are there"


def require_keys(published_host: str, api_keys: str) -> None:
    """Check that the router may be published there; `api_keys` is empty without any.

    Raises:
        CommandError: every client that reaches it could use it.
    """
    try:
        require_guard(
            published_host,
            door="the router",
            guarded=bool(api_keys),
            flags="API_KEYS_FILE, a file that `baton keys` makes, or VLLM_API_KEY in .env",
            insecure=False,
        )
    except ConfigError as error:
        raise CommandError(
            f"BIND_ADDRESS={published_host} without API keys: {error}".partition(", listen")[0],
            advice="without BIND_ADDRESS only this machine connects; INSECURE_BIND_ADDRESS asks "
            "nobody for a key",
        ) from error


def _users(password: str) -> str:
    """Return the rights of baton.acl with the password's hash."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return f"{ACL.read_text(encoding='utf-8').rstrip()} #{digest}\n"


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file completely or not at all; an existing file with this content stays unchanged."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.chmod(mode)
    beside.replace(path)
