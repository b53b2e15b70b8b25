"""All ranks of a group but rank 0, started or met: on this host, and on others."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from shared.engine.ranks.channels.device import devices_of, on_devices
from shared.engine.ranks.channels.memory import make_memory
from shared.engine.ranks.channels.socket import JOIN_S, GroupSockets, HostedStore
from shared.engine.ranks.lines import local_line
from shared.engine.ranks.meeting import Meeting
from shared.engine.ranks.processes import FollowerProcesses
from shared.engine.ranks.seat import Seat
from shared.errors import RankError
from shared.model.sharding.split import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.ranks.base import AnswerReceiver, Channels, Group
    from shared.engine.ranks.handshake import OwnNode
    from shared.engine.ranks.processes import LogSettings
    from shared.engine.settings.ranks import RankSettings
    from shared.ranks.group_file import GroupFile

_LOOK_S = 0.02


class Assembly:
    """The other ranks, as rank 0 has them. Its processes end with this one, and at `close`."""

    def __init__(
        self,
        settings: RankSettings,
        logs: LogSettings,
        on_lost: Callable[[RankError], None],
        *,
        device: str = "cpu",
    ) -> None:
        """Know the settings. `on_lost`: called in a thread, if a rank ends before `close`.

        `device`: rank 0's.
        """
        self._settings, self._logs, self._on_lost = settings, logs, on_lost
        self._device = device
        #: By rank.
        self.lines: dict[int, AnswerReceiver] = {}
        self._meeting: Meeting | None = None
        self._store: HostedStore | None = None
        self._processes: FollowerProcesses | None = None
        self._files: list[GroupFile] = []

    def start(self) -> Channels:
        """Start the processes of a group of one host; return rank 0's ends.

        Raises:
            ConfigError: the memory of the group cannot be made, or there are too few devices.
            RankError: a rank did not come.
        """
        settings, devices = self._settings, list[str]()
        if self._device != "cpu":
            devices = devices_of(settings.size, settings.description)
        memory, self._files = make_memory(settings)
        group: Group = on_devices(memory, devices) if devices else memory
        self._start(group)
        return self._join(group)

    def meet(
        self, own: OwnNode, *, check: Callable[[], None], on_leaving: Callable[[], None]
    ) -> Channels:
        """Wait for the other hosts, start the processes of this one; return rank 0's ends.

        `check` raises to end the wait. `on_leaving`: called in a thread when a host is told to end.

        Raises:
            ConfigError: the settings' address cannot be used.
            RankError: a rank that was there was lost.
        """
        settings = self._settings
        sizes = settings.tensor_parallel_size, settings.pipeline_parallel_size
        store = self._store = HostedStore(settings.master_addr, settings.size)
        group = GroupSockets(
            tensor_size=sizes[0],
            num_stages=sizes[1],
            timeout_s=settings.distributed_timeout_seconds,
            store_host=store.host,
            store_port=store.port,
            host=store.host,
        )

        def lose(error: RankError) -> None:
            if error.rank is not None:
                store.tell_lost(Split.of(error.rank, *sizes))
            self._on_lost(error)

        self._meeting = Meeting(settings, group, own, on_lost=lose, on_leaving=on_leaving)
        self.lines |= self._meeting.gather(check)
        self._start(group)
        until_s = time.monotonic() + JOIN_S
        while not store.has_all():
            check()
            if time.monotonic() > until_s:
                raise RankError(f"a rank's process did not come within {JOIN_S:g} s")
            time.sleep(_LOOK_S)
        store.go()
        return self._join(group)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of this host's ranks, without rank 0."""
        return () if self._processes is None else self._processes.pids

    def place(self, rank: int) -> str:
        """Return where a rank is, for words behind its number: empty for one of this host."""
        return "" if self._meeting is None else self._meeting.place(rank)

    def close(self, *, at_once: bool) -> None:
        """End all. See `FollowerProcesses.close`. Idempotent."""
        if self._meeting is not None:
            self._meeting.close()
        for line in self.lines.values():
            line.close()
        if self._processes is not None:
            self._processes.close(at_once=at_once)
        for file in self._files:
            file.close()

    def _start(self, group: Group) -> None:
        own, count = self._settings.ranks_of(0), self._settings.local_size
        with contextlib.ExitStack() as passed_on:
            theirs = {}
            for rank in own[1:]:
                self.lines[rank], other = local_line()
                theirs[rank] = passed_on.enter_context(other)
            self._processes = FollowerProcesses(
                theirs,
                group,
                logs=self._logs,
                on_lost=self._on_lost,
                seats={rank: Seat(rank, count) for rank in theirs},
            )
        self.lines = dict(sorted(self.lines.items()))

    def _join(self, group: Group) -> Channels:
        return group.join(0, expert_parallel=self._settings.enable_expert_parallel)
