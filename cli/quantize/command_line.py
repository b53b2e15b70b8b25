"""The options of `baton quantize`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated

import typer

from shared.model.quantize.output import KvCache  # noqa: TC001 read at run time by typer


class Format(StrEnum):
    """The layout of the checkpoint."""

    COMPRESSED_TENSORS = "compressed-tensors"
    QUARK = "quark"


def quantize(
    model: Annotated[Path, typer.Argument(help="Folder of a checkpoint in 16 or 32 bits.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    scheme: Annotated[
        str,
        typer.Option(
            help="w4a16, w8a8, fp8, fp8-block, mxfp4, mxfp6 or mxfp8; mxfp4a16, mxfp6a16 and "
            "mxfp8a16 round no inputs."
        ),
    ],
    group_size: Annotated[
        int | None, typer.Option(help="Columns that share a scale; only of w4a16, usually 128.")
    ] = None,
    kv_cache: Annotated[
        KvCache | None,
        typer.Option(help="Store scales of keys and values in 8 bits; needs --calibrate."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Linears that stay as they are: a name, one with *, or re:. Repeatable."),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=SCHEME: linears with another scheme. Repeatable."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Text, or JSON Lines, for GPTQ; without it numbers are rounded."),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(
            help="Text, or JSON Lines, for the perplexity of both models. If it is that of "
            "--calibrate, its last tenth is kept out of the calibration."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Most texts that are read of a file.")] = 128,
    sample_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of a text.")] = 512,
    format: Annotated[Format, typer.Option(help="Layout of the files.")] = (
        Format.COMPRESSED_TENSORS
    ),
) -> None:
    """Write a checkpoint whose linears are stored in few bits; the same command goes on after an
    interruption.
    """
    # torch takes seconds to import, and only this command needs it.
    from cli.quantize.command import Options, run_quantize
    from shared.telemetry.logs import configure_logs

    configure_logs(service="quantize", level="warning", as_json=False)
    options = Options(
        model=model,
        out=out,
        scheme=scheme,
        group_size=group_size,
        kv_cache=kv_cache,
        excluded=tuple(exclude or ()),
        layers=tuple(layer or ()),
        calibrate=calibrate,
        evaluate=evaluate,
        num_samples=samples,
        sample_tokens=sample_tokens,
        format=format.value,
    )
    raise typer.Exit(run_quantize(options))
