"""`baton up`: start a local cluster and keep it running."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from cli.cluster import Cluster
from cli.errors import CommandError
from cli.places import COMMAND
from cli.start.interrupts import Terminated, interrupts
from cli.start.status_view import StatusView
from shared.address import join_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.cluster import ClusterSpec

WATCH_S = 0.5


@contextmanager
def running(cluster: Cluster, console: Console) -> Iterator[None]:
    """Run the cluster during the block, and stop it at any end of the block."""
    started_s = time.monotonic()
    with cluster, interrupts():
        cluster.start()
        with StatusView(console) as view:
            cluster.wait_ready(view.show)
        names = ", ".join(process.name for process in cluster.processes)
        took_s = time.monotonic() - started_s
        console.print(f"[green]●[/] {names}: ready after {took_s:.1f} s", highlight=False)
        yield


def require_clean_stop(cluster: Cluster) -> None:
    """Raise an error unless every process of a stopped cluster ended without being killed.

    Raises:
        CommandError: some had to be killed.
    """
    if cluster.killed:
        names = ", ".join(cluster.killed)
        raise CommandError(
            f"had to kill {names}: no end within {cluster.spec.grace_s:g} s of the stop request",
            advice=f"the logs in {cluster.spec.log_folder} say what they were doing",
        )


def run_up(spec: ClusterSpec) -> int:
    """Keep a cluster running until Ctrl-C or SIGTERM; return the exit code.

    Raises:
        CommandError: it could not start, one of its processes ended, or did not stop.
    """
    console = Console(stderr=True)
    cluster = Cluster(spec)
    try:
        with running(cluster, console):
            _show_doors(cluster, console)
            while True:
                cluster.keep_running(lambda line: console.print(line, style="yellow", markup=False))
                time.sleep(WATCH_S)
    except (KeyboardInterrupt, Terminated):
        require_clean_stop(cluster)
        console.print("stopped", style="dim")
        return 0


def _show_doors(cluster: Cluster, console: Console) -> None:
    spec = cluster.spec
    url, directory = spec.url, spec.directory
    names = [name for model in spec.all_models for name in model.names]
    key = "BATON_API_KEY=… " if spec.has_keys else ""
    token = "" if spec.cluster_token is None else f" --cluster-token {spec.cluster_token}"
    for line in (
        f"  OpenAI API   {url}/v1   (model: {', '.join(names)})",
        f"  gRPC         {directory}",
        f"  live page    {url}/dashboard",
        *_metrics_doors(cluster),
        f"  logs         {spec.log_folder}",
        "",
        f"  ask          {key}{COMMAND} chat --address {directory}{_ca_flag(cluster)}",
        f"  check        {COMMAND} doctor {_doctor_flags(cluster)}{token}",
        "  stop         Ctrl-C",
    ):
        console.print(line, highlight=False, markup=False)
    sys.stderr.flush()


def _ca_flag(cluster: Cluster) -> str:
    certificates = cluster.spec.certificates
    return "" if certificates is None else f" --tls-ca {certificates.ca}"


def _doctor_flags(cluster: Cluster) -> str:
    """Return flags of `baton doctor`: with TLS only the port with certificates has the workers."""
    port, grpc_port = cluster.spec.port, cluster.spec.grpc_port
    host = cluster.spec.client_host
    where = "" if host == "127.0.0.1" else f"--host {host} "
    secure = cluster.spec.secure
    if secure is None:
        return f"{where}--port {port} --grpc-port {grpc_port}"
    files = f"--tls-cert {secure.cert} --tls-key {secure.key} --tls-ca {secure.ca}"
    return f"{where}--port {port} --grpc-port {cluster.router_ports[0][1]} {files}"


def _metrics_doors(cluster: Cluster) -> list[str]:
    """Return a line with each router's metrics URL; /metrics on the common port is any router's."""
    if len(cluster.router_ports) == 1:
        return []
    scheme, host = cluster.spec.url.partition(":")[0], cluster.spec.client_host
    urls = " ".join(
        f"{scheme}://{join_address(host, port)}/metrics" for port, _ in cluster.router_ports
    )
    return [f"  metrics      {urls}"]
