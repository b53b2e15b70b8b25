"""Both backends behave alike; what only one of them has is at the end."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.grammar.positions import advance
from shared.engine.settings.choices import BackendName
from shared.errors import ConfigError, UnsupportedError
from shared.request.grammar.regex import repeats_in_choices
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer
from tests.fakes.text.tiny_tokenizer import byte_level
from tests.suites.engine.grammar import GrammarSuite, allowed_ids

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


MOMENTS = {
    "date": {"2024-02-28": True, "2024-04-31": False, "0000-01-01": False, "2024-13-01": False},
    "time": {
        "20:29:24Z": True,
        "20:29:24.201Z": True,
        "20:29:24.123456+01:30": True,
        "20:29:24201Z": False,
        "20:29:24.Z": False,
        "20:29:61Z": False,
        "24:00:00Z": False,
    },
    "date-time": {
        "2024-02-28T20:29:24.2Z": True,
        "7879-12-05T09:24:3654479-23:09": False,
        "2024-02-28 20:29:24Z": False,
    },
}
_ATOMS = st.tuples(
    st.sampled_from(["a", "b", r"\.", "[ab]"]),
    st.sampled_from(["", "", "?", "*", "+", "{1,2}", "{2,}", "{0,3}"]),
).map("".join)
#: Of all that can be nested.
PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["", "?", "*", "+", "{1,2}", "{0,2}", "{2}"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    ),
    max_leaves=5,
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


def test_what_one_library_cannot_follow_the_other_does(
    table: TokenTable, tokenizer: Tokenizer
) -> None:
    """Which is the default."""
    backend = create_backend(BackendName.AUTO, table)
    for spec, good, bad in (
        (STRUCTURAL_TAG, "<call>2</call>", "<call>3"),
        (_pattern(r"\d(-\d{2,3})?"), '"1-234"', '"12'),
    ):
        grammar = backend.compile(spec).start(table.eos_token_ids)
        assert advance(grammar, tokenizer.encode(good)) is None
        assert allowed_ids(grammar, table) == set(table.eos_token_ids)
        grammar = backend.compile(spec).start(table.eos_token_ids)
        assert advance(grammar, tokenizer.encode(bad)) is not None


def test_where_one_library_is_missing_the_other_does_it_all(
    table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shared.engine.grammar.backends.xgrammar", None)
    create_backend(BackendName.AUTO, table).compile(_pattern(r"\d(-\d{2,3})?"))
    monkeypatch.setitem(sys.modules, "shared.engine.grammar.backends.guidance", None)
    with pytest.raises(ConfigError, match=r"xgrammar.*guidance"):
        create_backend(BackendName.AUTO, table)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "shared.engine.grammar.backends.guidance", None)
    with pytest.raises(UnsupportedError, match="repeats something in an alternative"):
        create_backend(BackendName.AUTO, table).compile(_pattern(r"\d(-\d{2,3})?"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PATTERNS, strings=st.lists(st.text("ab.", max_size=6), min_size=20, max_size=20))
def test_a_pattern_lets_through_what_it_matches(
    backend: GrammarBackend,
    table: TokenTable,
    tokenizer: Tokenizer,
    text: str,
    strings: list[str],
) -> None:
    """Or is refused as a whole."""
    try:
        compiled = backend.compile(_pattern(text))
    except UnsupportedError:
        assert repeats_in_choices(text)
        return
    for string in strings:
        grammar = compiled.start(table.eos_token_ids)
        is_whole = advance(grammar, tokenizer.encode(f'"{string}"')) is None
        is_let_through = is_whole and table.eos_token_ids[0] in allowed_ids(grammar, table)
        assert is_let_through == (re.fullmatch(text, string) is not None)


@pytest.mark.parametrize("name", ["date", "date-time", "time"])
def test_patterns_of_formats_are_exact_in_every_library(
    backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer, name: str
) -> None:
    compiled = backend.compile(
        GrammarSpec(
            kind=GrammarKind.JSON_SCHEMA, text=json.dumps({"type": "string", "format": name})
        )
    )
    for string, is_valid in MOMENTS[name].items():
        grammar = compiled.start(table.eos_token_ids)
        assert (advance(grammar, tokenizer.encode(f'"{string}"')) is None) == is_valid, string


def _pattern(text: str) -> GrammarSpec:
    schema = {"type": "string", "pattern": f"^({text})$" if "|" in text else f"^{text}$"}
    return GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


def test_tokens_without_a_text_of_their_own_are_refused() -> None:
    from tokenizers import decoders

    inner = byte_level()
    inner.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="tokenizer"):
        TokenTable.of(Tokenizer(inner), 400)
