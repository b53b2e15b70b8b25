"""Blocks of the engine's cache reserved for a peer's writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine
    from shared.engine.thread.engine_thread import EngineThread
    from shared.kv.prefix_cache import PrefixBlocks


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved blocks. Release them with `EngineThread.unpin` after the last write to them."""

    pin_id: int
    blocks: PrefixBlocks


async def reserve(engine: EngineThread, num_blocks: int, first_block: int) -> Reservation | None:
    """Return blocks for a prefix from block `first_block` on; None if sequences may need them.

    Cancelling this call reserves nothing.
    """

    def take(engine: Engine) -> Reservation | None:
        stats = engine.stats()
        taken = engine.prefix_cache.reserve(
            num_blocks,
            first_block=first_block,
            num_spare_blocks=engine.layout.num_groups * (stats.num_running + stats.num_receiving),
        )
        return None if taken is None else Reservation(*taken)

    def give_back(engine: Engine, reservation: Reservation | None) -> None:
        if reservation is not None:
            engine.unpin(reservation.pin_id)

    return await engine.call(take, undo=give_back)


async def publish(
    engine: EngineThread, reservation: Reservation, block_hashes: Sequence[bytes]
) -> None:
    """Publish the leading blocks, which are complete and verified (I5)."""
    await engine.call(
        lambda engine: engine.prefix_cache.publish_reserved(reservation.pin_id, block_hashes)
    )
