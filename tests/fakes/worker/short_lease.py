"""A worker with another lease in its directory.

`python -m tests.fakes.worker.short_lease SECONDS ROLE …`: everything else is the real worker.
"""

from __future__ import annotations

import runpy
import sys

from shared.worker.join import membership

if __name__ == "__main__":
    lease_s, role = float(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    membership.HEARTBEAT_S *= lease_s / membership.LEASE_S
    membership.LEASE_S = lease_s
    runpy.run_module(f"services.{role}", run_name="__main__", alter_sys=True)
