"""Check of a worker's ports: nothing is open to other machines by accident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.rpc.exposure import require_guard, zmq_host

if TYPE_CHECKING:
    from shared.worker.config import WorkerConfig


def require_guarded_doors(config: WorkerConfig) -> None:
    """Check every socket that the settings open.

    Connectors listen on `host` as well. Their clients must present a ticket, which peers get over
    the guarded gRPC port only; so they are as open as that port is.

    Raises:
        ConfigError: a socket would be open to more than this machine.
    """
    access = config.access
    require_guard(
        config.host,
        door="the worker's gRPC port and its connectors",
        guarded=access.cluster_token is not None or config.tls.is_on,
        flags="--cluster-token, or --tls-cert, --tls-key and --tls-ca",
        insecure=access.insecure_bind,
    )
    if config.metrics_port:
        require_guard(
            config.host,
            door="--metrics-port",
            guarded=access.open_metrics,
            flags="--open-metrics",
            insecure=access.insecure_bind,
        )
    for flag, endpoint in (
        ("--kv-events-endpoint", config.kv_events_endpoint),
        ("--kv-events-replay-endpoint", config.kv_events_replay_endpoint),
    ):
        if endpoint is not None:
            require_guard(
                zmq_host(endpoint),
                door=f"{flag} (its events hold the prompts' tokens)",
                guarded=False,
                flags="it an address of this machine",
                insecure=access.insecure_bind,
            )
