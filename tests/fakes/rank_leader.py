"""Leads two ranks until it is killed: `python -m tests.fakes.rank_leader MODEL`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from shared.engine.rank_settings import RankSettings
from shared.engine.ranks.leader import RankLeader

if __name__ == "__main__":
    leader = RankLeader(RankSettings(tensor_parallel_size=2))
    leader.load(Path(sys.argv[1]))
    os.write(1, b"rank 1 is %d\n" % leader.pids[0])
    signal.pause()
