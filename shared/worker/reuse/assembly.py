"""One worker's reuse of peers' prefixes, made from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.worker.peers.breaker import PeerBreaker
from shared.worker.reuse.attempt import PeerAttempts
from shared.worker.reuse.block_fetch import BlockFetcher
from shared.worker.reuse.cost_model import CostModel
from shared.worker.reuse.metrics import ReuseMetrics
from shared.worker.reuse.prefix_reuse import PrefixReuse

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.engine.thread.engine_thread import EngineThread
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout
    from shared.rpc.channel import ChannelPool
    from shared.worker.config import WorkerConfig
    from shared.worker.peers.breaker import BreakerMetrics
    from shared.worker.peers.peers import PeerBook


def build_reuse(
    config: WorkerConfig,
    *,
    worker: WorkerId,
    engine: EngineThread,
    namespace: bytes,
    layout: KVLayout,
    peers: PeerBook,
    channels: ChannelPool,
    metrics: CollectorRegistry,
    breakers: BreakerMetrics,
) -> PrefixReuse:
    """Return the reuse. It needs no closing: its resources belong to requests."""
    costs = CostModel(tokens_per_step=config.engine.max_num_batched_tokens)
    return PrefixReuse(
        worker=worker,
        settings=config.reuse,
        namespace=namespace,
        block_size=layout.block_size,
        engine=engine,
        attempts=PeerAttempts(
            policy=config.reuse.reuse_policy,
            block_size=layout.block_size,
            block_bytes=layout.num_growing_groups * layout.block_bytes,
            peers=peers,
            fetcher=BlockFetcher(engine=engine, layout=layout, channels=channels),
            costs=costs,
            breaker=PeerBreaker(observe=breakers.observe("reuse")),
            metrics=ReuseMetrics(metrics),
        ),
        costs=costs,
    )
