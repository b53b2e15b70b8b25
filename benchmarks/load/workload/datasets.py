"""Prompts and how many tokens to ask for. The same seed gives the same prompts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.load.settings import DatasetName
from benchmarks.load.workload.files import FILES
from benchmarks.load.workload.sample import Sample
from shared.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.load.settings import DataSettings
    from benchmarks.load.workload.vocabulary import Vocabulary


def load_samples(
    data: DataSettings,
    num_prompts: int,
    *,
    vocabulary: Vocabulary | None,
    as_text: bool,
    rng: np.random.Generator,
) -> list[Sample]:
    """Make or read `num_prompts` samples.

    Raises:
        ConfigError: the settings do not fit the dataset, or its file cannot be used.
    """
    if data.dataset_name in FILES:
        samples = FILES[data.dataset_name](data, num_prompts, vocabulary, rng)
    elif data.dataset_path is not None:
        raise ConfigError(f"--dataset-path is for {', '.join(FILES)}, not for {data.dataset_name}")
    elif vocabulary is None or not vocabulary.ids.size:
        raise ConfigError("which token ids exist? Pass --tokenizer PATH or --vocab-size N")
    elif data.dataset_name is DatasetName.RANDOM:
        samples = random_samples(data, num_prompts, vocabulary, rng)
    else:
        samples = prefix_repetition_samples(data, num_prompts, vocabulary, rng)
    return [_in_words(sample, vocabulary) for sample in samples] if as_text else samples


def random_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[Sample]:
    """One common prefix, then tokens that no two prompts share but by chance."""
    ratio = data.random_range_ratio
    if not 0 <= ratio < 1:
        raise ConfigError(f"--random-range-ratio: {ratio} is not in [0, 1)")
    prefix = vocabulary.draw(data.random_prefix_len, rng)
    num_inputs = _lengths(data.input_len or data.random_input_len, ratio, num_prompts, rng)
    num_outputs = _lengths(data.output_len or data.random_output_len, ratio, num_prompts, rng)
    return [
        Sample(prefix + vocabulary.draw(num_input, rng), len(prefix) + num_input, num_output)
        for num_input, num_output in zip(num_inputs, num_outputs, strict=True)
    ]


def prefix_repetition_samples(
    data: DataSettings, num_prompts: int, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[Sample]:
    """A few long prefixes, each followed by many different suffixes."""
    num_suffix = data.prefix_repetition_suffix_len
    output_len = data.output_len or data.prefix_repetition_output_len
    prefixes = [
        vocabulary.draw(data.prefix_repetition_prefix_len, rng)
        for _ in range(min(data.prefix_repetition_num_prefixes, num_prompts))
    ]
    prompts = [
        prefixes[i * len(prefixes) // num_prompts] + vocabulary.draw(num_suffix, rng)
        for i in range(num_prompts)
    ]
    if not data.disable_shuffle:
        rng.shuffle(prompts)
    return [Sample(prompt, len(prompt), output_len) for prompt in prompts]


def _lengths(mean: int, ratio: float, num: int, rng: np.random.Generator) -> list[int]:
    low = max(1, math.floor(mean * (1 - ratio)))
    high = max(low, math.ceil(mean * (1 + ratio)))
    drawn: list[int] = rng.integers(low, high + 1, size=num).tolist()
    return drawn


def _in_words(sample: Sample, vocabulary: Vocabulary | None) -> Sample:
    """The sample as text. Counted again, since reading text back may merge tokens."""
    if isinstance(sample.prompt, str):
        return sample
    if vocabulary is None:
        raise ConfigError("this API takes text, not token ids: pass --tokenizer")
    text = vocabulary.text(sample.prompt)
    return Sample(text, vocabulary.count(text) or 0, sample.output_len)
