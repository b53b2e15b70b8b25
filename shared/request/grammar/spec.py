"""What an answer must look like, as the client wrote it. Knows no backend and needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class GrammarKind(StrEnum):
    """How `GrammarSpec.text` is to be read."""

    #: A JSON Schema, draft 2020-12.
    JSON_SCHEMA = "json_schema"
    #: Any JSON object; there is no text.
    JSON_OBJECT = "json_object"
    #: A regular expression that the whole answer matches.
    REGEX = "regex"
    #: A JSON list of strings, one of which is the answer.
    CHOICE = "choice"
    #: A context-free grammar as llama.cpp writes them (GBNF), with the start rule `root`, or in
    #: Lark, with the start rule `start`.
    EBNF = "ebnf"
    #: A structural tag of xgrammar: JSON that says where tags begin, and what is inside them.
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """What a model thinks before it answers, by the tokens around it."""

    #: Opens it, as the answer's first token; an answer that begins otherwise does not think.
    begin_token_id: int
    #: Closes it: the answer proper begins behind this token.
    end_token_id: int
    #: The prompt has opened it.
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """Specs that differ in `param` and `thinking` alone compile to the same grammar."""

    kind: GrammarKind
    text: str = ""
    #: Objects and lists of a JSON Schema have nothing that it does not name, unless it says itself
    #: what else they may have. False: as the JSON Schema standard has it.
    strict: bool = True
    #: JSON may be laid out in any way. False: on one line.
    any_whitespace: bool = True
    #: What the client calls it: errors name it.
    param: str = field(default="grammar", compare=False)
    #: Whose it is: an opaque name of the tenant. Owners share no processor time and no process.
    owner: bytes = b""
    #: If set, the answer may think first, and the grammar says what comes after that.
    thinking: Thinking | None = None

    @property
    def unthinking(self) -> GrammarSpec:
        """What is compiled: the grammar alone."""
        return self if self.thinking is None else replace(self, thinking=None)
