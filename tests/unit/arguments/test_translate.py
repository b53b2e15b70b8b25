"""Forms of flags and values that vLLM's parser takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.errors import CommandError
from cli.serve_command import with_model_flag
from services.worker.config import WorkerProgramConfig
from shared.arguments.translate import translate
from shared.config import load_config
from shared.engine.adapters.folders import parse_modules
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def decode(*words: str) -> WorkerProgramConfig:
    return load_config(
        WorkerProgramConfig, ["--model", "m", "--directory", "h:1", *words], prog="test", environ={}
    )


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("25.6k", 25_600),
        ("2M", 2 << 20),
        ("2m", 2_000_000),
    ],
)
def test_numbers_have_letters(word: str, number: int) -> None:
    assert decode("--max-num-batched-tokens", word).worker.engine.max_num_batched_tokens == number


@pytest.mark.parametrize("word", ["1.5K", "0.0001k", "4q", "k", "k4"])
def test_other_numbers_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=f"--max-num-batched-tokens has a bad value '{word}'"):
        decode("--max-num-batched-tokens", word)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max_num_seqs 3", "--max-num-seqs 3"),
        ("--max_num_seqs=3", "--max-num-seqs 3"),
        ("-tp 2 --max-num-seqs 3", "--tensor-parallel-size 2 --max-num-seqs 3"),
        ("-dcp=1", ""),
        ("-q int8", "--quantization int8"),
        ("--tls --max-num-seqs 3", "--tls --max-num-seqs 3"),
        ("model --dtype=half", "model --dtype float16"),
        ("--swap-space 4 model", "model"),
        ("--decode.max-num-seqs=3", "--decode.max-num-seqs 3"),
        ("--max-model-len auto", ""),
        ("--max-model-len -1", ""),
        ("--max-model-len 4k", "--max-model-len 4k"),
        ("--max-cudagraph-capture-size 40", "--cuda-graph-sizes 1,2,4,8,16,32"),
        ("-dp 3", "--decode 3"),
    ],
)
def test_names_have_forms(words: str, expected: str) -> None:
    translation = translate(words.split())
    assert translation.words == tuple(expected.split())
    assert translation.notes == ()


def test_a_level_of_optimisation_has_no_effect() -> None:
    translation = translate(["-O3"])
    assert translation.words == ()
    assert "--optimization-level has no effect" in translation.notes[0]


def test_keys_with_dots_become_one_object() -> None:
    words = [
        "--speculative-config.method",
        "ngram",
        "-sc.prompt_lookup_max",
        "4",
        "--spec-tokens=5",
    ]
    config = decode(*words).worker.engine.speculation
    assert config is not None
    assert (config.method, config.num_speculative_tokens) == ("ngram", 5)


def test_keys_join_the_whole_object() -> None:
    words = ["--speculative-config", '{"method": "ngram"}', "--spec-tokens", "5"]
    assert decode(*words).worker.engine.speculation is not None
    with pytest.raises(ConfigError, match="must be a JSON object"):
        translate(["--speculative-config", "ngram", "--spec-tokens", "5"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-ac.backend TRITON_ATTN", "--attention-backend triton"),
        ("--structured-outputs-config.backend guidance", "--structured-outputs-backend guidance"),
        (
            "--profiler-config.profiler torch --profiler-config.torch_profiler_dir=/traces",
            "--profiler-dir /traces",
        ),
        (
            "--kv-events-config.enable_kv_cache_events true --kv-events-config.topic t",
            "--kv-events-endpoint tcp://127.0.0.1:5557 --kv-events-topic t",
        ),
    ],
)
def test_keys_of_an_object_that_is_spelled_differently(words: str, expected: str) -> None:
    assert translate(words.split()).words == tuple(expected.split())


def test_none_leaves_a_setting_out() -> None:
    assert decode("--num-blocks", "None").worker.engine.num_blocks is None
    assert decode("--kv-events-config", "None").worker.kv_events_endpoint is None


@pytest.mark.parametrize(
    ("word", "value"), [("--async-scheduling", True), ("--no-async-scheduling", False)]
)
def test_a_switch_may_be_unset(word: str, value: bool) -> None:
    assert decode().worker.engine.async_scheduling is None
    assert decode(word).worker.engine.async_scheduling is value


def test_a_file_of_yaml_has_less_weight_than_words(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "max_num_seqs: 3\nblock-size: 8\nenforce-eager: true\nenable-prefix-caching: false\n"
        "cudagraph-capture-sizes: [1, 2]\nspeculative_config: {method: ngram, "
        "num_speculative_tokens: 2}\ntensor-parallel-size: 1\n"
    )
    engine = decode("--config", str(file), "--block-size", "32").worker.engine
    assert (engine.max_num_seqs, engine.block_size, engine.enforce_eager) == (3, 32, True)
    assert not engine.enable_prefix_caching
    assert engine.cuda_graph_sizes == (1, 2)
    assert engine.speculation is not None


@pytest.mark.parametrize("text", ["- a", "a: [", "1: 2"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"server\.yaml"):
        translate(["--config", str(file)])


def test_notes_name_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    decode("--swap-space", "16")
    assert "test: --swap-space has no effect here" in capsys.readouterr().err


def test_a_model_stands_alone_in_front() -> None:
    assert with_model_flag(["org/m", "--max_num_seqs", "3"]) == [
        "--model",
        "org/m",
        "--max-num-seqs",
        "3",
    ]
    assert with_model_flag(["--port", "1"]) == ["--port", "1"]
    with pytest.raises(CommandError, match="there must be one model"):
        with_model_flag(["a", "b"])


def test_adapters_are_names_with_paths_or_objects_with_spaces_and_commas() -> None:
    given = '{"name": "web", "path": "/a, b"}'
    words = translate(["--enable-lora", "--lora-modules", "sql=/a", given, "x=/b"]).words
    modules = decode(*words).worker.lora_modules
    assert parse_modules(modules) == {"sql": "/a", "web": "/a, b", "x": "/b"}
    with pytest.raises(ConfigError, match=r"--lora-modules.*not valid JSON"):
        translate(["--lora-modules", '{"name": "web"'])
