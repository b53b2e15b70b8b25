"""Names and bodies of the messages between the processes of one router."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from services.router.admission.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import Sequence


class Told(StrEnum):
    """Messages without an answer."""

    #: To the hub: this process answers the others from now on.
    READY = "ready"
    #: To the hub. Of a model: it holds requests, or lets them go on.
    HOLD = "hold"
    RELEASE = "release"
    #: [model, place, prompt tokens, output tokens]: a request has ended, or is given up.
    LEAVE = "leave"
    #: [model, places booked since, prompts, tokens, whether workers sleep]: see `Room`.
    ROOM = "room"
    #: [permit, tokens used]
    PAID = "paid"
    #: number of the lock's taking
    UNLOCK = "unlock"
    #: To the hub: {worker: report}. To the others: [process, the same].
    WORK = "work"
    #: To the hub: whether requests can be served here. To the others: [process, the same].
    SERVES = "serves"
    #: To the others: [name, body], see `RouterProcess.order`.
    ORDER = "order"
    #: From the hub. [models that are held]
    HELD = "held"
    #: [process]: another one has begun, or ended.
    JOINED = "joined"
    GONE = "gone"


class Asked(StrEnum):
    """Messages with an answer."""

    #: To the hub. [model, place, tenant, tokens, priority, longest wait or nil]: when it is let in.
    ENTER = "enter"
    #: [model, tenant, tokens, priority]: the expected wait in seconds.
    WAIT = "wait"
    #: [permit, tenant, tokens]: [error or nil, headers]
    PERMIT = "permit"
    #: [number, name]: when this process has the lock of the name.
    LOCK = "lock"
    #: [name, body]: [answers of the other processes], without those that have not answered.
    OTHERS = "others"
    #: To the hub, with its own metrics: those of all processes, to be added. To the others: theirs.
    METRICS = "metrics"
    #: Of planners: see `Board`.
    EXCHANGE = "exchange"
    CLAIM = "claim"
    DECIDE = "decide"
    RESIGN = "resign"


def tenant_to_wire(tenant: Tenant) -> list[Any]:
    """Return what counts of a tenant: not the models that it may use."""
    return [
        tenant.name,
        tenant.weight,
        tenant.max_concurrent_requests,
        tenant.max_tokens_per_minute,
    ]


def tenant_from_wire(body: Sequence[Any]) -> Tenant:
    """Return the tenant of a message."""
    name, weight, max_requests, max_tokens = body
    return Tenant(
        name=name,
        weight=weight,
        max_concurrent_requests=max_requests,
        max_tokens_per_minute=max_tokens,
    )
