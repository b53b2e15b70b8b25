"""`baton up`: start a local cluster and keep it running."""

from __future__ import annotations

import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from cli.cluster import Cluster
from cli.interrupts import Terminated, interrupts
from cli.readiness import ReadinessProbe
from cli.status_view import StatusView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.cluster import ClusterSpec

WATCH_S = 0.5


@contextmanager
def running_cluster(spec: ClusterSpec, console: Console) -> Iterator[Cluster]:
    """A cluster that serves, for as long as the block runs; stopped however the block ends."""
    started_s = time.monotonic()
    with Cluster(spec) as cluster, interrupts():
        cluster.start()
        probe = ReadinessProbe(url=spec.url, directory=spec.directory)
        with closing(probe), StatusView(console) as view:
            cluster.wait_ready(probe, view.show)
        names = ", ".join(process.name for process in cluster.processes)
        took_s = time.monotonic() - started_s
        console.print(f"[green]●[/] {names}: ready after {took_s:.1f} s", highlight=False)
        yield cluster


def run_up(spec: ClusterSpec) -> int:
    """Keep a cluster running until Ctrl-C or SIGTERM; returns the exit code.

    Raises:
        CommandError: it could not start, or one of its processes ended.
    """
    console = Console(stderr=True)
    try:
        with running_cluster(spec, console) as cluster:
            _show_doors(spec, console)
            while True:
                cluster.require_running()
                time.sleep(WATCH_S)
    except (KeyboardInterrupt, Terminated):
        console.print("stopped", style="dim")
        return 0


def _show_doors(spec: ClusterSpec, console: Console) -> None:
    url, directory = spec.url, spec.directory
    for line in (
        f"  OpenAI API   {url}/v1   (model: {spec.served_model_name})",
        f"  gRPC         {directory}",
        f"  logs         {spec.log_folder}",
        "",
        f"  ask          ./baton chat --address {directory}",
        f"  check        ./baton doctor --port {spec.port} --grpc-port {spec.grpc_port}",
        "  stop         Ctrl-C",
    ):
        console.print(line, highlight=False, markup=False)
    sys.stderr.flush()
