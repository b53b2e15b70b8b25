"""Grammars by xgrammar: pushdown automata, with masks computed ahead where possible.

Y. Dong et al., "XGrammar: Flexible and Efficient Structured Generation Engine for Large Language
Models" (MLSys 2025).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xgrammar

from shared.engine.grammar.backends.json_schema_map import map_schemas
from shared.engine.grammar.backends.json_schema_strings import InexactPatternError, exact_strings
from shared.engine.grammar.backends.lark import is_lark
from shared.engine.grammar.backends.own_tags import expand_own
from shared.errors import InvalidRequestError, UnsupportedError
from shared.request.grammar.spec import GrammarKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.request.grammar.spec import GrammarSpec
    from shared.text.token_table import TokenTable

#: Maximum of blanks and line ends in a row between two parts of a JSON text: enough for
#: indentation. Without a limit an uncertain model may write blanks forever.
_MAX_WHITESPACE = 64


def create(table: TokenTable) -> XgrammarBackend:
    """Return the backend for this vocabulary."""
    return XgrammarBackend(table)


class XgrammarBackend:
    """See `GrammarBackend`."""

    def __init__(self, table: TokenTable) -> None:
        info = xgrammar.TokenizerInfo(
            list(table.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=table.vocab_size,
            stop_token_ids=list(table.eos_token_ids),
        )
        # `GrammarCompiler` caches compiled grammars of every backend.
        self._silent = frozenset(i for i, token in enumerate(table.token_bytes) if not token)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> XgrammarCompiled:
        """See `GrammarBackend.compile`."""
        try:
            return XgrammarCompiled(self._compile(spec), self._silent)
        except InexactPatternError as error:
            message = (
                f"{spec.param}: the pattern {str(error)[:64]!r} repeats something in an "
                "alternative or in a group that is repeated, which is not supported by "
                "--structured-outputs-backend xgrammar (but by guidance and auto)"
            )
            raise UnsupportedError(message, param=spec.param) from error
        except InvalidRequestError:
            raise
        # The library raises RuntimeError, ValueError and classes of its own.
        except Exception as error:
            reason = str(error).strip().splitlines()
            message = f"{spec.param} cannot be compiled: {reason[0] if reason else error!r}"
            raise InvalidRequestError(message, param=spec.param) from error

    def _compile(self, spec: GrammarSpec) -> Any:
        match spec.kind:
            case GrammarKind.JSON_SCHEMA:
                schema = map_schemas(json.loads(spec.text), exact_strings)
                return self._compile_schema(spec, json.dumps(schema, ensure_ascii=False))
            case GrammarKind.JSON_OBJECT:
                return self._compile_schema(spec, '{"type": "object"}')
            case GrammarKind.REGEX:
                return self._compiler.compile_regex(spec.text)
            case GrammarKind.CHOICE:
                return self._compiler.compile_grammar(_choice_rule(spec.text))
            case GrammarKind.EBNF:
                compiler = self._compiler
                read = compiler.compile_lark if is_lark(spec.text) else compiler.compile_grammar
                return read(spec.text)
            case GrammarKind.STRUCTURAL_TAG:
                return self._compiler.compile_structural_tag(expand_own(spec.text))

    def _compile_schema(self, spec: GrammarSpec, schema: str) -> Any:
        is_closed = spec.strict and spec.kind is GrammarKind.JSON_SCHEMA
        return self._compiler.compile_json_schema(
            schema,
            any_whitespace=spec.any_whitespace,
            max_whitespace_cnt=_MAX_WHITESPACE if spec.any_whitespace else None,
            strict_mode=is_closed,
        )


class XgrammarCompiled:
    """See `CompiledGrammar`."""

    def __init__(self, compiled: Any, silent_token_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._silent = silent_token_ids

    @property
    def size_bytes(self) -> int:
        """See `CompiledGrammar.size_bytes`."""
        return int(self._compiled.memory_size_bytes)

    def start(self, end_token_ids: Sequence[int]) -> XgrammarGrammar:
        """See `CompiledGrammar.start`."""
        matcher = xgrammar.GrammarMatcher(
            self._compiled, override_stop_tokens=list(end_token_ids), max_rollback_tokens=-1
        )
        return XgrammarGrammar(matcher, never=self._silent.difference(end_token_ids))


class XgrammarGrammar:
    """See `Matcher`."""

    def __init__(self, matcher: Any, *, never: frozenset[int]) -> None:
        self._matcher = matcher
        #: Tokens without text: no mask has them, though the library would accept them.
        self._never = never

    @property
    def is_terminated(self) -> bool:
        """See `Matcher.is_terminated`."""
        return bool(self._matcher.is_terminated())

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Matcher.fill_mask`."""
        self._matcher.fill_next_token_bitmask(bits, row)

    def accept(self, token_id: int) -> bool:
        """See `Matcher.accept`."""
        if token_id in self._never or self.is_terminated:
            return False
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        if num_tokens:
            self._matcher.rollback(num_tokens)


def _choice_rule(text: str) -> str:
    """Return the GBNF rule of a choice among strings; JSON's escapes are GBNF's."""
    choices = [json.dumps(choice, ensure_ascii=False) for choice in json.loads(text)]
    return "root ::= " + " | ".join(choices)
