"""Options of several commands, and their values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a Hugging Face checkpoint, or GGUF file. Default: the shipped one."
    ),
]
ServedModelName = Annotated[
    str | None,
    typer.Option(help="Names that clients use, the first one in answers: a b, or a,b."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the OpenAI API over HTTP.")]
GrpcPort = Annotated[int, typer.Option(min=0, max=65535, help="Port of the gRPC services.")]
DirectoryPort = Annotated[
    int,
    typer.Option(
        help="Port of the gRPC services; with TLS, the router's --own-grpc-port.",
        envvar="BATON_OWN_GRPC_PORT",
        show_envvar=False,
    ),
]
ClusterToken = Annotated[
    Path | None,
    typer.Option(
        help="File with the secret that routers and workers share.",
        envvar="BATON_CLUSTER_TOKEN",
        show_envvar=False,
    ),
]
RouterAddress = Annotated[
    str, typer.Option(help="host:port of the router's gRPC services, not of its HTTP.")
]
AskedModel = Annotated[
    str,
    typer.Option("--model", "--model-name", help="Model to ask; needed if several are served."),
]
LongestAnswer = Annotated[int | None, typer.Option(min=1, help="Longest answer.")]
Temperature = Annotated[float | None, typer.Option(min=0, help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same answer.")]
StartTimeout = Annotated[float, typer.Option(help="Longest wait for the cluster, in seconds.")]


TlsCert = Annotated[Path | None, typer.Option(help="Certificate to show.", envvar="BATON_TLS_CERT")]
TlsKey = Annotated[Path | None, typer.Option(help="Its key.", envvar="BATON_TLS_KEY")]
TlsCa = Annotated[
    Path | None, typer.Option(help="CA of a cluster that uses TLS.", envvar="BATON_TLS_CA")
]
TlsServerName = Annotated[
    str | None,
    typer.Option(
        help="Name in the services' certificates, where those do not have their addresses.",
        envvar="BATON_TLS_SERVER_NAME",
    ),
]


class Service(StrEnum):
    """The services that `baton serve` can run."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"


class WorkerRole(StrEnum):
    """The roles for which routers prefer workers."""

    PREFILL = "prefill"
    DECODE = "decode"


class ProbeKind(StrEnum):
    """The services that `baton probe` can ask."""

    ROUTER = "router"
    WORKER = "worker"


#: Default ports of `baton probe`.
DEFAULT_PORTS = {ProbeKind.ROUTER: 8000, ProbeKind.WORKER: 50061}
