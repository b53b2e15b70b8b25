"""Tokenizers in GGUF files cut texts as transformers' do that read the same file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gguf
import pytest
from tokenizers import Tokenizer as HfTokenizer
from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs

from shared.errors import ConfigError
from shared.gguf.header import read_header
from shared.gguf.splitting import SPLITTINGS
from shared.gguf.tokenizer import make_tokenizer
from shared.gguf.values import Values
from shared.gguf.vocabulary import Vocabulary
from tests.fakes.checkpoints.gguf import finish

if TYPE_CHECKING:
    from pathlib import Path

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<think>"]
KINDS = [2, 3, 3, *[6] * 256, 4]
WORDS = [
    *("▁", "t", "h", "e", "r", "n", "▁t", "he", "▁the", "er", "▁th", "re", "▁there", "the"),
    *("in", "i", "a", "▁a", "an", "ana", "▁an", "é", "▁▁", "▁▁▁▁", "n", "b"),
]
TEXTS = [
    "there then the  hen",
    "in the ana anana b banana",
    "    the\n\nné 你好 <think> the",
    "",
    " ",
]


def write(path: Path, *, architecture: str = "llama", **values: object) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    words = list(dict.fromkeys(WORDS))
    tokens = [*PIECES, *words]
    writer.add_tokenizer_model(str(values.get("model", "llama")))
    writer.add_token_list(values.get("tokens", tokens))  # type: ignore[arg-type]
    # Longer words are better, but for two that make the order matter.
    scores = [0.0] * len(PIECES) + [float(10 * len(word) - n) for n, word in enumerate(words)]
    writer.add_token_scores(scores)
    writer.add_token_types(values.get("kinds", [*KINDS, *[1] * len(words)]))  # type: ignore[arg-type]
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(int(str(values.get("bos", 1))))
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(architecture != "gemma2")
    finish(writer)
    return path


def own_tokenizer(path: Path) -> HfTokenizer:
    values = Values(read_header(path))
    return HfTokenizer.from_str(json.dumps(make_tokenizer(values, Vocabulary.of(values))))


@pytest.mark.parametrize("architecture", ["phi3", "gemma2"])
def test_scores_become_merges(architecture: str, tmp_path: Path) -> None:
    """Those of Llama are merged as those of Phi-3."""
    path = write(tmp_path / "model.gguf", architecture=architecture)
    own = own_tokenizer(path)
    name, content, _ = theirs.get_gguf_tokenizer(str(path))
    other, _ = theirs.convert_gguf_tokenizer(name, content)
    for text in TEXTS:
        ids = own.encode(text, add_special_tokens=False).ids
        assert ids == other.encode(text, add_special_tokens=False).ids
        if "<think>" not in text:  # a blank is put behind it
            assert own.decode(ids) == text
    assert len(own.encode("there", add_special_tokens=False).ids) < len("there")


def test_texts_begin_with_bos(tmp_path: Path) -> None:
    own = own_tokenizer(write(tmp_path / "model.gguf"))
    assert own.encode("the").ids[0] == 1
    assert own.encode("the<s>").ids.count(1) == 2
    assert own.encode("the", add_special_tokens=False).ids[0] != 1


def test_patterns_are_those_of_transformers() -> None:
    shared = SPLITTINGS.keys() & theirs.GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx"} <= shared
    for name in shared:
        assert SPLITTINGS[name].pattern == theirs.GGUF_PRE_TOKENIZER_SPLITS[name]


@pytest.mark.parametrize(
    ("texts", "kind", "ends"),
    [
        (["<start_of_turn>", "<end_of_turn>"], 3, ["</s>", "<end_of_turn>"]),
        (["<|end|>", "<|assistant|>"], 4, ["</s>", "<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], 3, ["</s>", "<|return|>", "<|call|>"]),
        (["<|im_end|>"], 1, ["</s>"]),
    ],
    ids=["Gemma", "Phi-3", "gpt-oss", "a piece of words"],
)
def test_answers_end_at_the_end_of_a_turn(
    texts: list[str], kind: int, ends: list[str], tmp_path: Path
) -> None:
    """Files of these families say no more of it than the texts of their tokens."""
    tokens = [*PIECES, *texts]
    path = write(tmp_path / "model.gguf", tokens=tokens, kinds=[*KINDS, *[kind] * len(texts)])
    found = Vocabulary.of(Values(read_header(path))).ends()
    assert [tokens[number] for number in found] == ends


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model": "bert"}, r"tokenizer\.ggml\.model 'bert' is not supported"),
        ({"model": "gpt2"}, r"tokenizer\.ggml\.pre is missing"),
        ({"bos": 9999}, r"tokenizer\.ggml\.bos_token_id is 9999"),
        ({"kinds": [1]}, r"tokenizer\.ggml\.token_type has 1 entries"),
        ({"tokens": ["a", "a"], "kinds": [1, 1]}, r"has the same token twice"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", **values)
    with pytest.raises(ConfigError, match=why):
        own_tokenizer(path)
