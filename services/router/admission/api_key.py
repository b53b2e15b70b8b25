"""API keys: how they look, how they are made, what of them is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field

PREFIX = "bt-"
ID_BYTES = 8
SECRET_BYTES = 32
#: bt-<id>-<secret>. The id finds the entry and is no secret; 256 random bits follow.
_KEY = re.compile(rb"bt-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. Only its owner has the key later; the cluster keeps a hash."""

    key_id: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """What is stored, in hex."""
        return digest(self.text.encode()).hex()


def new_key() -> NewKey:
    """A random key."""
    key_id = secrets.token_hex(ID_BYTES)
    return NewKey(key_id, f"{PREFIX}{key_id}-{secrets.token_urlsafe(SECRET_BYTES)}")


def key_id_of(key: bytes) -> str | None:
    """The id in a key; None if it is not one."""
    found = _KEY.fullmatch(key)
    return None if found is None else found[1].decode()


def digest(key: bytes) -> bytes:
    """What is stored of a key [32 bytes].

    Plain SHA-256 is right here, unlike for passwords: a key has 256 random bits, so that there is
    no dictionary to try and nothing for salt or slowness to add, while every request pays for it.
    """
    return hashlib.sha256(key).digest()
