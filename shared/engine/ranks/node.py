"""A host other than node 0: it waits for that, and has processes of the ranks that are its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from shared.address import bare_host, join_address
from shared.engine.ranks.handshake import (
    HANDSHAKE_S,
    Leaving,
    Lost,
    RefusedError,
    Start,
    keep_alive,
    read,
    show,
    write,
)
from shared.engine.ranks.processes import FollowerProcesses, LogSettings
from shared.engine.ranks.seat import Seat
from shared.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType

    from shared.engine.ranks.handshake import OwnNode, Welcome
    from shared.engine.settings.ranks import RankSettings
    from shared.errors import RankError

log = structlog.get_logger(__name__)

#: Between lines of the log that say who is waited for, and between tries.
SAY_S = 10.0
_TRY_S = 0.5
#: A group that was lost, or its node 0, is gone: a supervisor starts this program again.
EXIT_LOST = 1


class Node:
    """One life of this program. Of the main thread, whose SIGTERM and SIGINT it handles."""

    def __init__(
        self,
        settings: RankSettings,
        own: OwnNode,
        *,
        logs: LogSettings | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Take the settings. options: of `load_model`, this host's values in place of rank 0's."""
        self._settings, self._own = settings, own.with_settings(settings.alike)
        self._logs, self._options = logs or LogSettings(), options or {}
        #: Of this host's ranks, by rank, once they were started.
        self.pids: dict[int, int] = {}
        self._wake_read, self._wake = os.pipe()
        #: Signals that came.
        self._num_told = 0
        self._lost: RankError | None = None

    def follow(self) -> int:
        """Wait for node 0, follow it, and return the exit code: 0 if this was told to end.

        Raises:
            ConfigError: this host does not belong to the group; says why.
        """
        before = {number: signal.signal(number, self._told) for number in _ENDS}
        try:
            return self._follow()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _follow(self) -> int:
        with contextlib.ExitStack() as stack:
            met = self._meet(stack)
            if met is None:
                log.info("node_ends", reason="it was told to, before there was a group")
                return 0
            control, welcome, lines = met
            host = self._own.host or str(control.getsockname()[0])
            processes = FollowerProcesses(
                lines,
                msgspec.structs.replace(welcome.group, host=host),
                logs=self._logs,
                on_lost=self._rank_ended,
                seats={rank: self._seat(rank, welcome, host) for rank in lines},
            )
            stack.callback(processes.close, at_once=True)
            self.pids.update(zip(lines, processes.pids, strict=True))
            log.info("node_follows", ranks=list(lines), pids=processes.pids)
            reason = self._watch(control)
        log.info("node_ends", reason=reason)
        return 0 if self._num_told else EXIT_LOST

    def _meet(
        self, stack: contextlib.ExitStack
    ) -> tuple[socket.socket, Welcome, dict[int, socket.socket]] | None:
        """Wait for node 0 and all others; None: this host was told to end before."""
        said_s, reason = -SAY_S, ""
        until_s = time.monotonic() + self._settings.node_patience_s
        while not self._num_told:
            with contextlib.ExitStack() as attempt:
                try:
                    found = self._join(attempt)
                except (OSError, RefusedError) as error:
                    reason = str(error)
                except ConfigError as error:
                    if time.monotonic() >= until_s:
                        raise
                    reason = str(error)
                except ValueError as error:
                    raise ConfigError(
                        f"what answers at {self._where} is no worker of several nodes: {error}"
                    ) from error
                else:
                    if found is not None:
                        stack.push(attempt.pop_all())
                    return found
            if time.monotonic() - said_s >= SAY_S:
                said_s = time.monotonic()
                log.info("waiting_for_node_0", at=self._where, reason=reason)
            self._wait_readable(_TRY_S)
        return None

    def _join(
        self, stack: contextlib.ExitStack
    ) -> tuple[socket.socket, Welcome, dict[int, socket.socket]] | None:
        settings, lines = self._settings, {}
        control = stack.enter_context(self._connect())
        welcome = show(control, self._own, settings.node_rank)
        for rank in settings.ranks_of(settings.node_rank):
            line = lines[rank] = stack.enter_context(self._connect())
            show(line, self._own, settings.node_rank, rank)
            line.settimeout(None)
        log.info("node_joined", at=self._where, ranks=list(lines))
        while not self._wait_readable(None, control):
            if self._num_told:
                return None
        if not isinstance(read(control), Start):
            raise ConnectionError("node 0 left before all nodes were there")
        return control, welcome, lines

    def _connect(self) -> socket.socket:
        settings, host = self._settings, self._own.host
        connection = socket.create_connection(
            (bare_host(settings.master_addr), settings.master_port),
            HANDSHAKE_S,
            None if host is None else (bare_host(host), 0),
        )
        keep_alive(connection, settings.distributed_timeout_seconds)
        return connection

    @property
    def _where(self) -> str:
        return join_address(self._settings.master_addr, self._settings.master_port)

    def _seat(self, rank: int, welcome: Welcome, host: str) -> Seat:
        own = self._settings.ranks_of(self._settings.node_rank)
        return Seat(
            index=own.index(rank),
            count=len(own),
            host=host,
            advertise_host=self._own.advertise_host,
            folders={welcome.folder: self._own.folder} if self._own.folder else {},
            options=self._options,
        )

    def _watch(self, control: socket.socket) -> str:
        """Wait for the end; return why."""
        num_told = self._num_told
        while True:
            is_over = self._wait_readable(None, control)
            if self._lost is not None:
                with contextlib.suppress(OSError):
                    write(control, Lost(self._lost.rank or 0, str(self._lost)))
                return str(self._lost)
            if is_over:
                return "node 0 has ended, or was cut off"
            if self._num_told > max(1, num_told):
                return "it was told to, twice"
            if self._num_told > num_told:
                num_told = self._num_told
                log.info("node_leaves", advice="node 0 ends first; a second signal ends this one")
                with contextlib.suppress(OSError):
                    write(control, Leaving())

    def _rank_ended(self, error: RankError) -> None:
        where = f"node {self._settings.node_rank} ({self._own.host or socket.gethostname()})"
        error.args = (f"{error} on {where}",)
        self._lost = error
        os.write(self._wake, b"x")

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._num_told += 1
        os.write(self._wake, b"x")

    def _wait_readable(self, limit_s: float | None, control: socket.socket | None = None) -> bool:
        """Wait for node 0, a signal, or a rank's end; return whether node 0 has said something."""
        watched = [self._wake_read, *([] if control is None else [control.fileno()])]
        ready, _, _ = select.select(watched, [], [], limit_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 16)
            return False
        return bool(ready)


_ENDS = (signal.SIGTERM, signal.SIGINT)
