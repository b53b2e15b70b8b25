"""Node 0's side of a group on several hosts: it waits for the others, and hears of their ends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import structlog

from shared.address import join_address
from shared.engine.ranks.channels.socket import listen
from shared.engine.ranks.handshake import (
    HANDSHAKE_S,
    Leaving,
    Lost,
    Refusal,
    Start,
    Welcome,
    greet,
    keep_alive,
    read,
    write,
)
from shared.engine.ranks.lines import StreamReceiver
from shared.errors import ConfigError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.ranks.channels.socket import GroupSockets
    from shared.engine.ranks.handshake import Hello, OwnNode
    from shared.engine.settings.ranks import RankSettings

log = structlog.get_logger(__name__)

#: Between lines of the log that say who is waited for.
SAY_S = 10.0
#: Between looks at whether to go on waiting.
_LOOK_S = 0.2


class Meeting:
    """Other hosts may come, in any order, until all are there; from then on their ends are told.

    A thread takes connections, and each has one more. `on_lost` and `on_leaving` are called in
    those: a rank, or its host, is gone; a host was told to end.
    """

    def __init__(
        self,
        settings: RankSettings,
        group: GroupSockets,
        own: OwnNode,
        *,
        on_lost: Callable[[RankError], None],
        on_leaving: Callable[[], None],
    ) -> None:
        """Listen at the settings' address.

        Raises:
            ConfigError: the address is another's, or in use.
        """
        self._settings, self._group = settings, group
        self._own = own.with_settings(settings.alike)
        self._on_lost, self._on_leaving = on_lost, on_leaving
        self._listener = listen(settings.master_addr, settings.master_port, settings.nnodes)
        self._changed = threading.Condition()
        #: By node: its own connection, and its address.
        self._nodes: dict[int, tuple[socket.socket, str]] = {}
        #: By rank of another host.
        self._lines: dict[int, socket.socket] = {}
        self._is_complete = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="meet-nodes", daemon=True)
        self._thread.start()

    def gather(self, check: Callable[[], None]) -> dict[int, StreamReceiver]:
        """Wait until all hosts have come, and let them start; return the lines to their ranks.

        `check` raises to end the wait.
        """
        said_s = time.monotonic()
        with self._changed:
            while not self._has_all():
                check()
                self._changed.wait(_LOOK_S)
                if time.monotonic() - said_s >= SAY_S:
                    said_s = time.monotonic()
                    self._say_missing()
            self._is_complete = True
            nodes = dict(self._nodes)
            lines = {rank: StreamReceiver(line) for rank, line in sorted(self._lines.items())}
        for node, (connection, _) in nodes.items():
            try:
                write(connection, Start())
            except OSError as error:
                raise self._node_lost(node, str(error)) from error
        hosts = {node: host for node, (_, host) in sorted(nodes.items())}
        log.info("nodes_met", hosts=hosts)
        return lines

    def place(self, rank: int) -> str:
        """Return where a rank is, for words behind its number: empty for one of this host."""
        node = self._settings.node_of(rank)
        if node not in self._nodes:
            return ""
        return f" on node {node} ({self._nodes[node][1]})"

    def close(self) -> None:
        """End all connections: the other hosts end their ranks. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            connections = [connection for connection, _ in self._nodes.values()]
            # Those of a complete group belong to their receivers.
            unread = [] if self._is_complete else list(self._lines.values())
        for each in (self._listener, *connections):
            with contextlib.suppress(OSError):  # threads that wait for it wake up
                each.shutdown(socket.SHUT_RDWR)
        for line in unread:
            line.close()
        self._thread.join()
        self._listener.close()

    def _has_all(self) -> bool:
        num_far = self._settings.size - self._settings.local_size
        return len(self._nodes) == self._settings.nnodes - 1 and len(self._lines) == num_far

    def _say_missing(self) -> None:
        missing = sorted(set(range(1, self._settings.nnodes)) - self._nodes.keys())
        log.info(
            "waiting_for_nodes",
            missing=missing,
            at=join_address(self._settings.master_addr, self._settings.master_port),
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._meet, args=(connection,), name="meet-node", daemon=True
            ).start()

    def _meet(self, connection: socket.socket) -> None:
        """Let one connection in, or not; of a host's own, hear what it says until its end."""
        connection.settimeout(HANDSHAKE_S)
        try:
            hello, signature = greet(connection, self._own)
            refusal = self._admit(hello, connection)
            if refusal is not None:
                write(connection, refusal)
                raise ConfigError(refusal.reason)
            keep_alive(connection, self._settings.distributed_timeout_seconds)
            write(connection, Welcome(self._group, self._own.folder, signature))
        except ConfigError as error:
            log.warning("node_refused", reason=str(error))
            with contextlib.suppress(OSError):
                write(connection, Refusal(str(error)))
            connection.close()
        except (OSError, ValueError) as error:
            log.debug("no_node", reason=str(error))
            connection.close()
        else:
            if hello.rank is None:
                self._hear(hello, connection)

    def _admit(self, hello: Hello, connection: socket.socket) -> Refusal | None:
        """Give a connection its place; return why it has none."""
        settings, node, rank = self._settings, hello.node, hello.rank
        if not 1 <= node < settings.nnodes:
            return Refusal(f"--node-rank {node}: other nodes are 1 to {settings.nnodes - 1}")
        with self._changed:
            if self._is_closed:
                return Refusal("the group ends", is_early=True)
            if rank is not None and node not in self._nodes:
                return Refusal(f"rank {rank} came before node {node}", is_early=True)
            if rank is not None:
                if settings.node_of(rank) != node or rank in self._lines:
                    return Refusal(f"rank {rank} is none of node {node}, or is there already")
                self._lines[rank] = connection
            elif node in self._nodes:
                host = self._nodes[node][1]
                return Refusal(f"--node-rank {node} is taken: node {node} is {host}")
            else:
                self._nodes[node] = (connection, hello.host)
            self._changed.notify_all()
        return None

    def _hear(self, hello: Hello, connection: socket.socket) -> None:
        """Hear what a host says until its connection ends."""
        connection.settimeout(None)
        node, reason = hello.node, "its process ended, or was cut off"
        log.info("node_came", node=node, host=hello.host)
        try:
            while True:
                message = read(connection)
                if isinstance(message, Leaving):
                    log.info("node_leaves", node=node, host=hello.host)
                    self._on_leaving()
                elif isinstance(message, Lost):
                    self._tell(RankError(message.reason, rank=message.rank))
        except (OSError, ValueError) as error:
            if not isinstance(error, ConnectionError):
                reason = str(error)
        self._end(node, connection, reason)

    def _end(self, node: int, connection: socket.socket, reason: str) -> None:
        with self._changed:
            is_member, is_closed = self._is_complete, self._is_closed
            if not is_member:
                del self._nodes[node]
                for rank in self._settings.ranks_of(node):
                    line = self._lines.pop(rank, None)
                    if line is not None:
                        line.close()
        if is_member and not is_closed:
            self._node_lost(node, reason)
        elif not is_closed:
            log.warning("node_went", node=node, reason=reason)
        connection.close()

    def _node_lost(self, node: int, reason: str) -> RankError:
        rank = self._settings.ranks_of(node)[0]
        error = RankError(f"rank {rank}{self.place(rank)} is lost: {reason}", rank=rank)
        self._tell(error)
        return error

    def _tell(self, error: RankError) -> None:
        if not self._is_closed:
            self._on_lost(error)
