"""Leads ranks until it is killed: `python -m tests.fakes.ranks.leader MODEL [SETTINGS]`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from shared.engine.ranks.leader import RankLeader
from shared.engine.settings.ranks import RankSettings

if __name__ == "__main__":
    given = json.loads(sys.argv[2]) if sys.argv[2:] else {"tensor_parallel_size": 2}
    leader = RankLeader(RankSettings(**given))
    leader.load(Path(sys.argv[1]))
    for pid in leader.pids:
        os.write(1, b"rank 1 is %d\n" % pid)
    os.write(1, b"loaded\n")
    signal.pause()
