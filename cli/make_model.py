"""`baton make-model`: a checkpoint with random weights, for tests and benchmarks."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 typer reads annotations at run time
from typing import Annotated, Any

import typer

from shared.errors import BatonError


def make_model(
    out: Annotated[Path, typer.Argument(help="Directory to write; made if it does not exist.")],
    architecture: Annotated[str, typer.Option(help="llama, mistral, qwen2 or qwen3.")] = "llama",
    layers: Annotated[int, typer.Option(min=1)] = 4,
    hidden: Annotated[int, typer.Option(min=2)] = 256,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    kv_heads: Annotated[int, typer.Option(min=1)] = 2,
    head_dim: Annotated[int, typer.Option(min=2)] = 64,
    ffn: Annotated[int, typer.Option(min=1)] = 512,
    vocab: Annotated[int, typer.Option(min=259)] = 512,
    max_len: Annotated[int, typer.Option(min=1)] = 2048,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    tie: Annotated[bool, typer.Option(help="Share the embedding with the output.")] = True,
    seed: Annotated[int, typer.Option()] = 0,
    shards: Annotated[int, typer.Option(min=1)] = 1,
    rope_type: Annotated[
        str, typer.Option(help="default, linear, dynamic, llama3 or yarn.")
    ] = "default",
    rope_factor: Annotated[
        float, typer.Option(min=1, help="Factor by which the RoPE type stretches the context.")
    ] = 4.0,
    extra: Annotated[str, typer.Option(help="JSON merged into config.json.")] = "{}",
) -> None:
    """Write a Hugging Face checkpoint with random weights, a tokenizer and a chat template."""
    # torch takes seconds to import, and only this command needs it.
    from shared.model.random_checkpoint import (
        CheckpointSpec,
        rope_settings,
        write_random_checkpoint,
    )

    spec = CheckpointSpec(
        architecture=architecture,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=max_len,
        dtype=dtype,
        tie_word_embeddings=tie,
        seed=seed,
        num_shards=shards,
        extra=rope_settings(rope_type, rope_factor, max_len) | _parse_extra(extra),
    )
    try:
        write_random_checkpoint(out, spec)
    except BatonError as error:
        typer.echo(f"cannot make the model: {error}", err=True)
        raise typer.Exit(2) from error
    _report(out)


def _parse_extra(text: str) -> dict[str, Any]:
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--extra is not valid JSON: {error}") from error
    if not isinstance(extra, dict):
        raise typer.BadParameter("--extra is not a JSON object")
    return extra


def _report(out: Path) -> None:
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")
