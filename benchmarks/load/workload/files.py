"""Samples out of files of prompts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.load.workload.sample import Sample
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from benchmarks.load.settings import DataSettings
    from benchmarks.load.workload.vocabulary import Vocabulary


def custom_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary | None, rng: np.random.Generator
) -> list[Sample]:
    """Lines of a file, from the top again if they are too few."""
    if data.dataset_path is None:
        raise ConfigError("custom needs --dataset-path")
    rows = _read_rows(data.dataset_path)
    if not data.disable_shuffle:
        rng.shuffle(rows)
    samples = []
    for i in range(num_prompts):
        row = rows[i % len(rows)]
        prompt = row["prompt"]
        if isinstance(prompt, str):
            prompt_len = (vocabulary.count(prompt) if vocabulary else None) or 0
        else:
            prompt_len = len(prompt)
        output_len = data.output_len or row.get("output_tokens") or data.custom_output_len
        samples.append(Sample(prompt, prompt_len, int(output_len)))
    return samples


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--dataset-path: cannot read {path}: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(_read_row(line, f"{path}:{number}"))
    if not rows:
        raise ConfigError(f"--dataset-path: {path} is empty")
    return rows


def _read_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    prompt = row.get("prompt") if isinstance(row, dict) else None
    is_tokens = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    if not prompt or not (isinstance(prompt, str) or is_tokens):
        raise ConfigError(f'{where}: needs "prompt", a text or a list of token ids')
    return dict(row)
