"""Bytes are damaged on their way to the victim's decode worker, or to its prefill worker."""

from __future__ import annotations

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.system.cluster import WORKERS
from benchmarks.faults.wire.connection import Channel, Connection, Way
from benchmarks.faults.wire.damage import Damage, Damager

NUM_TIMES = 3
#: Many and soon after: each must find its transfer over, and its blocks still in use.
NUM_LATE = 16
LATE_S = 0.25
DELAY_S = 1.5


class Wire(Fault):
    """The next few pieces of KV, or the next few packets of gRPC, are damaged.

    The request of an encrypted packet is unknown, so packets to any worker are damaged.
    """

    def __init__(self, channel: Channel, damage: Damage, *, encrypted: bool = False) -> None:
        self.name = f"{'tls' if encrypted else channel.value} {damage.value}"
        self.encrypted = encrypted
        self._channel = channel
        self._damage = damage

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        # Kept: a victim that had nobody yet may have others by the time that somebody asks.
        scene.target, prefill = scene.pair = (scene.choose("decode"), scene.choose("prefill"))
        victims = {scene.target, prefill}

        def matches(connection: Connection, way: Way) -> bool:
            if connection.channel is not self._channel:
                return False
            if self._channel is Channel.ZMQ:
                return way is Way.OUT and connection.target == scene.target
            return self.encrypted or connection.target in victims

        late = self._damage is Damage.LATE
        damager = Damager(
            self._damage,
            matches,
            num_times=NUM_LATE if late else NUM_TIMES,
            delay_s=LATE_S if late else DELAY_S,
        )
        scene.cluster.hub.filters.append(damager)

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.cluster.hub.filters.clear()

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`: a connection that ends takes all streams over it along."""
        if self.encrypted:
            return set(WORKERS)
        return set(scene.pair)
