"""GGUF files: whatever is in them, they load or are refused, and in bounded memory."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError, ModelLoadError
from shared.gguf.folder import model_folder
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.text.chat_template import ChatTemplate
from shared.text.tokenizer import Tokenizer
from tests.fakes.checkpoints.gguf import add_tokenizer, export
from tests.fakes.text import tiny_tokenizer
from tests.fuzz.cases import COUNTS, MAX_GROWTH_BYTES, memory_bytes, profile
from tests.fuzz.mutation import mutate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = CheckpointSpec(num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, vocab_size=403)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("gguf")
    write_random_checkpoint(folder / "hf", SPEC)
    texts = tiny_tokenizer.save(tiny_tokenizer.byte_level(), folder / "texts")
    add = partial(add_tokenizer, texts)
    model = export(folder / "hf", folder / "model.gguf", tokenizer=add)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.gguf.folder.cache_dir", lambda: folder / "cache")
        load(model)
        before = memory_bytes()
        yield model
        assert memory_bytes() - before < 4 * MAX_GROWTH_BYTES


def load(model: Path) -> None:
    """As a router and a worker do."""
    folder = model_folder(model)
    if (folder / "tokenizer.json").exists():
        ChatTemplate.load(folder, Tokenizer.load(folder).special_tokens)
    load_model(folder, attention_backend="torch")


@profile(120, 6000)
@given(st.integers(0, 2**64 - 1))
def test_header(original: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Numbers and bytes of the header, which says where all tensors are."""
    random = Random(seed)
    data = original.read_bytes()
    size = data.index(b"blk.0.attn_q.weight") if random.random() < 0.5 else len(data)
    begin = data.rindex(b"llama.context_length") if random.random() < 0.2 else 0
    end = min(size, data.rindex(b".weight") + 64)
    changed = data[:begin] + mutate(random, data[begin:end]) + data[end:]
    model = tmp_path_factory.mktemp("changed") / "model.gguf"
    model.write_bytes(changed)
    with suppress(ConfigError, ModelLoadError):
        load(model)
    COUNTS["files: gguf"] += 1
