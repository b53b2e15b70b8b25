"""The identity in a certificate: a URI among its alternative names.

`baton://CLUSTER/ROLE/NAME`, e.g. baton://cluster/prefill/prefill-0. One certificate may have
several. Its issuer is not checked here: the TLS library has verified the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEME = "baton"


class PeerRole(StrEnum):
    """Role of a certificate's holder."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    #: `baton doctor`, and other administration tools.
    OPERATOR = "operator"
    #: A client that sends requests.
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Identity:
    """One URI of a certificate."""

    cluster: str
    role: PeerRole
    name: str

    @property
    def uri(self) -> str:
        """The URI in the certificate."""
        return f"{SCHEME}://{self.cluster}/{self.role}/{self.name}"


def identities(names: Iterable[str]) -> tuple[Identity, ...]:
    """Return the identities among a certificate's alternative names; other names are ignored."""
    found = []
    for name in names:
        if not name.startswith(f"{SCHEME}://"):
            continue
        parts = urlsplit(name)
        role, _, holder = parts.path.removeprefix("/").partition("/")
        if parts.netloc and holder and role in set(PeerRole):
            found.append(Identity(parts.netloc, PeerRole(role), holder))
    return tuple(found)
