"""Datasets: lengths, sharing, and the same prompts for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from benchmarks.load.settings import DatasetName, DataSettings
from benchmarks.load.workload.datasets import load_samples
from benchmarks.load.workload.sample import Sample
from benchmarks.load.workload.vocabulary import Vocabulary, load_vocabulary
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NUM_WORDS = 50


def load(
    num: int,
    *,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    as_text: bool = False,
    **data: Any,
) -> list[Sample]:
    return load_samples(
        DataSettings(**data),
        num,
        vocabulary=vocabulary or Vocabulary(np.arange(1000)),
        as_text=as_text,
        rng=np.random.default_rng(seed),
    )


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words w0 to w49, then an end of text."""
    words = {f"w{i}": i for i in range(NUM_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_random_defaults_are_those_of_vllm() -> None:
    (sample,) = load(1)
    assert (len(sample.prompt), sample.prompt_len, sample.output_len) == (1024, 1024, 128)


@given(
    input_len=st.integers(1, 60),
    output_len=st.integers(1, 60),
    ratio=st.floats(0, 0.99),
    prefix_len=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_random_lengths_stay_in_their_range(
    input_len: int, output_len: int, ratio: float, prefix_len: int, seed: int
) -> None:
    samples = load(
        8,
        seed=seed,
        random_input_len=input_len,
        random_output_len=output_len,
        random_range_ratio=ratio,
        random_prefix_len=prefix_len,
    )
    for sample in samples:
        assert len(sample.prompt) == sample.prompt_len
        num_own = sample.prompt_len - prefix_len
        assert max(1, int(input_len * (1 - ratio))) <= num_own <= -(-input_len * (1 + ratio) // 1)
        assert 1 <= sample.output_len <= -(-output_len * (1 + ratio) // 1)
        assert sample.prompt[:prefix_len] == samples[0].prompt[:prefix_len]
        assert set(sample.prompt) <= set(range(1000))


def test_random_lengths_use_the_whole_range() -> None:
    samples = load(500, random_input_len=10, random_output_len=4, random_range_ratio=0.5)
    assert {sample.prompt_len for sample in samples} == set(range(5, 16))
    assert {sample.output_len for sample in samples} == set(range(2, 7))


@pytest.mark.parametrize("name", [DatasetName.RANDOM, DatasetName.PREFIX_REPETITION])
def test_the_seed_decides(name: DatasetName) -> None:
    assert load(20, seed=7, dataset_name=name) == load(20, seed=7, dataset_name=name)
    assert load(20, seed=7, dataset_name=name) != load(20, seed=8, dataset_name=name)


def test_prefixes_repeat_evenly_and_suffixes_do_not() -> None:
    samples = load(50, dataset_name=DatasetName.PREFIX_REPETITION)
    prefixes = Counter(tuple(sample.prompt[:256]) for sample in samples)
    assert len(prefixes) == 10
    assert set(prefixes.values()) == {5}
    assert len({tuple(sample.prompt[256:]) for sample in samples}) == 50
    assert {(len(sample.prompt), sample.output_len) for sample in samples} == {(512, 128)}


@pytest.mark.parametrize("num", [1, 7, 23])
def test_prefix_repetition_makes_as_many_as_asked(num: int) -> None:
    samples = load(num, dataset_name=DatasetName.PREFIX_REPETITION)
    assert len(samples) == num
    assert len({tuple(sample.prompt[:256]) for sample in samples}) == min(num, 10)


def test_without_shuffle_prefixes_come_one_after_the_other() -> None:
    samples = load(20, dataset_name=DatasetName.PREFIX_REPETITION, disable_shuffle=True)
    order = [tuple(sample.prompt[:256]) for sample in samples]
    assert order == [prefix for prefix in dict.fromkeys(order) for _ in range(2)]


def test_general_lengths_override_those_of_the_dataset() -> None:
    (sample,) = load(1, input_len=5, output_len=6)
    assert (sample.prompt_len, sample.output_len) == (5, 6)
    (sample,) = load(1, dataset_name=DatasetName.PREFIX_REPETITION, output_len=6)
    assert sample.output_len == 6


def test_custom_lines_are_read_in_order_and_again(tmp_path: Path, tokenizer_file: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "w1 w2\u2028w3", "output_tokens": 9}, {"prompt": [4, 5]}]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    samples = load(
        3,
        vocabulary=load_vocabulary(tokenizer_file, vocab_size=None, model_root=None),
        dataset_name=DatasetName.CUSTOM,
        dataset_path=file,
        disable_shuffle=True,
    )
    assert samples == [
        Sample("w1 w2\u2028w3", 3, 9),
        Sample([4, 5], 2, 256),
        Sample("w1 w2\u2028w3", 3, 9),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "a"}\n{"prompt"', r":2: not JSON"),
        ('{"text": "a"}', r':1: needs "prompt"'),
        ('{"prompt": [1, "b"]}', r':1: needs "prompt"'),
        ("[1]", r':1: needs "prompt"'),
    ],
)
def test_a_bad_custom_file_is_named_with_its_line(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(1, dataset_name=DatasetName.CUSTOM, dataset_path=file)


def test_a_missing_custom_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dataset-path: cannot read"):
        load(1, dataset_name=DatasetName.CUSTOM, dataset_path=tmp_path / "none.jsonl")


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dataset-path is for custom"):
        load(1, dataset_path=tmp_path)
    with pytest.raises(ConfigError, match="custom needs --dataset-path"):
        load(1, dataset_name=DatasetName.CUSTOM)
    with pytest.raises(ConfigError, match="--random-range-ratio"):
        load(1, random_range_ratio=1.0)


def test_without_a_vocabulary_the_flags_are_named() -> None:
    with pytest.raises(ConfigError, match="--tokenizer PATH or --vocab-size N"):
        load_samples(
            DataSettings(), 1, vocabulary=None, as_text=False, rng=np.random.default_rng(0)
        )


def test_a_vocabulary_leaves_special_tokens_out(tokenizer_file: Path) -> None:
    vocabulary = load_vocabulary(tokenizer_file, vocab_size=None, model_root=None)
    assert vocabulary is not None
    assert vocabulary.ids.tolist() == list(range(NUM_WORDS))
    (sample,) = load(1, vocabulary=vocabulary, random_input_len=1000)
    assert set(sample.prompt) == set(range(NUM_WORDS))


def test_the_models_folder_is_the_default_tokenizer(tokenizer_file: Path, tmp_path: Path) -> None:
    found = load_vocabulary(None, vocab_size=None, model_root=tokenizer_file.parent)
    assert found is not None
    assert found.count("w1 w2") == 2
    assert load_vocabulary(None, vocab_size=None, model_root=tmp_path) is None
    plain = load_vocabulary(None, vocab_size=5, model_root=tmp_path)
    assert plain is not None
    assert plain.ids.tolist() == [0, 1, 2, 3, 4]


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tokenizer: cannot read .*tokenizer\.json"):
        load_vocabulary(tmp_path, vocab_size=None, model_root=None)


def test_text_is_counted_as_it_will_be_read(tokenizer_file: Path) -> None:
    vocabulary = load_vocabulary(tokenizer_file, vocab_size=None, model_root=None)
    (sample,) = load(1, vocabulary=vocabulary, as_text=True, random_input_len=6)
    assert isinstance(sample.prompt, str)
    assert len(sample.prompt.split()) == sample.prompt_len == 6


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="pass --tokenizer"):
        load(1, as_text=True)


def test_sharegpt_asks_first_questions_and_leaves_unusual_ones_out(
    tokenizer_file: Path, tmp_path: Path
) -> None:
    def talk(num_question: int, num_answer: int) -> dict[str, Any]:
        turns = [" ".join(["w1"] * num_question), " ".join(["w2"] * num_answer), "w3"]
        return {"conversations": [{"from": "x", "value": turn} for turn in turns]}

    talks = [talk(3, 9), talk(9, 3), talk(1025, 9), talk(1000, 1049), talk(5, 7), talk(6, 4)]
    file = tmp_path / "talks.json"
    file.write_text(json.dumps([*talks, {"conversations": []}, {"id": 1}]), encoding="utf-8")
    vocabulary = load_vocabulary(tokenizer_file, vocab_size=None, model_root=None)
    known = {"dataset_name": DatasetName.SHAREGPT, "dataset_path": file, "vocabulary": vocabulary}
    samples = load(4, disable_shuffle=True, **known)
    assert [(s.prompt_len, s.output_len) for s in samples] == [(5, 7), (6, 4), (5, 7), (6, 4)]
    short = load(3, disable_shuffle=True, sharegpt_output_len=2, **known)
    assert [(s.prompt_len, s.output_len) for s in short] == [(9, 2), (1000, 2), (5, 2)]
    with pytest.raises(ConfigError, match="pass --tokenizer"):
        load(1, dataset_name=DatasetName.SHAREGPT, dataset_path=file)


def test_sonnet_shares_its_first_lines_and_has_about_the_length(
    tokenizer_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "sonnet.txt"
    file.write_text("\n".join(f"w{i} " * 8 for i in range(NUM_WORDS)), encoding="utf-8")
    vocabulary = load_vocabulary(tokenizer_file, vocab_size=None, model_root=None)
    samples = load(
        6,
        dataset_name=DatasetName.SONNET,
        dataset_path=file,
        vocabulary=vocabulary,
        sonnet_input_len=200,
        sonnet_prefix_len=80,
    )
    texts = [str(sample.prompt).splitlines() for sample in samples]
    assert len({tuple(lines[: 1 + 10]) for lines in texts}) == 1
    assert len({tuple(lines[1 + 10 :]) for lines in texts}) == 6
    assert {sample.prompt_len for sample in samples} <= set(range(190, 211))
    assert {sample.output_len for sample in samples} == {150}
