"""Who takes nothing is hung up on; who takes little is not."""

from __future__ import annotations

from services.router.doors.slow_clients import SlowClients

STALL_S = 30.0


class Flow:
    write_paused = False


class Connection:
    """A connection with bytes that its client has not taken."""

    def __init__(self, num_waiting: int = 0) -> None:
        self.flow = Flow()
        self.flow.write_paused = num_waiting > 0
        self.transport = self
        self.num_waiting = num_waiting
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.num_waiting

    def abort(self) -> None:
        self.aborted = True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_only_who_takes_nothing_at_all_is_hung_up_on() -> None:
    clock = Clock()
    deaf, slow, idle = Connection(100_000), Connection(100_000), Connection()
    clients = SlowClients(lambda: {deaf, slow, idle}, stall_s=STALL_S, clock=clock)
    for _ in range(6):
        clients.look()
        clock.now_s += STALL_S / 6
        slow.num_waiting -= 1
    assert not deaf.aborted
    clients.look()
    assert deaf.aborted
    assert not slow.aborted
    assert not idle.aborted


def test_a_client_that_reads_again_starts_anew() -> None:
    clock = Clock()
    client = Connection(100_000)
    clients = SlowClients(lambda: {client}, stall_s=STALL_S, clock=clock)
    for paused in (True, False, True):
        client.flow.write_paused = paused
        clients.look()
        clock.now_s += STALL_S - 1
    assert not client.aborted
    clock.now_s += 1
    clients.look()
    assert client.aborted
