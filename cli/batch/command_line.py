"""The options of `baton run-batch`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import TYPE_CHECKING, Annotated

import typer

from cli.extras import Extra, require
from cli.flags.options import (  # noqa: TC001 read at run time by typer
    Model,
    ServedModelName,
    StartTimeout,
    TlsCa,
    TlsCert,
    TlsKey,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_batch(
    context: typer.Context,
    input_file: Annotated[
        Path, typer.Option("-i", "--input-file", help="Requests in OpenAI's batch format.")
    ],
    output_file: Annotated[
        Path, typer.Option("-o", "--output-file", help="Answers; what is in it already is kept.")
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "--address",
            help="A running server, as a URL or host:port of its HTTP API. "
            "Default: a cluster is started.",
        ),
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
    """Answer a file of requests; run it again to continue after an interruption."""
    require(*([Extra.ROUTER] if url else Extra))
    from cli.batch.command import BatchOptions, read_api_key
    from cli.batch.command import run_batch as run
    from cli.security.access import from_flags
    from cli.start.ports import free_port
    from cli.start.run_folder import run_folder
    from cli.up_command import cluster_spec

    secure = from_flags(tls_cert, tls_key, tls_ca)
    options = BatchOptions(
        input=input_file,
        output=output_file,
        url=None if url is None else _with_scheme(url, "http" if secure is None else "https"),
        api_key=read_api_key(api_key_file),
        verify=True if secure is None else secure.context(),
        concurrency=concurrency,
        patience_s=patience_s,
        timeout_s=timeout_s,
    )
    if url is not None:
        _require_no_flags(context.args)
        raise typer.Exit(run(options))
    with run_folder() as folder:
        spec = cluster_spec(
            model,
            served_model_name,
            context.args,
            log_folder=folder,
            port=free_port(),
            grpc_port=free_port(),
            num_prefill=prefill,
            num_decode=decode,
            start_timeout_s=start_timeout_s,
        )
        raise typer.Exit(run(options, spec))


def _with_scheme(url: str, scheme: str) -> str:
    return url if "://" in url else f"{scheme}://{url}"


def _require_no_flags(flags: Sequence[str]) -> None:
    from cli.errors import EXIT_USAGE, CommandError

    if flags:
        message = f"{flags[0]}: no services are started where --url is given"
        raise CommandError(message, exit_code=EXIT_USAGE)
