"""`python -m tests.fakes.processes.cluster_command up|demo PORT GRPC_PORT FOLDER
[--routers N] [worker flags]`.

The real commands over a cluster of fake services.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cli.cluster import ClusterSpec
from cli.demo import run_demo
from cli.errors import CommandError, complain
from cli.up import run_up


def main(command: str, port: str, grpc_port: str, folder: str, *worker_flags: str) -> int:
    """The exit code."""
    num_routers = 1
    if worker_flags[:1] == ("--routers",):
        num_routers, worker_flags = int(worker_flags[1]), worker_flags[2:]
    spec = ClusterSpec(
        model=Path(folder),
        served_model_name="fake",
        log_folder=Path(folder),
        port=int(port),
        grpc_port=int(grpc_port),
        num_routers=num_routers,
        worker_flags=worker_flags,
        start_timeout_s=10.0 if "decode-0=never" not in worker_flags else 4.0,
        grace_s=1.0 if "decode-0=stubborn" in worker_flags else 10.0,
        services="tests.fakes.services",
    )
    try:
        if command == "demo":
            return run_demo(spec, "What?", max_tokens=8)
        return run_up(spec)
    except CommandError as error:
        complain(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
