"""The command line of `baton up`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated, Any

import typer

from cli.options import (  # noqa: TC001 read at run time by typer
    ClusterToken,
    GrpcPort,
    Model,
    Port,
    ServedModelName,
    StartTimeout,
)


def up(
    context: typer.Context,
    model: Model = None,
    served_model_name: ServedModelName = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = 50051,
    routers: Annotated[int, typer.Option(min=1, help="Routers, on the same ports.")] = 1,
    prefill: Annotated[int, typer.Option(min=0, help="Number of prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Number of decode workers.")] = 1,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(help="How the model writes tool calls, e.g. hermes. Default: as it shows."),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(help="How it marks its reasoning, e.g. think. Default: as it shows."),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(help='Guess tokens, e.g. {"method": "ngram", "num_speculative_tokens": 5}.'),
    ] = None,
    structured_outputs_backend: Annotated[
        str | None, typer.Option(help="Library for grammars: auto, xgrammar or guidance.")
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(help="Redis as the directory.", envvar="BATON_REDIS_URL", show_envvar=False),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="File made by `baton keys`.", envvar="BATON_API_KEYS", show_envvar=False),
    ] = None,
    cluster_token: ClusterToken = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt everything, with certificates made for it.")
    ] = False,
    certs: Annotated[
        Path | None, typer.Option(help="Folder that `baton certs` has made; implies --tls.")
    ] = None,
    start_timeout_s: StartTimeout = 180.0,
) -> None:
    """Start a cluster on this machine and keep it running."""
    from cli.certs import local_certificates
    from cli.up import run_up

    spec = cluster_spec(
        model,
        served_model_name,
        host=host,
        port=port,
        grpc_port=grpc_port,
        num_routers=routers,
        num_prefill=prefill,
        num_decode=decode,
        router_flags=_flags(
            ("--tool-call-parser", tool_call_parser), ("--reasoning-parser", reasoning_parser)
        ),
        worker_flags=_flags(
            ("--speculative-config", speculative_config),
            ("--structured-outputs-backend", structured_outputs_backend),
        )
        + tuple(context.args),
        redis_url=redis_url,
        api_keys=api_keys,
        cluster_token=cluster_token,
        certificates=local_certificates(certs, host) if tls or certs else None,
        start_timeout_s=start_timeout_s,
    )
    raise typer.Exit(run_up(spec))


def cluster_spec(model: Path | None, served_model_name: str | None, **settings: Any) -> Any:
    """What to start, with the shipped model unless another one is named."""
    from cli.cluster import ClusterSpec
    from cli.model_folder import resolve_model
    from cli.places import log_folder

    folder, name = resolve_model(model, served_model_name)
    return ClusterSpec(model=folder, served_model_name=name, log_folder=log_folder(), **settings)


def _flags(*given: tuple[str, str | None]) -> tuple[str, ...]:
    """Those that have a value; services read all others from the environment."""
    return tuple(part for name, value in given if value is not None for part in (name, value))
