"""The options of `baton run-batch`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated, Any

import typer

from cli.options import (  # noqa: TC001 read at run time by typer
    Model,
    ServedModelName,
    StartTimeout,
    TlsCa,
    TlsCert,
    TlsKey,
)


def run_batch(
    context: typer.Context,
    input_file: Annotated[
        Path, typer.Option("-i", "--input-file", help="Requests in OpenAI's batch format.")
    ],
    output_file: Annotated[
        Path, typer.Option("-o", "--output-file", help="Answers; what is in it already is kept.")
    ],
    url: Annotated[
        str | None, typer.Option(help="A running server. Default: a cluster is started.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key to send. Default: BATON_API_KEY.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 32,
    patience_s: Annotated[
        float, typer.Option(min=0, help="Longest time without any answer, in seconds.")
    ] = 300.0,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Longest time for one answer, in seconds.")
    ] = 3600.0,
    model: Model = None,
    served_model_name: ServedModelName = None,
    prefill: Annotated[int, typer.Option(min=0, help="Number of prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Number of decode workers.")] = 1,
    start_timeout_s: StartTimeout = 180.0,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Answer a file of requests; run it again to go on after an interruption."""
    from cli.batch.command import BatchOptions, read_api_key
    from cli.batch.command import run_batch as run
    from cli.secure import Secure

    options = BatchOptions(
        input=input_file,
        output=output_file,
        url=url,
        api_key=read_api_key(api_key_file),
        verify=True if tls_ca is None else Secure(tls_ca, tls_cert, tls_key).context(),
        concurrency=concurrency,
        patience_s=patience_s,
        timeout_s=timeout_s,
    )
    counts = {"num_prefill": prefill, "num_decode": decode, "start_timeout_s": start_timeout_s}
    raise typer.Exit(run(options, _cluster(context, url, model, served_model_name, **counts)))


def _cluster(
    context: typer.Context, url: str | None, model: Path | None, name: str | None, **counts: Any
) -> Any:
    """What to start; nothing where a server is given."""
    from cli.cluster import ClusterSpec
    from cli.errors import EXIT_USAGE, CommandError
    from cli.model_folder import resolve_model
    from cli.places import log_folder
    from cli.ports import free_port

    if url is None:
        folder, served = resolve_model(model, name)
        return ClusterSpec(
            model=folder,
            served_model_name=served,
            log_folder=log_folder(),
            port=free_port(),
            grpc_port=free_port(),
            worker_flags=tuple(context.args),
            **counts,
        )
    if context.args:
        message = f"{context.args[0]}: workers are not started where --url is given"
        raise CommandError(message, exit_code=EXIT_USAGE)
    return None
