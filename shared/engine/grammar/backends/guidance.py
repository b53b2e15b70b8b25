"""Grammars by llguidance: lexers by derivatives of regular expressions under an Earley parser.

https://github.com/guidance-ai/llguidance. Compiles at once and computes every mask when it is
asked for, so its masks cost more than xgrammar's and its first one costs less.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import llguidance
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from shared.engine.grammar.backends.json_schema_map import map_schemas
from shared.engine.grammar.backends.json_schema_strings import exact_formats
from shared.engine.grammar.backends.lark import is_lark
from shared.engine.grammar.positions import set_bit
from shared.errors import InvalidRequestError, UnsupportedError
from shared.request.grammar.spec import GrammarKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.request.grammar.spec import GrammarSpec
    from shared.text.token_table import TokenTable

#: Memory per character of a grammar's JSON: the library does not report a grammar's size.
_BYTES_PER_CHAR = 64


def create(table: TokenTable) -> GuidanceBackend:
    """Return the backend for this vocabulary."""
    return GuidanceBackend(table)


class _Vocabulary:
    """The interface of a tokenizer for `llguidance.TokenizerWrapper`."""

    def __init__(self, table: TokenTable) -> None:
        self.eos_token_id = table.eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(table.special_token_ids)
        # Special tokens need names: the library ignores tokens without bytes.
        self.tokens = [
            f"<|{i}|>".encode() if i in table.special_token_ids else token
            for i, token in enumerate(table.token_bytes)
        ]

        self._ids = {token: i for i, token in enumerate(table.token_bytes) if token}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens of a text, the longest first: how forced text would be written.

        Only a hint for the library; the mask has every allowed token.
        """
        ids, start = [], 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    ids.append(token_id)
                    break
            else:
                end = start + 1  # a byte that the vocabulary does not have
            start = end
        return ids


class GuidanceBackend:
    """See `GrammarBackend`."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(table))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=table.vocab_size)

    def compile(self, spec: GrammarSpec) -> GuidanceCompiled:
        """See `GrammarBackend.compile`."""
        try:
            grammar = _grammar_text(spec)
        except (ValueError, GbnfToLarkError) as error:
            raise _invalid(spec, str(error)) from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise _invalid(spec, matcher.get_error())
        return GuidanceCompiled(matcher, self._table, size_bytes=_BYTES_PER_CHAR * len(grammar))


class GuidanceCompiled:
    """See `CompiledGrammar`."""

    def __init__(self, matcher: Any, table: TokenTable, *, size_bytes: int) -> None:
        self._matcher = matcher
        self._table = table
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        """See `CompiledGrammar.size_bytes`."""
        return self._size_bytes

    def start(self, end_token_ids: Sequence[int]) -> GuidanceGrammar:
        """See `CompiledGrammar.start`."""
        return GuidanceGrammar(
            self._matcher.deep_copy(),
            end_token_ids=frozenset(end_token_ids),
            library_eos=self._table.eos_token_ids[0],
        )


class GuidanceGrammar:
    """See `Matcher`. The library knows one end token; this class handles all of them."""

    def __init__(self, matcher: Any, *, end_token_ids: frozenset[int], library_eos: int) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._library_eos = library_eos
        self._has_ended = False

    @property
    def is_terminated(self) -> bool:
        """See `Matcher.is_terminated`."""
        return self._has_ended

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Matcher.fill_mask`."""
        words = bits[row]
        is_complete = self._matcher.is_accepting()
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * 4)
        set_bit(bits, row, self._library_eos, to=False)
        for token_id in self._end_token_ids:
            set_bit(bits, row, token_id, to=is_complete)

    def accept(self, token_id: int) -> bool:
        """See `Matcher.accept`."""
        if self._has_ended:
            return False
        if token_id in self._end_token_ids:
            self._has_ended = bool(self._matcher.is_accepting())
            return self._has_ended
        # A refused token would break the matcher for good: check first.
        if token_id == self._library_eos or self._matcher.validate_tokens([token_id]) != 1:
            return False
        return bool(self._matcher.consume_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        if num_tokens and self._has_ended:
            self._has_ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)


def _grammar_text(spec: GrammarSpec) -> str:
    matcher: Any = llguidance.LLMatcher
    text: str
    options: Any = {"whitespace_flexible": spec.any_whitespace}
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = map_schemas(json.loads(spec.text), exact_formats)
            text = matcher.grammar_from_json_schema(
                map_schemas(schema, _close) if spec.strict else schema, overrides=options
            )
        case GrammarKind.JSON_OBJECT:
            text = matcher.grammar_from_json_schema({"type": "object"}, overrides=options)
        case GrammarKind.REGEX:
            text = matcher.grammar_from_regex(spec.text)
        case GrammarKind.CHOICE:
            choices = [json.dumps(choice, ensure_ascii=False) for choice in json.loads(spec.text)]
            text = matcher.grammar_from_lark("start: " + " | ".join(choices))
        case GrammarKind.EBNF:
            text = matcher.grammar_from_lark(_lark(spec.text))
        case GrammarKind.STRUCTURAL_TAG:
            raise UnsupportedError(
                f"{spec.param}: a structural tag needs --structured-outputs-backend xgrammar",
                param=spec.param,
            )
    return text


def _lark(text: str) -> str:
    """Return a grammar in Lark, which the library reads; GBNF is rewritten."""
    if is_lark(text):
        return text
    lark: str = gbnf_to_lark(text)
    return lark


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    """Forbid properties and items that the schema does not name."""
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    if "prefixItems" in schema:
        schema.setdefault("items", False)
    return schema


def _invalid(spec: GrammarSpec, reason: str) -> InvalidRequestError:
    text = " ".join(reason.split())
    return InvalidRequestError(f"{spec.param} cannot be compiled: {text}", param=spec.param)
