"""Samples out of files of prompts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.load.settings import DatasetName
from benchmarks.load.workload.sample import Sample
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from benchmarks.load.settings import DataSettings
    from benchmarks.load.workload.vocabulary import Vocabulary

#: Of a conversation that is taken: tokens of question and answer, of the question, of both.
_MIN_LEN, _MAX_PROMPT_LEN, _MAX_TOTAL_LEN = 4, 1024, 2048


def custom_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary | None, rng: np.random.Generator
) -> list[Sample]:
    """Lines of a file, from the top again if they are too few."""
    path = _path(data)
    rows = _read_rows(path, _read(path))
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


def sharegpt_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary | None, rng: np.random.Generator
) -> list[Sample]:
    """First questions of conversations and the lengths of their answers, as ShareGPT's files have
    them. Very short and very long ones are left out, as vLLM does.
    """
    path, counting = _path(data), _counting(data, vocabulary)
    turns = list(_first_turns(_read(path), path))
    if not data.disable_shuffle:
        rng.shuffle(turns)
    fixed = data.output_len or data.sharegpt_output_len
    samples: list[Sample] = []
    for question, answer in turns:
        if len(samples) == num_prompts:
            break
        prompt_len = counting(question)
        output_len = fixed or counting(answer)
        if _is_usual(prompt_len, output_len, output_is_given=fixed is not None):
            samples.append(Sample(question, prompt_len, output_len))
    if not samples:
        raise ConfigError(f"--dataset-path: {path} has no conversation of a usual length")
    return [samples[i % len(samples)] for i in range(num_prompts)]


def sonnet_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary | None, rng: np.random.Generator
) -> list[Sample]:
    """Lines of a text: the first ones in every prompt, then others drawn for each."""
    path, counting = _path(data), _counting(data, vocabulary)
    lines = [line for line in _read(path).splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"--dataset-path: {path} is empty")
    input_len = data.input_len or data.sonnet_input_len
    if data.sonnet_prefix_len > input_len:
        raise ConfigError(f"--sonnet-prefix-len: {data.sonnet_prefix_len} is over {input_len}")
    mean_len = sum(map(counting, lines)) / len(lines)
    intro = "Pick as many lines as you can from these poem lines:\n"
    num_lines = max(1, round((input_len - counting(intro)) / mean_len))
    num_shared = min(num_lines, round(data.sonnet_prefix_len / mean_len), len(lines))
    samples = []
    for _ in range(num_prompts):
        drawn = rng.integers(len(lines), size=num_lines - num_shared)
        text = intro + "\n".join([*lines[:num_shared], *(lines[i] for i in drawn)])
        samples.append(Sample(text, counting(text), data.output_len or data.sonnet_output_len))
    return samples


#: What reads each kind of file.
FILES: Mapping[str, Callable[..., list[Sample]]] = {
    DatasetName.CUSTOM: custom_samples,
    DatasetName.SHAREGPT: sharegpt_samples,
    DatasetName.SONNET: sonnet_samples,
}


def _is_usual(prompt_len: int, output_len: int, *, output_is_given: bool) -> bool:
    if prompt_len < _MIN_LEN or (output_len < _MIN_LEN and not output_is_given):
        return False
    return prompt_len <= _MAX_PROMPT_LEN and prompt_len + output_len <= _MAX_TOTAL_LEN


def _first_turns(text: str, path: Path) -> Iterator[tuple[str, str]]:
    try:
        conversations = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--dataset-path: {path} is not JSON: {error}") from error
    if not isinstance(conversations, list):
        raise ConfigError(f"--dataset-path: {path} is not a list of conversations")
    for conversation in conversations:
        turns = conversation.get("conversations") if isinstance(conversation, dict) else None
        values = [turn.get("value") for turn in turns or () if isinstance(turn, dict)][:2]
        match values:
            case [str(question), str(answer)]:
                yield question, answer


def _path(data: DataSettings) -> Path:
    if data.dataset_path is None:
        raise ConfigError(f"{data.dataset_name} needs --dataset-path")
    return data.dataset_path


def _counting(data: DataSettings, vocabulary: Vocabulary | None) -> Callable[[str], int]:
    if vocabulary is None or vocabulary.tokenizer is None:
        raise ConfigError(f"{data.dataset_name} counts tokens: pass --tokenizer")
    return lambda text: vocabulary.count(text) or 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--dataset-path: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--dataset-path: {path} is no text in UTF-8") from error


def _read_rows(path: Path, text: str) -> list[dict[str, Any]]:
    rows = [
        _read_row(line, f"{path}:{number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
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
