"""A follower's process. Its arguments come from `FollowerProcesses`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading

import msgspec
import structlog

from shared.ending import end_process
from shared.engine.ranks.channels import Channels, GroupMemory
from shared.engine.ranks.follower import Follower
from shared.telemetry.logs import configure_logs

log = structlog.get_logger(__name__)


def main(words: list[str]) -> int:
    """Follow rank 0 until it is gone; return the exit code."""
    rank, leader, line_fd = map(int, words[:3])
    memory = msgspec.json.decode(words[3], type=GroupMemory)
    service, level, as_json = words[4:7]
    # A terminal's interrupt and a service manager's end reach all processes. Rank 0 decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure_logs(service=f"{service}.{rank}", level=level, as_json=as_json == "1")
    threading.Thread(target=_end_with, args=(leader,), daemon=True).start()
    channels = Channels(memory, rank)
    plans, results = channels.receive_plans(), channels.send_results()
    line = socket.socket(fileno=line_fd)
    reason = Follower(channels, plans, results, line).follow()
    log.info("rank_ends", reason=str(reason))
    # Those that still wait for this rank learn it at once.
    channels.close()
    plans.close()
    if results is not None:
        results.close()
    return 0 if reason.rank == 0 else 1


def _end_with(leader: int) -> None:
    """End this process when rank 0's has ended: while this one loads, it listens to nothing."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(leader)
        if os.getppid() == leader:
            select.select([fd], [], [])
    os._exit(1)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
