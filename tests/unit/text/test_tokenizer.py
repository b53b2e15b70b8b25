from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError, InvalidRequestError
from shared.text.generation_defaults import GenerationDefaults
from shared.text.tokenizer import Tokenizer
from tests.fakes.processes.interpreter_lock import runs_beside_others
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tiny_tokenizer.save(tiny_tokenizer.byte_level(), tmp_path / "model")


def test_text_survives_encoding_and_decoding(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    for text in (*tiny_tokenizer.TEXTS, "", " leading", "🙂 emoji"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_added_as_the_post_processor_says(tmp_path: Path) -> None:
    with_bos = tiny_tokenizer.with_bos(tiny_tokenizer.byte_level())
    tokenizer = Tokenizer.load(tiny_tokenizer.save(with_bos, tmp_path))
    bos = tokenizer.token_id("<|bos|>")
    assert tokenizer.encode("a")[0] == bos
    assert bos not in tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode("a"), skip_special_tokens=False) == "<|bos|>a"


def test_other_threads_run_while_a_text_is_encoded_or_decoded(model_dir: Path) -> None:
    tokenizer, text = Tokenizer.load(model_dir), "The quick brown fox. " * 5000
    assert runs_beside_others(lambda: tokenizer.encode(text))
    assert runs_beside_others(lambda: tokenizer.encode_with_offsets(text))
    assert runs_beside_others(lambda: tokenizer.encode_pair(text, text))
    ids = tokenizer.encode(text)
    assert runs_beside_others(lambda: tokenizer.decode(ids))


def test_half_a_surrogate_pair_is_no_text(model_dir: Path) -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        Tokenizer.load(model_dir).encode("a\ud800")


def test_offsets_are_in_characters(model_dir: Path) -> None:
    text = "你好 world"
    tokenizer = Tokenizer.load(model_dir)
    spans = tokenizer.encode_with_offsets(text)
    assert [i for i, _, _ in spans] == tokenizer.encode(text)
    assert spans[0][1] == 0
    assert spans[-1][2] == len(text)


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    hf = tiny_tokenizer.byte_level()
    hf.enable_truncation(2)
    hf.enable_padding(length=512)
    tokenizer = Tokenizer.load(tiny_tokenizer.save(hf, tmp_path))
    text = "The quick brown fox"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_token_has_text_and_bytes_even_if_it_is_half_a_character(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == "🙂".encode()
    assert tokenizer.token_text(ids[0]) == "\ufffd"
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token(10**6) is None


def test_sentencepiece_tokens_have_bytes() -> None:
    tokenizer = Tokenizer(tiny_tokenizer.sentencepiece())
    assert tokenizer.token_text(tokenizer.token_id("▁he") or 0) == " he"
    assert tokenizer.token_bytes(tokenizer.token_id("<0xE4>") or 0) == b"\xe4"


@pytest.mark.parametrize(("value", "expected"), [(7, (0, 7)), ([5, 0, 9], (0, 5, 9))])
def test_end_tokens_come_from_both_files(model_dir: Path, value: object, expected: object) -> None:
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert Tokenizer.load(model_dir).eos_token_ids == expected


def test_config_json_names_the_end_token_if_nobody_else_does(model_dir: Path) -> None:
    (model_dir / "tokenizer_config.json").write_text("{}")
    (model_dir / "config.json").write_text('{"eos_token_id": 3}')
    assert Tokenizer.load(model_dir).eos_token_ids == (3,)


def test_sampling_defaults_come_from_generation_config(model_dir: Path) -> None:
    assert Tokenizer.load(model_dir).defaults == GenerationDefaults()
    content = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 100}
    (model_dir / "generation_config.json").write_text(json.dumps(content))
    expected = GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20, max_tokens=100)
    assert Tokenizer.load(model_dir).defaults == expected


def test_a_special_token_named_only_by_the_config_is_special(tmp_path: Path) -> None:
    tiny_tokenizer.save(tiny_tokenizer.byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<think>"}')
    tokenizer = Tokenizer.load(tmp_path)
    think = tokenizer.token_id("<think>")
    assert think in tokenizer.special_token_ids
    assert tokenizer.decode([think or 0]) == ""


def test_special_tokens_map_fills_what_the_newer_file_lacks(model_dir: Path) -> None:
    (model_dir / "special_tokens_map.json").write_text(
        '{"eos_token": "other", "pad_token": {"content": "<|bos|>"}}'
    )
    special = Tokenizer.load(model_dir).special_tokens
    assert special["eos_token"] == "<|im_end|>"
    assert special["pad_token"] == "<|bos|>"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "not json"),
        ("tokenizer_config.json", "[1"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"eos_token": 5}'),
        ("generation_config.json", "{"),
        ("generation_config.json", '{"eos_token_id": "x"}'),
        ("generation_config.json", '{"eos_token_id": [-1]}'),
        ("generation_config.json", '{"temperature": "hot"}'),
        ("generation_config.json", '{"temperature": 1%s}' % ("0" * 400)),
        ("generation_config.json", '{"top_k": Infinity}'),
        ("generation_config.json", '{"top_k": 1.5}'),
    ],
)
def test_a_bad_file_is_named(model_dir: Path, file: str, content: str) -> None:
    (model_dir / file).write_text(content)
    with pytest.raises(ConfigError, match=file):
        Tokenizer.load(model_dir)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)


def test_text_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, shared.text.answer_text, shared.text.chat_template, shared.text.tokenizer;"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_source_of_sampling_defaults_can_be_chosen(model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "generation_config.json").write_text('{"temperature": 0.5, "max_new_tokens": 9}')
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_k": 3}')
    choose = GenerationDefaults.choose
    assert choose(model_dir, "auto") == GenerationDefaults(temperature=0.5, max_tokens=9)
    assert choose(model_dir, "vllm") == GenerationDefaults()
    assert choose(model_dir, str(other)) == GenerationDefaults(top_k=3)
    overrides = '{"temperature": 2, "max_new_tokens": null}'
    assert choose(model_dir, "auto", overrides) == GenerationDefaults(temperature=2.0)
    assert choose(model_dir, "vllm", '{"top_p": 0.5}') == GenerationDefaults(top_p=0.5)


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("elsewhere", None, "generation_config must be auto, vllm or a folder"),
        ("auto", "[1]", "--override-generation-config must be a JSON object"),
        ("auto", "{", "--override-generation-config is not valid JSON"),
        ("auto", '{"heat": 1}', "heat is none of max_new_tokens, min_p"),
        ("auto", '{"temperature": "hot"}', "temperature in --override-generation-config must be"),
    ],
)
def test_other_sources_are_refused(
    model_dir: Path, source: str, overrides: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GenerationDefaults.choose(model_dir, source, overrides)
