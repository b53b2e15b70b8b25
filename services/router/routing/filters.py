"""Filters: who can serve a request at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.endpoint import Endpoint
    from services.router.routing.base import RoutingRequest


class Usable:
    """Has answered its canary and is not draining."""

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.usable


class NotExcluded:
    """Has not failed this very request before."""

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.record.worker not in request.excluded


class FitsContext:
    """Takes sequences as long as this one may become."""

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        needed = request.num_prompt_tokens + request.max_tokens
        return needed <= endpoint.record.max_model_len


class SharesBlocksWith:
    """Computes blocks that the decode worker can use."""

    def __init__(self, decode: Endpoint) -> None:
        self._decode = decode.record

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        record = endpoint.record
        return (record.namespace, record.block_size, record.model) == (
            self._decode.namespace,
            self._decode.block_size,
            self._decode.model,
        )
