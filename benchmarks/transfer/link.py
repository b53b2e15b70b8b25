"""A loopback device with a limited rate."""

from __future__ import annotations

import os
import sys

_MARK = "BATON_SHAPED_LINK"


def run_on_link(module: str, gbit: float) -> None:
    """Run this command again where the loopback device has this rate in Gbit/s; needs root.

    It returns where that is so already, or where the rate is 0.
    """
    if not gbit or _MARK in os.environ:
        return
    rate = f"tc qdisc add dev lo root tbf rate {gbit}gbit burst 4mb latency 50ms"
    script = f'ip link set lo up && {rate} && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-m"]
    os.environ[_MARK] = "1"
    os.execvp(command[0], [*command, module, *sys.argv[1:]])
