"""The options of `baton plan`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated

import typer

from cli.flags.options import TlsCa, TlsCert, TlsKey  # noqa: TC001 read at run time by typer


def plan(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="Trace of requests: JSON Lines as Mooncake's (also with xz), or CSV with a "
            "heading; columns timestamp [ms], input_length, output_length, and hash_ids."
        ),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            help="URL of a router with --planner advise or act: its load, its workers and their "
            "measured speed. Beside a trace, only workers and speed."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers to divide; default: the router's.")
    ] = None,
    ttft_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Milliseconds to the first token.")
    ] = None,
    itl_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Mean milliseconds between an answer's tokens.")
    ] = None,
    faster: Annotated[
        float, typer.Option(min=0.01, help="Let the requests come so many times as fast.")
    ] = 1.0,
    cache_blocks: Annotated[
        int, typer.Option(min=0, help="Blocks of 512 tokens that caches hold, for hash_ids.")
    ] = 20_000,
    prompt_tokens_per_s: Annotated[
        float | None, typer.Option(min=1, help="Speed of a worker; default: the router's.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=0, help="A decode step without sequences.")
    ] = None,
    sequence_ms: Annotated[
        float | None, typer.Option(min=0, help="What each sequence adds to a step.")
    ] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens in a worker's pool.")] = None,
    model: Annotated[str, typer.Option(help="Model, if the router serves several.")] = "",
    key: Annotated[
        str, typer.Option(help="An operator's key.", envvar="BATON_API_KEY", show_envvar=False)
    ] = "",
    json: Annotated[bool, typer.Option(help="Print all numbers as JSON.")] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Say how to divide workers between prefill and decode, and what one more would bring."""
    from cli.plan.command import Options, run_plan
    from cli.security.access import from_flags

    options = Options(
        trace=trace,
        router=router,
        model=model,
        key=key,
        num_workers=workers,
        max_ttft_ms=ttft_ms,
        max_itl_ms=itl_ms,
        faster=faster,
        num_blocks=cache_blocks,
        prompt_tokens_per_s=prompt_tokens_per_s,
        step_ms=step_ms,
        sequence_ms=sequence_ms,
        kv_tokens=kv_tokens,
        json=json,
    )
    run_plan(options, from_flags(tls_cert, tls_key, tls_ca))
