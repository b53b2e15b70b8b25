"""Vocabularies, and each backend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.settings.choices import BackendName
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer
from tests.fakes.text.tiny_tokenizer import byte_level, sentencepiece

if TYPE_CHECKING:
    from shared.engine.grammar.base import GrammarBackend

#: Wider than the tokenizer: models pad their logits.
NUM_PADDING = 7


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE; `<|im_end|>` ends an answer."""
    return Tokenizer(byte_level(), special_tokens={"eos_token": "<|im_end|>"}, eos_token_ids=(2,))


@pytest.fixture(scope="session")
def table(tokenizer: Tokenizer) -> TokenTable:
    return TokenTable.of(tokenizer, tokenizer.vocab_size + NUM_PADDING)


@pytest.fixture(scope="session")
def pieces_table() -> TokenTable:
    """The table of a sentencepiece tokenizer."""
    tokenizer = Tokenizer(sentencepiece(), special_tokens={"eos_token": "</s>"})
    return TokenTable.of(tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="session", params=[BackendName.XGRAMMAR, BackendName.GUIDANCE])
def backend_name(request: pytest.FixtureRequest) -> BackendName:
    name: BackendName = request.param
    return name


@pytest.fixture(scope="session")
def backend(backend_name: BackendName, table: TokenTable) -> GrammarBackend:
    return create_backend(backend_name, table)
