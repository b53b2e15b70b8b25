"""Who sent a request, as the door found out, and what its cached prefixes are kept apart by."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from services.router.admission.tenant import ANONYMOUS, Tenant

_TENANT_SALT = b"baton.cache_salt.v1"
_OPEN_SALT = b"baton-cache-salt\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever has a key of a tenant; or, where no keys are configured, anybody."""

    tenant: Tenant = ANONYMOUS
    #: May see what concerns all tenants: metrics, and how requests are routed.
    is_operator: bool = False
    #: The cluster's, from the keys file; empty where no keys are configured.
    salt_secret: bytes = field(default=b"", repr=False)

    def cache_salt(self, given: str | None) -> bytes:
        """What separates this request's cached prefixes from others'; empty: nothing does.

        It is made of the tenant, and `given` by the client divides that further: it is mixed in
        and never leaves the tenant. The secret keeps hashes of blocks, which other workers and
        Redis see, from being computed by somebody who knows a tenant's name and guesses prompts.
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
    """With its length, so that no two pairs of texts have the same bytes."""
    # A client's JSON may hold half of a surrogate pair.
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data
