"""A follower's process. Its arguments come from `FollowerProcesses`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

import msgspec
import structlog

from shared.ending import end_process
from shared.errors import BatonError
from shared.imports import without_searches
from shared.telemetry.logs import configure_logs

with without_searches():
    from shared.engine.ranks.channels.device import DeviceGroup
    from shared.engine.ranks.channels.memory import GroupMemory
    from shared.engine.ranks.channels.socket import GroupSockets
    from shared.engine.ranks.follower import Follower
    from shared.engine.ranks.lines import sender_of
    from shared.engine.ranks.seat import Seat

log = structlog.get_logger(__name__)

#: Linux: linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Follow rank 0 until it is gone; return the exit code."""
    rank, leader, line_fd = map(int, words[:3])
    _end_with(leader)
    group = msgspec.json.decode(words[3], type=GroupMemory | DeviceGroup | GroupSockets)
    seat = msgspec.json.decode(words[4], type=Seat)
    service, level, as_json = words[5:8]
    # A terminal's interrupt and a service manager's end reach all processes. Rank 0 decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure_logs(service=f"{service}.{rank}", level=level, as_json=as_json == "1")
    line = sender_of(socket.socket(fileno=line_fd))
    try:
        channels = group.join(rank)
        plans, results = channels.receive_plans(), channels.send_results()
    except BatonError as error:
        log.error("rank_cannot_join", rank=rank, reason=str(error))
        return 1
    reason = Follower(channels, plans, results, line, seat).follow()
    log.info("rank_ends", reason=str(reason))
    # Those that still wait for this rank learn it at once.
    channels.close()
    plans.close()
    if results is not None:
        results.close()
    return 0 if reason.rank == 0 else 1


def _end_with(leader: int) -> None:
    """Let the kernel end this process with rank 0's, also while this one loads or is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != leader:  # it ended before that
        os._exit(1)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
