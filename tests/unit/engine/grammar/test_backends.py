"""Both backends behave alike; what only one of them has is at the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shared.engine.grammar.positions import advance
from shared.engine.grammar.registry import BackendName, create_backend
from shared.engine.grammar.spec import GrammarKind, GrammarSpec
from shared.errors import UnsupportedError
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer
from tests.fakes.tiny_tokenizer import byte_level
from tests.suites.grammar import GrammarSuite, allowed_ids

if TYPE_CHECKING:
    from shared.engine.grammar.base import GrammarBackend

STRUCTURAL_TAG = GrammarSpec(
    kind=GrammarKind.STRUCTURAL_TAG,
    text=json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
                "end": "</call>",
            },
        }
    ),
    param="response_format",
)


class TestBackends(GrammarSuite):
    """The suite, with the fixtures of this folder."""


def test_structural_tags_need_xgrammar(
    backend: GrammarBackend, backend_name: BackendName, table: TokenTable, tokenizer: Tokenizer
) -> None:
    if backend_name is BackendName.GUIDANCE:
        with pytest.raises(UnsupportedError, match=r"response_format.*xgrammar"):
            backend.compile(STRUCTURAL_TAG)
        return
    grammar = backend.compile(STRUCTURAL_TAG).start(table.eos_token_ids)
    assert advance(grammar, tokenizer.encode("<call>2</call>")) is None
    assert allowed_ids(grammar, table) == set(table.eos_token_ids)


def test_a_sentencepiece_vocabulary_is_followed_too(
    backend_name: BackendName, pieces_table: TokenTable
) -> None:
    backend = create_backend(backend_name, pieces_table)
    spec = GrammarSpec(kind=GrammarKind.CHOICE, text='[" hello", "é"]')
    grammar = backend.compile(spec).start(pieces_table.eos_token_ids)
    texts = {pieces_table.token_bytes[i] for i in allowed_ids(grammar, pieces_table)}
    assert texts == {b" ", b" he", "é".encode(), b"\xc3"}
    assert grammar.accept(pieces_table.token_bytes.index(b" he"))
    assert grammar.accept(pieces_table.token_bytes.index(b"llo"))
    assert allowed_ids(grammar, pieces_table) == set(pieces_table.eos_token_ids)


def test_the_default_is_xgrammar(table: TokenTable) -> None:
    backend = create_backend(BackendName.AUTO, table)
    assert type(backend) is type(create_backend(BackendName.XGRAMMAR, table))


def test_tokens_without_a_text_of_their_own_are_refused() -> None:
    from tokenizers import decoders

    inner = byte_level()
    inner.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="tokenizer"):
        TokenTable.of(Tokenizer(inner), 400)
