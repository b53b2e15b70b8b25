"""Messages of rank 0 to its followers on other hosts, by ZeroMQ.

Each follower says how many messages it has taken, and rank 0 sends at most `room` more. Nothing is
encrypted or signed: the address must be of a network that only the group's hosts reach.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from shared.address import needs_ipv6
from shared.errors import ConfigError, RankError

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    _Context = zmq.Context[zmq.Socket[bytes]]

TIMEOUT_S = 30.0
#: As many messages may wait for a follower as in a ring.
ROOM = 64
_MESSAGE, _END, _PROBE = b"m", b"e", b"p"
#: A peer that answers none of so many heartbeats within the time-out is lost.
_HEARTBEATS = 3
#: Rank 0 looks this often whether a follower that it waits for is still connected.
_LOOK_S = 0.1
#: A follower that waits comes back to Python this often, for signals.
_PATIENCE_MS = 500


class PlanSocketSender:
    """A `PlanSender` that binds `endpoint`, such as tcp://10.0.0.1:5555 (port 0: any).

    The first message waits until every follower has joined. names: by rank, the number that errors
    give it; None: its own.

    Raises:
        ConfigError: the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        room: int = ROOM,
        names: Seq[int] | None = None,
    ) -> None:
        self.size = size
        self._names = range(size) if names is None else names
        self._timeout_s = timeout_s
        self._room = room
        self._num_sent = 0
        #: By follower: messages that it has taken; -1 before it has joined.
        self._taken = dict.fromkeys(range(1, size), -1)
        self._error: RankError | None = None
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.ROUTER, timeout_s)
        # A message to a follower that is gone is an error.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"rank {self._names[0]} cannot listen at {endpoint}: {error}"
            ) from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, data: bytes) -> None:
        """See `PlanSender`."""
        self._check()
        for rank in self._taken:
            self._wait(rank, max(0, self._num_sent + 1 - self._room), "send")
        for rank in self._taken:
            self._post(rank, _MESSAGE, data)
        self._num_sent += 1

    def drain(self) -> None:
        """See `PlanSender`."""
        self._check()
        for rank in self._taken:
            self._wait(rank, self._num_sent, "drain")

    def close(self) -> None:
        """See `PlanSender`. Waits, for the time-out at most, until the network has all."""
        if self._error is not None:
            return
        for rank, taken in self._taken.items():
            try:
                if taken >= 0:
                    self._post(rank, _END, b"")
            except RankError:
                break
        own = self._names[0]
        self._error = RankError(f"rank {own} has left the group", rank=own)
        self._context.destroy(linger=round(self._timeout_s * 1e3))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _post(self, rank: int, kind: bytes, data: bytes) -> None:
        try:
            self._socket.send_multipart([_name(rank), kind, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise self._lost(rank, f"died, left or was cut off ({error})") from error

    def _wait(self, rank: int, count: int, act: str) -> None:
        """Wait until a follower has taken `count` messages."""
        until_s = time.monotonic() + self._timeout_s
        while self._taken[rank] < count:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                what = "did not come" if self._taken[rank] >= 0 else "did not join the group"
                limit = f"within {self._timeout_s:g} s"
                message = f"{what} {limit}: rank {self._names[0]} waited for it in {act}"
                raise self._lost(rank, message)
            if self._socket.poll(math.ceil(min(left_s, _LOOK_S) * 1e3)):
                self._read()
            elif self._taken[rank] >= 0:
                self._post(rank, _PROBE, b"")

    def _read(self) -> None:
        """Read what a follower has taken. Strangers are not heard."""
        name, *rest = self._socket.recv_multipart()
        for rank in self._taken:
            if name == _name(rank) and len(rest) == 1:
                self._taken[rank] = int.from_bytes(rest[0], "little")

    def _lost(self, rank: int, what: str) -> RankError:
        """Break the channel: followers see that the connection ends."""
        name = self._names[rank]
        self._error = RankError(f"rank {name} {what}", rank=name)
        self._context.destroy(linger=0)
        return self._error


class PlanSocketReceiver:
    """A `PlanReceiver` that connects to the `address` of rank 0, which may come later.

    A rank 0 that is silent for `timeout_s` after it was there is lost. `limit_s`: how long a
    message may take to come, where one is due; None: as long as rank 0 lives. names: by rank, from
    0, the number that errors give it; None: its own.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_s: float | None = None,
        names: Seq[int] | None = None,
    ) -> None:
        self.rank = rank
        self._names = range(rank + 1) if names is None else names
        self._limit_s = limit_s
        self._num_taken = 0
        self._error: RankError | None = None
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.DEALER, timeout_s)
        self._socket.setsockopt(zmq.ROUTING_ID, _name(rank))
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for each in (self._socket, self._monitor):
            self._poller.register(each, zmq.POLLIN)
        self._socket.setsockopt(zmq.IPV6, needs_ipv6(address))
        self._socket.connect(address)
        self._acknowledge()

    def receive(self) -> bytes:
        """See `PlanReceiver`."""
        if self._error is not None:
            raise self._error
        limit_s = self._limit_s
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            ready = dict(self._poller.poll(_PATIENCE_MS))
            if self._socket in ready:
                kind, data = self._socket.recv_multipart()
                if kind == _MESSAGE:
                    self._num_taken += 1
                    self._acknowledge()
                    return data
                if kind == _END:
                    raise self._lost("left the group")
            elif self._monitor in ready:
                recv_monitor_message(self._monitor)
                raise self._lost("died, or was cut off")
            elif until_s is not None and time.monotonic() > until_s:
                raise self._lost(f"did not come within {limit_s:g} s")

    def give_up(self, what: str) -> RankError:
        """Leave because of what the sender did; return the error."""
        return self._lost(what)

    def close(self) -> None:
        """See `PlanReceiver`."""
        if self._error is None:
            self._lost("")
            own = self._names[self.rank]
            self._error = RankError(f"rank {own} has left the group", rank=own)

    def _acknowledge(self) -> None:
        self._socket.send(self._num_taken.to_bytes(8, "little"))

    def _lost(self, what: str) -> RankError:
        sender, own = self._names[0], self._names[self.rank]
        self._error = RankError(f"rank {sender} {what}: rank {own} waited for it", rank=sender)
        self._socket.disable_monitor()
        self._context.destroy(linger=0)
        return self._error


def _socket(context: _Context, kind: int, timeout_s: float) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    timeout_ms = round(timeout_s * 1e3)
    socket.setsockopt(zmq.HEARTBEAT_IVL, max(1, timeout_ms // _HEARTBEATS))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
    return socket


def _name(rank: int) -> bytes:
    return b"rank %d" % rank
