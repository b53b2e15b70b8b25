"""Whose a grammar is."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.admission.tenant import Tenant
    from shared.request.sampling_params import SamplingParams

_OWNER = b"baton.grammar.owner.v1\0"


def owned_by(tenant: Tenant, sampling: SamplingParams) -> SamplingParams:
    """Return the parameters with the tenant as the owner of their grammar, if they have one."""
    if sampling.grammar is None:
        return sampling
    owner = b""
    if tenant.name:
        owner = hashlib.sha256(_OWNER + tenant.name.encode("utf-8", "surrogatepass")).digest()[:16]
    return replace(sampling, grammar=replace(sampling.grammar, owner=owner))
