"""Which models a router serves: the forms of --models, and settings of one model alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.config import RouterConfig
from shared.config import load_config
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read(*flags: str, environ: dict[str, str] | None = None) -> RouterConfig:
    return load_config(RouterConfig, flags, prog="test", environ=environ or {})


WORDS = ("--models", "a=/m/a", "alias=x", "alias=y", "b=/m/b", "tool_call_parser=hermes")
FILE = """
default_model = "b"
max_queue_s = 7
[[models]]
name = "a"
path = "/m/a"
aliases = ["x", "y"]
[[models]]
name = "b"
path = "/m/b"
tool-call-parser = "hermes"
max-concurrent-requests = "1k"
reasoning_marks = ["<r>", "</r>"]
"""


def facts(config: RouterConfig) -> list[tuple[tuple[str, ...], str, str]]:
    return [(m.model_names, str(m.own_model), m.tool_call_parser) for m in config.of_models()]


A = (("a", "x", "y"), "/m/a", "auto")
B = (("b",), "/m/b", "hermes")


def test_words_and_one_word_and_a_variable_name_the_same_models(tmp_path: Path) -> None:
    assert facts(read(*WORDS)) == [A, B]
    assert facts(read("--models", ",".join(WORDS[1:]))) == [A, B]
    assert facts(read(environ={"BATON_MODELS": ",".join(WORDS[1:])})) == [A, B]
    assert facts(read(*WORDS, "--default-model", "b")) == [B, A]
    tables = '[{"name": "a", "path": "/m/a", "aliases": ["x", "y"]}]'
    assert facts(read(environ={"BATON_MODELS": tables})) == [A]


def test_a_file_gives_models_settings_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text(FILE)
    config = read("--config", str(file))
    assert facts(config) == [B, A]
    b, a = config.of_models()
    assert (b.max_concurrent_requests, a.max_concurrent_requests) == (1000, 256)
    assert (b.reasoning.reasoning_marks, a.reasoning.reasoning_marks) == (("<r>", "</r>"), ())
    assert (b.max_queue_s, a.max_queue_s) == (7, 7)


def test_one_model_is_all_of_its_settings() -> None:
    config = read("--model", "/m/a", "--served-model-name", "a", "x")
    assert config.of_models() == (config,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--model is required"),
        (("--model", "m", "--models", "a=/m"), "--models and --model exclude each other"),
        (
            ("--models", "a=/m", "--served-model-name", "b"),
            "--models and --served-model-name exclude each other",
        ),
        (("--models", "a"), "'a' must be NAME=PATH"),
        (("--models", "a="), "'a=' must be NAME=PATH"),
        (("--models", "alias=b", "a=/m"), "'alias=b' stands before the first NAME=PATH"),
        (("--models", "a=/m", "b=/m", "alias=a"), "the name 'a' is given twice: to 'a' and 'b'"),
        (("--models", '[{"name": "a"}]'), "a model needs a path"),
        (("--models", '[{"name": "a", "path": "p", "port": 1}]'), "'port' of 'a' is no setting"),
        (("--models", '[{"name": "a", "path": "p", "aliases": "b"}]'), "must be a list of names"),
        (("--models", "a=/m", "max_ttft_ms=soon"), "'max_ttft_ms' in the model 'a' has a bad"),
        (("--models", "a=/m", "max_ttft_ms=-1"), "--max-ttft-ms must be over 0"),
        (("--models", "a=/m", "--default-model", "b"), "'b' is no model of --models"),
        (("--model", "/m/a", "--default-model", "b"), "'b' is no name of the model"),
    ],
)
def test_what_does_not_fit_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read(*words)
