"""Keys files with real keys in them, as the tests' tenants have them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.admission.keys.api_key import new_key

if TYPE_CHECKING:
    from pathlib import Path

SALT_SECRET = "5a" * 32
CLUSTER_TOKEN = "c" * 40


@dataclass(slots=True)
class KeysOnDisk:
    """A keys file that the test writes again after it has changed something."""

    path: Path
    #: Key by tenant.
    keys: dict[str, str] = field(default_factory=dict)
    _tables: dict[str, str] = field(default_factory=dict)

    def add(self, tenant: str, *lines: str, key_lines: tuple[str, ...] = ()) -> str:
        """A tenant with one key; `lines` of TOML go with the tenant, `key_lines` with the key."""
        made = new_key()
        self.keys[tenant] = made.text
        own = [f'id = "{made.key_id}"', f'sha256 = "{made.sha256}"', *key_lines]
        table = ["[[tenants]]", f'name = "{tenant}"', *lines, "[[tenants.keys]]", *own]
        self._tables[tenant] = "\n".join(table)
        self.write()
        return made.text

    def remove(self, tenant: str) -> None:
        """The tenant and its key are gone."""
        del self._tables[tenant]
        self.write()

    def write(self) -> None:
        """All at once, as `baton keys` does it."""
        text = "\n".join([f'salt_secret = "{SALT_SECRET}"', *self._tables.values(), ""])
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)


def keys_on_disk(folder: Path) -> KeysOnDisk:
    """Tenants a and b, and ops, which is an operator."""
    disk = KeysOnDisk(folder / "keys.toml")
    disk.add("a", "weight = 2.0", "max_concurrent_requests = 3")
    disk.add("b")
    disk.add("ops", "operator = true")
    return disk


def wrong_secret(key: str) -> str:
    """A key with the right id and another secret."""
    return key[:20] + secrets.token_urlsafe(32)


def cluster_token_file(folder: Path) -> Path:
    """A file with CLUSTER_TOKEN."""
    path = folder / "cluster-token"
    path.write_text(CLUSTER_TOKEN + "\n")
    return path
