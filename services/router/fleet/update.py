"""New weights on all workers: prepared everywhere, then committed everywhere."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from baton.v1 import lifecycle_pb2
from services.router.fleet.orders import QUICK_S, succeeded
from shared.errors import BatonError, InvalidRequestError, UnavailableError
from shared.rpc.wire import worker_id_from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.fleet.orders import LifecycleOrders
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

#: Of reading a checkpoint, and of a new engine for it.
PREPARE_S = 900.0
COMMIT_S = 120.0
#: Attempts at a commit before a worker counts as lost, and the time between them.
COMMIT_TRIES = 5
COMMIT_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class NewWeights:
    """A checkpoint for all workers, on each one's machine."""

    path: str
    version: str
    generation: int

    def to_wire(self) -> lifecycle_pb2.WeightSource:
        """Return the message."""
        return lifecycle_pb2.WeightSource(
            path=self.path, version=self.version, generation=self.generation
        )


class WeightUpdate:
    """One update of some workers. `prepare` first; then `commit` or `drop`, once."""

    def __init__(
        self, orders: LifecycleOrders, workers: Sequence[Endpoint], weights: NewWeights
    ) -> None:
        self._orders = orders
        self._workers = workers
        self._name = secrets.token_hex(8)
        self.weights = weights

    async def prepare(self) -> None:
        """Load the weights on all workers, which serve meanwhile.

        Raises:
            BatonError: one could not load them, or they differ among workers; none keeps them.
        """
        request = lifecycle_pb2.PrepareWeightsRequest(
            update=self._name, source=self.weights.to_wire(), hold_s=PREPARE_S
        )
        try:
            prepared = succeeded(
                await self._orders.each(
                    self._workers, lambda stub: stub.PrepareWeights(request, timeout=PREPARE_S)
                )
            )
            _check_alike({e: answer.identity for e, answer in prepared.items()})
        except BaseException:
            await self.drop()
            raise

    async def drop(self) -> None:
        """Have all workers drop what they prepared. Those that do not hear it drop it later."""
        request = lifecycle_pb2.DropWeightsRequest(update=self._name)
        await self._orders.each(
            self._workers, lambda stub: stub.DropWeights(request, timeout=QUICK_S)
        )

    async def commit(self) -> tuple[list[WorkerId], dict[str, str]]:
        """Put the weights in place; return the workers' new ids, and the lost workers' errors.

        A worker that is lost meanwhile comes back with old weights, and is not used with them.

        Raises:
            UnavailableError: all were lost.
        """
        answers = await asyncio.gather(*(self._commit(each) for each in self._workers))
        ids = [answer for answer in answers if not isinstance(answer, BatonError)]
        lost = {
            endpoint.name: str(answer)
            for endpoint, answer in zip(self._workers, answers, strict=True)
            if isinstance(answer, BatonError)
        }
        log.info("weights_updated", version=self.weights.version, num_workers=len(ids), lost=lost)
        if not ids:
            raise UnavailableError(f"no worker committed: {lost}")
        return ids, lost

    async def _commit(self, endpoint: Endpoint) -> WorkerId | BatonError:
        request = lifecycle_pb2.CommitWeightsRequest(update=self._name)
        failure: BatonError = UnavailableError("not tried")
        for _ in range(COMMIT_TRIES):
            try:
                answer = await self._orders.one(
                    endpoint, lambda stub: stub.CommitWeights(request, timeout=COMMIT_S)
                )
            except BatonError as error:
                failure = error
                await asyncio.sleep(COMMIT_RETRY_S)
            else:
                return worker_id_from_wire(answer.worker)
        return failure


def _check_alike(identities: Mapping[Endpoint, str]) -> None:
    """Check that workers whose weights were the same have the same new ones.

    Raises:
        InvalidRequestError: they read different files under the path.
    """
    by_present: dict[str, dict[str, str]] = {}
    for endpoint, identity in identities.items():
        by_present.setdefault(endpoint.record.identity, {})[identity] = endpoint.name
    for found in by_present.values():
        if len(found) > 1:
            names = " and ".join(found.values())
            raise InvalidRequestError(f"{names} have different files there", param="path")
