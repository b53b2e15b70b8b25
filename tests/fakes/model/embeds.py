"""Embeddings of a checkpoint's own tokens: prompts of them are answered as the tokens are."""

from __future__ import annotations

import base64
import functools
import io
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from baton.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@functools.cache
def table_of(checkpoint: Path) -> torch.Tensor:
    """The rows of all tokens, float32."""
    return load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"].float()


def as_message(rows: torch.Tensor) -> common_pb2.EmbeddingRows:
    """Rows in float32 for gRPC."""
    data = rows.contiguous().numpy().tobytes()
    return common_pb2.EmbeddingRows(dtype="float32", width=rows.shape[1], rows=data)


def as_field(rows: torch.Tensor) -> str:
    """Rows for the HTTP API."""
    file = io.BytesIO()
    torch.save(rows.clone(), file)
    return base64.b64encode(file.getvalue()).decode()


def rows_of(checkpoint: Path, prompt: Sequence[int]) -> torch.Tensor:
    """The rows of a prompt's tokens."""
    return table_of(checkpoint)[list(prompt)]
