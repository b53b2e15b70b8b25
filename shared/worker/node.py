"""A host that has ranks of a worker, and is not the worker itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server

from shared.address import bare_host, is_every_host, join_address
from shared.engine.ranks.handshake import OwnNode
from shared.engine.ranks.node import Node
from shared.engine.ranks.processes import LogSettings
from shared.errors import ConfigError
from shared.rpc.exposure import is_loopback
from shared.worker.health.rank_metrics import RankCollector

if TYPE_CHECKING:
    from shared.identity import Role
    from shared.rpc.auth import ClusterToken
    from shared.worker.config import WorkerConfig

#: What is loaded depends on these; all else comes with orders of rank 0.
_ALIKE = (
    "dtype",
    "load_format",
    "attention_backend",
    "model_impl",
    "model_class",
    "quantization",
    "cpu_int4_compute",
    "model_seed",
)


def own_node(config: WorkerConfig, token: ClusterToken | None) -> OwnNode:
    """Return what a worker's host says of itself to the others.

    Its address is that at which others reach its connectors, if that is set; else that which it has
    towards node 0.

    Raises:
        ConfigError: the model is not there.
    """
    is_set = not is_every_host(config.host) and config.host != "127.0.0.1"
    if is_loopback(config.host) and not is_loopback(config.ranks.master_addr):
        is_set = False
    return OwnNode(
        token=token,
        settings={name: str(getattr(config.model, name)) for name in _ALIKE},
        folder=str(config.model.folder),
        host=config.host if is_set else None,
        advertise_host=config.advertise_host,
    )


def follow_node_0(config: WorkerConfig, role: Role, token: ClusterToken | None) -> int:
    """Have the ranks of this host until the group ends; return the exit code.

    --metrics-port answers as long as the program lives.

    Raises:
        ConfigError: this host does not belong to the group.
    """
    node = Node(
        config.ranks,
        own_node(config, token),
        logs=log_settings(config, role),
        options={"num_threads": config.num_threads, "bind": config.cpu_threads_bind},
    )
    if config.metrics_port:
        # Any path: an orchestrator asks for /health.
        registry = CollectorRegistry()
        registry.register(RankCollector(node.pids, model=config.model.name))
        try:
            start_http_server(config.metrics_port, bare_host(config.host), registry)
        except OSError as error:
            message = f"cannot listen at {join_address(config.host, config.metrics_port)}: {error}"
            raise ConfigError(message) from error
    return node.follow()


def log_settings(config: WorkerConfig, role: Role) -> LogSettings:
    """Return what the lines of a worker's ranks look like."""
    as_json = config.log_format == "json"
    return LogSettings(service=role.value, level=config.log_level, as_json=as_json)
