"""How every grammar backend behaves towards the engine."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.grammar.positions import (
    EVERYTHING,
    advance,
    count_valid,
    fill_mask_behind,
)
from shared.engine.sampler.grammar_mask import allowed_tokens
from shared.errors import InvalidRequestError
from shared.request.grammar.spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from shared.engine.grammar.base import GrammarBackend
    from shared.engine.sequence.grammar import Grammar
    from shared.text.token_table import TokenTable
    from shared.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "Ж"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
}
VALID = '{"name": "Ад", "age": 42, "tags": ["Ж"]}'
GBNF = 'root ::= "set " word ("," word)*\nword ::= [a-z]+'
LARK = """// Words with a blank behind each comma.
start: "set " word ("," SP word)* -> words
word: /[a-zé]+/
SP: " "
"""


def json_schema(schema: Any = SCHEMA, **options: Any) -> GrammarSpec:
    """The spec of a schema."""
    return GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema), **options)


class GrammarSuite:
    """Needs the fixtures `backend`, `table` and `tokenizer`."""

    @pytest.mark.parametrize(
        ("spec", "good", "bad"),
        [
            (json_schema(), VALID, '{"name": 1'),
            (json_schema(), '{"name":"x","age":7}', '{"name": "x", "age": 131'),
            (json_schema(), '{"name":"x","age":7}', '{"name": "x", "age": 13, "extra"'),
            (
                json_schema(
                    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                    strict=False,
                ),
                '{"a": 1, "extra": [null]}',
                '{"a": 2',
            ),
            (json_schema(any_whitespace=False), None, '{\n "name"'),
            (GrammarSpec(kind=GrammarKind.JSON_OBJECT), '{"a": [1, {"b": null}]}', "[1"),
            (GrammarSpec(kind=GrammarKind.REGEX, text=r"\d{3}-(a|é)+"), "123-aéa", "123-b"),
            (
                GrammarSpec(kind=GrammarKind.CHOICE, text='["yes", "no \\"way\\"", "да"]'),
                'no "way"',
                "maybe",
            ),
            (GrammarSpec(kind=GrammarKind.EBNF, text=GBNF), "set abc,de", "set ,"),
            (GrammarSpec(kind=GrammarKind.EBNF, text=LARK), "set é, b", "set é,b"),
        ],
    )
    def test_only_what_fits_is_accepted(
        self,
        backend: GrammarBackend,
        tokenizer: Tokenizer,
        spec: GrammarSpec,
        good: str | None,
        bad: str,
    ) -> None:
        compiled = backend.compile(spec)
        eos = tokenizer.eos_token_ids[0]
        if good is not None:
            grammar = compiled.start([eos])
            assert advance(grammar, tokenizer.encode(good)) is None
            assert not grammar.is_terminated
            assert grammar.accept(eos)
            assert grammar.is_terminated
            assert not grammar.accept(tokenizer.encode("a")[0])
        grammar = compiled.start([eos])
        place = advance(grammar, tokenizer.encode(bad))
        assert place is not None
        assert not grammar.accept(eos)

    def test_the_mask_is_what_would_be_accepted(
        self, backend: GrammarBackend, table: TokenTable
    ) -> None:
        rng = random.Random(5)
        grammar = backend.compile(json_schema()).start(table.eos_token_ids)
        for _ in range(60):
            allowed = allowed_ids(grammar, table)
            sample = set(rng.sample(range(table.vocab_size), 60)) | set(table.eos_token_ids)
            for token_id in sample:
                assert (count_valid(grammar, [token_id]) == 1) == (token_id in allowed), token_id
            assert allowed
            assert grammar.accept(rng.choice(sorted(allowed)))
            if grammar.is_terminated:
                break

    @pytest.mark.parametrize("seed", range(4))
    def test_whatever_the_mask_allows_ends_in_valid_text(
        self, backend: GrammarBackend, table: TokenTable, seed: int
    ) -> None:
        rng = random.Random(seed)
        grammar = backend.compile(json_schema(any_whitespace=False)).start(table.eos_token_ids)
        text = b""
        for _ in range(400):
            allowed = sorted(allowed_ids(grammar, table))
            # Closing brackets and quotes first: an answer of random letters takes long to end.
            closing = [i for i in allowed if table.token_bytes[i] in (b'"', b"}", b"]", b'",')]
            token_id = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
            assert grammar.accept(token_id)
            if grammar.is_terminated:
                break
            text += table.token_bytes[token_id]
        assert grammar.is_terminated
        value = json.loads(text)
        assert set(value) <= {"name", "age", "tags"}
        assert 0 <= value["age"] <= 130
        assert len(value["name"]) <= 12

    def test_only_end_tokens_of_the_request_end_it_and_only_where_it_is_complete(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        ends = (1, 2)
        grammar = backend.compile(json_schema({"enum": [12, 1]})).start(ends)
        assert not allowed_ids(grammar, table) & {0, 1, 2}
        assert advance(grammar, tokenizer.encode("1")) is None
        assert allowed_ids(grammar, table) & {0, 1, 2} == {1, 2}
        assert not grammar.accept(0)
        assert advance(grammar, tokenizer.encode("2")) is None
        assert allowed_ids(grammar, table) == {1, 2}
        assert grammar.accept(2)
        assert grammar.is_terminated

    def test_lengths_and_formats_hold_to_the_letter(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        schema = {"type": "string", "minLength": 1, "maxLength": 2}
        grammar = backend.compile(json_schema(schema)).start(table.eos_token_ids)
        assert advance(grammar, tokenizer.encode('"')) is None
        first = {table.token_bytes[i][:1] for i in allowed_ids(grammar, table)}
        assert not first & {bytes([byte]) for byte in range(0x20)}
        assert not first & {b"\xc0", b"\xf5", b"\xff", b'"'}
        assert advance(grammar, tokenizer.encode('Ж你"')) is None
        date = backend.compile(json_schema({"type": "string", "format": "date"}))
        for text, fits in (("2024-12-31", True), ("2024-11-31", False), ("2024-13-01", False)):
            grammar = date.start(table.eos_token_ids)
            assert (advance(grammar, tokenizer.encode(f'"{text}"')) is None) == fits, text

    def test_special_tokens_and_padding_never_come(
        self, backend: GrammarBackend, table: TokenTable
    ) -> None:
        spec = GrammarSpec(kind=GrammarKind.REGEX, text=r"(.|\n)*")
        grammar = backend.compile(spec).start(table.eos_token_ids)
        silent = {i for i, token in enumerate(table.token_bytes) if not token}
        assert allowed_ids(grammar, table) & silent == set(table.eos_token_ids)
        assert not any(grammar.accept(i) for i in silent - set(table.eos_token_ids))

    def test_rolling_back_undoes_the_end_too(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        ids = [*tokenizer.encode(VALID), table.eos_token_ids[0]]
        grammar = backend.compile(json_schema()).start(table.eos_token_ids)
        masks = []
        for token_id in ids:
            masks.append(allowed_ids(grammar, table))
            assert grammar.accept(token_id)
        for num in (1, 3, len(ids)):
            grammar.rollback(num)
            assert not grammar.is_terminated
            assert allowed_ids(grammar, table) == masks[len(ids) - num]
            assert advance(grammar, ids[len(ids) - num :]) is None
            assert grammar.is_terminated

    def test_drafts_are_checked_without_moving(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        ids = [*tokenizer.encode(VALID), table.eos_token_ids[0]]
        wrong = tokenizer.encode("]")
        grammar = backend.compile(json_schema()).start(table.eos_token_ids)
        before = allowed_ids(grammar, table)
        assert count_valid(grammar, ids) == len(ids)
        assert count_valid(grammar, [*ids, 5]) == len(ids)
        assert count_valid(grammar, [*ids[:3], *wrong, *ids[3:]]) == 3
        assert count_valid(grammar, []) == 0
        assert allowed_ids(grammar, table) == before

    def test_masks_of_a_draft_are_those_of_its_steps(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        ids = [*tokenizer.encode(VALID), table.eos_token_ids[0]]
        wrong = tokenizer.encode("]")[0]
        grammar = backend.compile(json_schema()).start(table.eos_token_ids)
        steps = []
        for token_id in ids[:4]:
            steps.append(allowed_ids(grammar, table))
            assert grammar.accept(token_id)
        grammar.rollback(4)
        bits = empty_bits(5, table)
        draft = [*ids[:2], wrong, ids[3]]
        for row in range(5):
            fill_mask_behind(grammar, draft[:row], bits, row)
        for row in range(3):
            assert bits_set(bits, row, table) == steps[row]
        assert (bits[3:] == EVERYTHING).all()
        assert allowed_ids(grammar, table) == steps[0]
        bits = empty_bits(len(ids) + 2, table)
        for row in range(len(ids) + 1):
            fill_mask_behind(grammar, ids[:row], bits, row + 1)
        assert bits_set(bits, len(ids), table) >= {ids[-1]}
        assert (bits[len(ids) + 1] == EVERYTHING).all()

    def test_grammars_of_one_compilation_are_apart(
        self, backend: GrammarBackend, table: TokenTable, tokenizer: Tokenizer
    ) -> None:
        compiled = backend.compile(json_schema())
        assert compiled.size_bytes > 0
        one, other = (compiled.start(table.eos_token_ids) for _ in range(2))
        before = allowed_ids(other, table)
        assert advance(one, tokenizer.encode('{"name"')) is None
        assert allowed_ids(other, table) == before

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            (GrammarSpec(kind=GrammarKind.EBNF, text='root ::= "a', param="guided_grammar"), ""),
            (GrammarSpec(kind=GrammarKind.EBNF, text="hello", param="g"), ""),
            (GrammarSpec(kind=GrammarKind.EBNF, text="start: A", param="lark"), ""),
            (GrammarSpec(kind=GrammarKind.REGEX, text="a(b", param="guided_regex"), ""),
        ],
    )
    def test_what_is_no_grammar_is_refused_under_the_clients_name(
        self, backend: GrammarBackend, spec: GrammarSpec, reason: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=spec.param) as caught:
            backend.compile(spec)
        assert caught.value.param == spec.param
        assert len(str(caught.value)) > len(spec.param) + 20, reason


def empty_bits(num_rows: int, table: TokenTable) -> torch.Tensor:
    """Room for masks."""
    return torch.zeros(num_rows, -(-table.vocab_size // 32), dtype=torch.int32)


def bits_set(bits: torch.Tensor, row: int, table: TokenTable) -> set[int]:
    """Token ids that a row allows."""
    flags = allowed_tokens(bits[row : row + 1], table.vocab_size, torch.device("cpu"))[0]
    return set(flags.nonzero().flatten().tolist())


def allowed_ids(grammar: Grammar, table: TokenTable) -> set[int]:
    """Token ids that may come next."""
    bits = empty_bits(2, table)
    grammar.fill_mask(bits, 1)
    assert not bits[0].any(), "another row was written"
    return bits_set(bits, 1, table)
