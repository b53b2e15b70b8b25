"""Settings: precedence of sources, and errors that name what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shared.config import flags_of, load_config, setting
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """A group of settings."""

    block_size: int = setting(16, help="tokens per block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a test service."""

    model: str = setting(help="model directory")
    max_num_seqs: int = setting(16, help="sequences in a batch")
    connectors: tuple[str, ...] = setting(("shm", "zmq"), help="in order of preference")
    enable_prefix_caching: bool = setting(True, help="reuse prefixes")
    num_blocks: int | None = setting(None, help="size of the pool")
    pool: PoolSettings = field(default_factory=PoolSettings)


def load(*argv: str, env: dict[str, str] | None = None) -> Settings:
    return load_config(Settings, argv, prog="test", environ=env or {})


def test_defaults_apply_where_nothing_is_said() -> None:
    assert load("--model", "m") == Settings(model="m")


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "baton.toml"
    file.write_text('model = "file"\nmax-num-seqs = 1\nnum_blocks = 5\n')
    env = {"BATON_MAX_NUM_SEQS": "2", "BATON_MODEL": "env", "BATON_CONFIG": str(file)}
    assert load("--model", "flag", env=env) == Settings(model="flag", max_num_seqs=2, num_blocks=5)


def test_lists_and_booleans_from_flags() -> None:
    settings = load("--model", "m", "--connectors", "zmq, shm", "--no-enable-prefix-caching")
    assert settings.connectors == ("zmq", "shm")
    assert not settings.enable_prefix_caching
    # As vLLM takes lists.
    assert load("--model", "m", "--connectors", '["zmq", "a,b"]').connectors == ("zmq", "a,b")
    assert load("--model", "m", "--connectors", "[]").connectors == ()


@pytest.mark.parametrize(
    "words", [["zmq", "shm"], ["zmq,shm"], ["zmq,", "shm"], ["zmq,shm", "--max-num-seqs", "3"]]
)
def test_a_list_is_one_word_or_several(words: list[str]) -> None:
    assert load("--connectors", *words, "--model", "m").connectors == ("zmq", "shm")


def test_a_group_is_flat_from_outside() -> None:
    assert load("--model", "m", "--block-size", "32").pool == PoolSettings(block_size=32)


def test_booleans_from_the_environment() -> None:
    env = {"BATON_MODEL": "m", "BATON_ENABLE_PREFIX_CACHING": "false"}
    assert not load(env=env).enable_prefix_caching


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        ((), {}, "--model"),
        (("--model", "m", "--max-num-seqs", "many"), {}, "--max-num-seqs"),
        (("--model", "m"), {"BATON_MAX_NUM_SEQS": "1.5"}, "BATON_MAX_NUM_SEQS"),
        (("--model", "m", "--max-num-sequences", "1"), {}, "--max-num-sequences"),
        (("--model", "m", "--config", "/does/not/exist.toml"), {}, "/does/not/exist.toml"),
    ],
)
def test_errors_name_the_setting(argv: tuple[str, ...], env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(*argv, env=env)


@pytest.mark.parametrize(
    ("content", "named"), [("max_sequences = 1", "max_sequences"), ("= broken", "valid TOML")]
)
def test_errors_of_the_file_name_the_key(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "baton.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=named):
        load("--model", "m", "--config", str(file))


def test_a_flag_that_was_misspelled_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting --max-num-seq; did you mean --max-num"):
        load("--model", "m", "--max-num-seq", "3")
    with pytest.raises(ConfigError, match=r"unknown setting --xyz \(`test --help` lists them\)"):
        load("--model", "m", "--xyz")


def test_a_flag_without_its_value_is_an_error_like_others() -> None:
    with pytest.raises(ConfigError, match="--num-blocks: expected one argument"):
        load("--model", "m", "--num-blocks")


def test_the_flags_of_settings_are_known_without_parsing() -> None:
    assert flags_of(Settings) == {
        "--config",
        "--model",
        "--max-num-seqs",
        "--connectors",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--num-blocks",
        "--block-size",
    }
