"""Between `baton.v1.Grammar` and `GrammarSpec`; routers and workers both need it."""

from __future__ import annotations

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking

_KINDS = {
    common_pb2.GRAMMAR_KIND_JSON_SCHEMA: GrammarKind.JSON_SCHEMA,
    common_pb2.GRAMMAR_KIND_JSON_OBJECT: GrammarKind.JSON_OBJECT,
    common_pb2.GRAMMAR_KIND_REGEX: GrammarKind.REGEX,
    common_pb2.GRAMMAR_KIND_CHOICE: GrammarKind.CHOICE,
    common_pb2.GRAMMAR_KIND_EBNF: GrammarKind.EBNF,
    common_pb2.GRAMMAR_KIND_STRUCTURAL_TAG: GrammarKind.STRUCTURAL_TAG,
}
_WIRE_KINDS = {kind: wire for wire, kind in _KINDS.items()}


def grammar_from_wire(message: common_pb2.Grammar) -> GrammarSpec:
    """Convert a grammar. Raises InvalidRequestError if its kind is unknown."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequestError(
            f"grammar: there is no kind {message.kind}; this process may be older than its caller",
            param="grammar",
        )
    return GrammarSpec(
        kind=kind,
        text=message.text,
        strict=not message.HasField("strict") or message.strict,
        any_whitespace=not message.HasField("any_whitespace") or message.any_whitespace,
        param=message.param or "grammar",
        owner=message.owner,
        thinking=thinking_from_wire(message.thinking) if message.HasField("thinking") else None,
    )


def grammar_to_wire(spec: GrammarSpec) -> common_pb2.Grammar:
    """All fields; what has its usual value is left out."""
    return common_pb2.Grammar(
        kind=_WIRE_KINDS[spec.kind],
        text=spec.text,
        strict=None if spec.strict else False,
        any_whitespace=None if spec.any_whitespace else False,
        param=None if spec.param == "grammar" else spec.param,
        owner=spec.owner,
        thinking=None if spec.thinking is None else thinking_to_wire(spec.thinking),
    )


def thinking_from_wire(message: common_pb2.Thinking) -> Thinking:
    """Return the record."""
    return Thinking(
        begin_token_id=message.begin_token_id,
        end_token_id=message.end_token_id,
        is_open=message.is_open,
    )


def thinking_to_wire(thinking: Thinking) -> common_pb2.Thinking:
    """Return the message."""
    return common_pb2.Thinking(
        begin_token_id=thinking.begin_token_id,
        end_token_id=thinking.end_token_id,
        is_open=thinking.is_open,
    )
