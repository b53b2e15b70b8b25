"""What a parser of tool calls or of reasoning is. services/router/parsers/find.py finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.parsers.events import ParserEvent


class TextParser(Protocol):
    """Reads one answer's text as it comes.

    However the text is cut into pieces, the events are the same once neighbours of one kind are
    joined. Nothing is evaluated and nothing raises: what is no call is content, and no character
    of it is lost.
    """

    def feed(self, text: str) -> list[ParserEvent]:
        """Take the next piece; the events that it completed."""
        ...

    def finish(self) -> list[ParserEvent]:
        """The text has ended: what was held back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool that a request offers."""

    name: str
    #: JSON Schema of the arguments' object.
    parameters: Mapping[str, Any]
    #: The field that it came from, for errors.
    param: str = "tools"


class ToolFormat(Protocol):
    """How a family of models writes tool calls. It keeps no state: parsers do."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Tokens that belong to the format. Where they are special, they are shown to the parser,
        though special tokens are left out of texts otherwise.
        """
        ...

    def parser(self, tool_names: frozenset[str]) -> TextParser:
        """A parser for one answer to a request with these tools."""
        ...

    def schema_for(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any]:
        """The JSON Schema of an answer that calls one of `tools`, or several if `parallel`, and
        says nothing else. Each such answer is read completely by `forced_parser`.
        """
        ...

    def forced_parser(self, tool_names: frozenset[str]) -> TextParser:
        """A parser for one answer that was held to `schema_for`."""
        ...

    def is_format_of(self, template: str) -> bool:
        """Whether a chat template's source says that the model writes its calls this way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """What stands around an answer's reasoning."""

    begin: str
    end: str
    #: The prompt has opened it: the answer begins inside.
    is_open: bool


class ReasoningFormat(Protocol):
    """How a family of models marks reasoning."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """As in ToolFormat."""
        ...

    def parser(self, prompt: str) -> TextParser:
        """A parser for one answer. The prompt's end may have opened the reasoning, or closed it."""
        ...

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """Around the reasoning of an answer to this prompt; None if it has none. An answer that is
        held to a form may reason between them, where the tokenizer has a token for each.
        """
        ...

    def is_format_of(self, template: str) -> bool:
        """Whether a chat template's source says that the model reasons this way."""
        ...
