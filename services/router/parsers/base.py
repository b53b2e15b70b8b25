"""Interfaces of parsers and formats. services/router/parsers/find.py finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.parsers.events import ParserEvent


#: A custom tool is shown to the model as a function with this parameter alone.
INPUT = "input"


class TextParser(Protocol):
    """Parses one answer's text as it arrives.

    The events do not depend on how the text is cut into pieces, once neighbours of one kind are
    joined. Nothing is evaluated and nothing raises: text that is no call is content, and no
    character of it is lost.
    """

    def feed(self, text: str) -> list[ParserEvent]:
        """Parse the next piece; return the events that it completed."""
        ...

    def finish(self) -> list[ParserEvent]:
        """Return the events of text that was held back until the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool that a request offers."""

    name: str
    #: JSON Schema of the arguments' object.
    parameters: Mapping[str, Any]
    #: The request's field that it came from, for errors.
    param: str = "tools"
    #: Whether it is a custom tool, shown to the model as a function.
    is_custom: bool = False
    #: Grammar of a custom tool's input in Lark; one in a regular expression is in `parameters`.
    lark: str | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether it is a custom tool whose input has a grammar."""
        if not self.is_custom:
            return False
        return self.lark is not None or "pattern" in self.parameters["properties"][INPUT]


#: The tools that an answer may call, by name.
Tools = Mapping[str, ToolSpec]


class ToolFormat(Protocol):
    """The format in which a family of models writes tool calls. It has no state: parsers do."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Tokens that belong to the format.

        If they are special tokens, the parser sees them, though other texts omit special tokens.
        """
        ...

    @property
    def reads_reasoning(self) -> bool:
        """Whether `parser` reads the reasoning as well, because calls stand among it."""
        ...

    def parser(self, tools: Tools) -> TextParser:
        """Return a parser for one answer to a request with these tools."""
        ...

    def schema_for(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any]:
        """Return the JSON Schema of an answer that consists of calls of `tools`.

        With `parallel` several calls, otherwise one. `forced_parser` reads each such answer
        completely.
        """
        ...

    def tag_for(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any]:
        """Return the same as a structural tag, which holds inputs to their grammars too."""
        ...

    def tag_among_text(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any] | None:
        """Return the structural tag of an answer with any text, and calls of `tools` among it.

        Inputs of custom tools are held to their grammars. None: the format's calls cannot be told
        from text by a grammar.
        """
        ...

    def forced_parser(self, tools: Tools) -> TextParser:
        """Return a parser for one answer that `schema_for` or `tag_for` constrained."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """The marks around an answer's reasoning."""

    begin: str
    end: str
    #: Whether the prompt contains the begin mark: the answer begins inside.
    is_open: bool


class ReasoningFormat(Protocol):
    """The format in which a family of models marks reasoning."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Tokens that belong to the format, as in ToolFormat."""
        ...

    def parser(self, prompt: str) -> TextParser:
        """Return a parser for one answer.

        The prompt's end may have begun or ended the reasoning.
        """
        ...

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """Return the marks of the reasoning in answers to this prompt; None if there is none.

        An answer with a grammar may reason between them if the tokenizer has a token for each.
        """
        ...
