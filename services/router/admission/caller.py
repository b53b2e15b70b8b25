"""The caller of a request, as authentication found it, and the salt of its cached prefixes."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from services.router.admission.tenant import ANONYMOUS, Tenant

_TENANT_SALT = b"baton.cache_salt.v1"
_OPEN_SALT = b"baton-cache-salt\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The tenant that sent a request, by its key; any client where no keys are configured."""

    tenant: Tenant = ANONYMOUS
    #: Whether it may read data of all tenants: metrics, and how requests are routed.
    is_operator: bool = False
    #: The cluster's secret, from the keys file; empty where no keys are configured.
    salt_secret: bytes = field(default=b"", repr=False)

    def cache_salt(self, given: str | None) -> bytes:
        """Return the salt of this request's block hashes; empty: all tenants share its prefixes.

        The salt is made of the tenant's name and of `given`, the client's own salt, which divides
        the tenant's prefixes further. Workers and Redis see block hashes: without the secret, an
        attacker who knows a tenant's name could guess prompts and compute their hashes.
        """
        if self.salt_secret:
            message = _TENANT_SALT + _framed(self.tenant.name) + _framed(given or "")
            return hmac.new(self.salt_secret, message, hashlib.sha256).digest()
        if not self.tenant.name and not given:
            return b""
        return hashlib.sha256(
            _OPEN_SALT + _framed(self.tenant.name) + _framed(given or "")
        ).digest()


ANYBODY = Caller()


def _framed(text: str) -> bytes:
    """Return the text's bytes after their length: different pairs of texts stay different."""
    # JSON from a client may hold half of a surrogate pair.
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data
