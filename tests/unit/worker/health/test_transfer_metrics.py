"""What a worker exports of its transfers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from shared.connector.instrumented import Direction, TransferCounters, TransferEnd
from shared.connector.local import LocalConnector, LocalHub
from shared.errors import TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from shared.worker.health.metrics import TransferCollector
from tests.suites.connector.harness import LAYOUT


async def test_what_was_moved_and_refused_is_exported_by_connector() -> None:
    memory = KVMemory(LAYOUT, 1)
    connector = LocalConnector(worker=WorkerId("a", "1"), memory=memory, hub=LocalHub())
    counters = TransferCounters()
    registry = CollectorRegistry()
    registry.register(TransferCollector(counters, [connector]))
    for direction, outcome, num_blocks in (
        (Direction.INBOUND, "ok", 3),
        (Direction.INBOUND, "ok", 4),
        (Direction.OUTBOUND, TransferFailure.TIMEOUT, 1),
    ):
        counters.began("local", direction)
        counters.ended(
            TransferEnd(
                connector="local",
                direction=direction,
                outcome=outcome,
                num_blocks=num_blocks,
                num_bytes=num_blocks * 100,
                num_wire_bytes=num_blocks * 75,
                num_pieces=2,
                num_copied_bytes=num_blocks * 50,
                duration_s=0.25,
            )
        )
    counters.began("local", Direction.OUTBOUND)
    connector._receiver.refusals[TransferFailure.LATE] += 5
    lines = set(generate_latest(registry).decode().splitlines())
    inbound = '{connector="local",direction="inbound"}'
    assert {
        f"baton_kv_transfer_bytes_total{inbound} 700.0",
        f"baton_kv_transfer_wire_bytes_total{inbound} 525.0",
        f"baton_kv_transfer_blocks_total{inbound} 7.0",
        f"baton_kv_transfer_pieces_total{inbound} 4.0",
        f"baton_kv_transfer_copied_bytes_total{inbound} 350.0",
        f"baton_kv_transfer_seconds_total{inbound} 0.5",
        'baton_kv_transfers_total{connector="local",direction="inbound",outcome="ok"} 2.0',
        'baton_kv_transfers_total{connector="local",direction="outbound",outcome="timeout"} 1.0',
        'baton_kv_transfer_refusals_total{connector="local",reason="late"} 5.0',
        "baton_kv_transfers_open 1.0",
        # Of those that succeeded.
        f"baton_kv_transfer_time_seconds_count{inbound} 2.0",
        'baton_kv_transfer_time_seconds_bucket{connector="local",direction="inbound",le="0.2"} 0.0',
        'baton_kv_transfer_time_seconds_bucket{connector="local",direction="inbound",le="0.5"} 2.0',
        f"baton_kv_transfer_size_bytes_sum{inbound} 700.0",
    } <= lines
    await connector.close()
    memory.close()
