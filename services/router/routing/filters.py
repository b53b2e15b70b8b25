"""Filters: who can serve a request at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.directory.generations import identity_of

if TYPE_CHECKING:
    from services.router.routing.base import RoutingRequest
    from services.router.workers.endpoint import Endpoint


class Accepted:
    """Has the weights of its generation."""

    reason = "refused: its weights are not those of its generation"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not endpoint.refusal


class SameIdentity:
    """Writes what the worker would have written that the answer began at."""

    reason = "of other weights than the answer began with"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not request.identity or identity_of(endpoint.record) == request.identity


class NotDraining:
    """Takes new work."""

    reason = "draining"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not endpoint.draining


class Ready:
    """Has answered its canary."""

    reason = "not ready"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.ready


class NotExcluded:
    """Has not failed this very request before."""

    reason = "failed before"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not request.excluded or endpoint.record.worker not in request.excluded


class FitsContext:
    """Takes sequences as long as this one may become."""

    reason = "too small"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        needed = request.num_prompt_tokens + request.max_tokens
        return needed <= endpoint.record.max_model_len


class Understands:
    """Knows of everything that the request says: what it does not know it would pass over."""

    reason = "too old for what the request asks for"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.software.protocol_minor >= request.protocol_minor


class SharesBlocksWith:
    """Computes blocks that the decode worker can use."""

    reason = "other blocks than the decode worker's"

    def __init__(self, decode: Endpoint) -> None:
        self._decode = decode.record

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        record = endpoint.record
        return (
            record.namespace == self._decode.namespace
            and record.block_size == self._decode.block_size
            and record.model == self._decode.model
        )
