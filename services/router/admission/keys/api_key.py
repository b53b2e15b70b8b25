"""API keys: their format, how a key is made, and the hash that is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field

PREFIX = "bt-"
ID_BYTES = 8
SECRET_BYTES = 32
#: bt-<id>-<secret>. The id finds the entry and is not secret. The secret has 256 random bits.
_KEY = re.compile(rb"bt-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. Only the owner keeps the key; the cluster stores its hash."""

    key_id: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """The hash that is stored, in hexadecimal."""
        return digest(self.text.encode()).hex()


def new_key() -> NewKey:
    """Return a new random key."""
    key_id = secrets.token_hex(ID_BYTES)
    return NewKey(key_id, f"{PREFIX}{key_id}-{secrets.token_urlsafe(SECRET_BYTES)}")


def key_id_of(key: bytes) -> str | None:
    """Return the id in a key; None if `key` has not the format of a key."""
    found = _KEY.fullmatch(key)
    return None if found is None else found[1].decode()


def digest(key: bytes) -> bytes:
    """Return the hash of a key that is stored [32 bytes].

    Plain SHA-256 is right here, unlike for passwords: a key has 256 random bits, so no dictionary
    attack is possible, salt and slowness would add nothing, and every request pays for the hash.
    """
    return hashlib.sha256(key).digest()
