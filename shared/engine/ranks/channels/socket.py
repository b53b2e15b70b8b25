"""The sockets by which the ranks of a group on several hosts speak, and a rank's ends of them.

Addresses are in a store that rank 0 hosts.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from torch._C import _distributed_c10d as c10d

from shared.address import bare_host, family_of, join_address
from shared.errors import ConfigError, RankError
from shared.model.sharding.split import Split
from shared.ranks.alone import Alone
from shared.ranks.plan_socket import PlanSocketReceiver, PlanSocketSender
from shared.ranks.socket_pipe import ROOM, SocketPipe
from shared.ranks.torch_group import gloo_collective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ranks.base import Collective, Pipe

#: A process is started and has loaded its code, on a busy host. Then all go on at once.
JOIN_S = 120.0
#: Until a host's own name is known, and between looks.
_NAME_S, _NAME_STEP_S = 30.0, 0.5
_PLANS, _RESULTS = "plans", "results"
_ALL = "all"


class GroupSockets(msgspec.Struct, tag=True, frozen=True):
    """A `Group` of hosts: where its store is, and its sizes."""

    tensor_size: int
    num_stages: int
    timeout_s: float
    #: Rank 0's.
    store_host: str
    store_port: int
    #: This host's address for the others.
    host: str

    @property
    def fds(self) -> Sequence[int]:
        """See `Group`."""
        return ()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tensor_size * self.num_stages

    def join(self, rank: int, *, expert_parallel: bool = False) -> SocketChannels:
        """See `Group`."""
        return SocketChannels(self, rank, expert_parallel=expert_parallel)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Listen at an address of this host; port 0: a free one.

    A name may become known a moment after the host has started.

    Raises:
        ConfigError: it is no address of this host, or the port is in use.
    """
    until_s = time.monotonic() + _NAME_S
    while True:
        try:
            family = family_of(host)
            return socket.create_server(
                (bare_host(host), port),
                family=family,
                backlog=backlog,
                dualstack_ipv6=family == socket.AF_INET6,
            )
        except OSError as error:
            is_unknown = isinstance(error, socket.gaierror)
            if not is_unknown or time.monotonic() > until_s:
                raise ConfigError(
                    f"node 0 cannot listen at {join_address(host, port)}: {error}; --master-addr "
                    "is an address of its host, and --master-port must be free there"
                ) from error
        time.sleep(_NAME_STEP_S)


class HostedStore:
    """The store of a group, at an address of this host. Any thread may call it."""

    def __init__(self, host: str, size: int) -> None:
        """Listen there, at a free port.

        Raises:
            ConfigError: it is no address of this host.
        """
        listener = listen(host, 0, size)
        self.host, self.port = listener.getsockname()[:2]
        self._size = size
        self._store = c10d.TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def has_all(self) -> bool:
        """Return whether the processes of all other ranks have come."""
        return bool(self._store.check([_here(rank) for rank in range(1, self._size)]))

    def go(self) -> None:
        """Let all ranks join, which have come."""
        self._store.set(_ALL, "1")

    def tell_lost(self, split: Split) -> None:
        """Tell ranks that wait for a lost one, so that they need not wait for its time-out."""
        self._store.set(f"{_stage(split.stage)}/roll-call/{split.rank}", "left")


class SocketChannels:
    """`Channels` by sockets: sums by gloo, messages by ZeroMQ.

    Raises:
        RankError: a rank did not come.
        ConfigError: this host has no such address.
    """

    def __init__(self, group: GroupSockets, rank: int, *, expert_parallel: bool = False) -> None:
        """Join, when all ranks have come. `rank`: its number in the group."""
        self._group = group
        self.split = Split.of(
            rank, group.tensor_size, group.num_stages, expert_parallel=expert_parallel
        )
        limit = timedelta(seconds=JOIN_S)
        try:
            self._store = c10d.TCPStore(
                group.store_host, group.store_port, wait_for_workers=False, timeout=limit
            )
            self._store.set(_here(rank), "1")
            self._store.wait([_ALL], limit)
        except RuntimeError as error:
            raise RankError(f"rank {rank} found no group: {error}", rank=0) from error
        self.collective = self._join_stage()
        self.device = "cpu"
        self.sums: Collective = self.collective
        self.pipe = self._join_neighbours()

    def send_plans(self) -> PlanSocketSender:
        """See `Channels`."""
        return self._sender(_PLANS, self.split.num_ranks, range(self.split.num_ranks))

    def receive_plans(self) -> PlanSocketReceiver:
        """See `Channels`."""
        return PlanSocketReceiver(
            self._address(_PLANS), self.split.number, timeout_s=self._group.timeout_s
        )

    def send_results(self) -> PlanSocketSender | None:
        """See `Channels`."""
        split = self.split
        if split.num_stages == 1 or not split.is_last or split.rank:
            return None
        return self._sender(_RESULTS, 2, (split.number, 0))

    def receive_results(self) -> PlanSocketReceiver | None:
        """See `Channels`."""
        split = self.split
        if split.num_stages == 1:
            return None
        return self._receiver(_RESULTS, (split.num_ranks - split.size, 0))

    def close(self) -> None:
        """See `Channels`."""
        self.collective.close()
        if self.pipe is not None:
            self.pipe.close()

    def _join_stage(self) -> Collective:
        split = self.split
        if split.size == 1:
            return Alone()
        first = split.stage * split.size
        return gloo_collective(
            c10d.PrefixStore(_stage(split.stage), self._store),
            split.rank,
            split.size,
            host=self._group.host,
            timeout_s=self._group.timeout_s,
            names=range(first, first + split.size),
        )

    def _join_neighbours(self) -> Pipe | None:
        split = self.split
        if split.num_stages == 1:
            return None
        own, before, behind = split.number, split.number - split.size, split.number + split.size
        # All listen before any looks for another's address.
        sender = None if split.is_last else self._sender(_pipe(own), 2, (own, behind), ROOM)
        receiver = None if split.is_first else self._receiver(_pipe(before), (before, own))
        return SocketPipe(receiver, sender)

    def _sender(
        self, name: str, size: int, names: Sequence[int], room: int | None = None
    ) -> PlanSocketSender:
        more = {} if room is None else {"room": room}
        sender = PlanSocketSender(
            f"tcp://{join_address(self._group.host, 0)}",
            size,
            timeout_s=self._group.timeout_s,
            names=names,
            **more,
        )
        self._store.set(name, sender.address)
        return sender

    def _receiver(self, name: str, names: tuple[int, int]) -> PlanSocketReceiver:
        limit_s = self._group.timeout_s
        return PlanSocketReceiver(
            self._address(name), 1, timeout_s=limit_s, limit_s=limit_s, names=names
        )

    def _address(self, name: str) -> str:
        self._store.set_timeout(timedelta(seconds=JOIN_S))
        try:
            return self._store.get(name).decode()
        except RuntimeError as error:
            message = f"rank {self.split.number} found no {name} in the group's store: {error}"
            raise RankError(message, rank=0) from error


def _here(rank: int) -> str:
    return f"here/{rank}"


def _stage(number: int) -> str:
    return f"stage-{number}"


def _pipe(sender: int) -> str:
    return f"pipe-{sender}"
