"""The memory through which the ranks of a group on one host speak, and a rank's ends of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shared.model.sharding.split import Split
from shared.ranks.alone import Alone
from shared.ranks.plan_ring import PlanRingReceiver, PlanRingSender, ring_file
from shared.ranks.ring_pipe import PipeEnd, RingPipe, pipe_file
from shared.ranks.shared_memory import SharedMemoryCollective, collective_file

if TYPE_CHECKING:
    from shared.engine.settings.ranks import RankSettings
    from shared.ranks.base import Collective, Pipe
    from shared.ranks.group_file import GroupFile


class GroupMemory(msgspec.Struct, tag=True, frozen=True):
    """A `Group`: descriptors, the same in all its processes, and its sizes."""

    tensor_size: int
    num_stages: int
    timeout_s: float
    #: From rank 0 to all others.
    plans: int
    #: By stage; none if a stage has one rank.
    collectives: list[int]
    #: By rank that has one of the next stage behind it.
    pipes: list[int]
    #: From the first rank of the last stage to rank 0; none if there is one stage.
    results: list[int]

    @property
    def fds(self) -> list[int]:
        """All descriptors."""
        return [self.plans, *self.collectives, *self.pipes, *self.results]

    def join(self, rank: int, *, expert_parallel: bool = False) -> MemoryChannels:
        """See `Group`."""
        return MemoryChannels(self, rank, expert_parallel=expert_parallel)


def make_memory(settings: RankSettings) -> tuple[GroupMemory, list[GroupFile]]:
    """Return a group's memory, and its files, to be closed when all processes have them.

    Raises:
        ConfigError: the memory cannot be made.
    """
    size, num_stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    files = [ring_file(settings.size)]

    def made(new: list[GroupFile]) -> list[int]:
        files.extend(new)
        return [file.fd for file in new]

    memory = GroupMemory(
        tensor_size=size,
        num_stages=num_stages,
        timeout_s=settings.distributed_timeout_seconds,
        plans=files[0].fd,
        collectives=made([collective_file(size) for _ in range(num_stages) if size > 1]),
        pipes=made([pipe_file() for _ in range(size * (num_stages - 1))]),
        results=made([ring_file(2)] if num_stages > 1 else []),
    )
    return memory, files


class MemoryChannels:
    """`Channels` through shared memory, of a rank on a CPU.

    Raises:
        ConfigError: see `Membership`.
    """

    def __init__(self, memory: GroupMemory, rank: int, *, expert_parallel: bool = False) -> None:
        """Join. `rank`: its number in the group."""
        self._memory = memory
        self.split = Split.of(
            rank, memory.tensor_size, memory.num_stages, expert_parallel=expert_parallel
        )
        self.collective = self._join_stage()
        self.device = "cpu"
        self.sums: Collective = self.collective
        self.pipe = self._join_neighbours()

    def send_plans(self) -> PlanRingSender:
        """See `Channels`."""
        memory = self._memory
        return PlanRingSender(memory.plans, self.split.num_ranks, timeout_s=memory.timeout_s)

    def receive_plans(self) -> PlanRingReceiver:
        """See `Channels`."""
        number, size = self.split.number, self.split.num_ranks
        return PlanRingReceiver(self._memory.plans, number, size, timeout_s=self._memory.timeout_s)

    def send_results(self) -> PlanRingSender | None:
        """See `Channels`."""
        split, memory = self.split, self._memory
        if split.num_stages == 1 or not split.is_last or split.rank:
            return None
        return PlanRingSender(
            memory.results[0], 2, timeout_s=memory.timeout_s, names=(split.number, 0)
        )

    def receive_results(self) -> PlanRingReceiver | None:
        """See `Channels`."""
        split, memory = self.split, self._memory
        if split.num_stages == 1:
            return None
        last = split.num_ranks - split.size
        return PlanRingReceiver(
            memory.results[0],
            1,
            2,
            timeout_s=memory.timeout_s,
            names=(last, 0),
            limit_s=memory.timeout_s,
        )

    def close(self) -> None:
        """See `Channels`."""
        self.collective.close()
        if self.pipe is not None:
            self.pipe.close()

    def _join_stage(self) -> Collective:
        split, memory = self.split, self._memory
        if split.size == 1:
            return Alone()
        first = split.stage * split.size
        return SharedMemoryCollective(
            memory.collectives[split.stage],
            split.rank,
            split.size,
            timeout_s=memory.timeout_s,
            names=range(first, first + split.size),
        )

    def _join_neighbours(self) -> Pipe | None:
        split, memory = self.split, self._memory
        if split.num_stages == 1:
            return None

        def end(sender: int) -> PipeEnd:
            return PipeEnd(memory.pipes[sender], (sender, sender + split.size))

        return RingPipe(
            None if split.is_first else end(split.number - split.size),
            None if split.is_last else end(split.number),
            timeout_s=memory.timeout_s,
        )
