"""What every parser of tool calls or of reasoning must do, and how tests read what it says."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.router.chat.whole import WholeAnswer
from services.router.parsers.base import ToolSpec
from services.router.parsers.events import Finish
from services.router.request.generation import AnswerPiece
from shared.request.answer import FinishReason
from shared.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from services.router.parsers.base import TextParser
    from services.router.parsers.events import ParserEvent
    from services.router.parsers.plan import ReadingPlan
    from shared.text.tokenizer import Tokenizer

    NewParser = Callable[[], TextParser]

#: Characters between two cuts of a text: most marks lie between two of them.
GAP = 13


@dataclass(frozen=True, slots=True)
class Said:
    """What a text says, however it came. Ids of calls are left out: they are random."""

    content: str = ""
    reasoning: str = ""
    #: Name and arguments.
    calls: Sequence[tuple[str, str]] = field(default_factory=list)


def tools_named(*names: str, **schemas: Mapping[str, Any]) -> dict[str, ToolSpec]:
    """Return tools of these names: any arguments, or those of a schema."""
    given = {**{name: {"type": "object"} for name in names}, **schemas}
    return {name: ToolSpec(name=name, parameters=schema) for name, schema in given.items()}


def read(parser: TextParser, pieces: Iterable[str]) -> Said:
    """Feed all pieces; checks each event's form on the way."""
    answer = WholeAnswer()
    for piece in pieces:
        _add(answer, parser.feed(piece))
    _add(answer, parser.finish())
    ids = [call.id for call in answer.calls]
    assert len(set(ids)) == len(ids)
    calls = [(call.name, call.arguments) for call in answer.calls]
    return Said(answer.content, answer.reasoning, calls)


def check_every_split(new_parser: NewParser, text: str) -> Said:
    """Whole, character by character, and in pieces, with a cut at every place: it says the same."""
    whole = read(new_parser(), [text])
    assert read(new_parser(), text) == whole
    for first in range(min(GAP, len(text) + 1)):
        pieces = [piece for cut in _cut(text, first) for piece in (cut, "")]
        assert read(new_parser(), pieces) == whole, pieces
    for place in range(len(text) % GAP, len(text) + 1, GAP):
        assert read(new_parser(), [text[:place], text[place:]]) == whole, text[:place]
    return whole


def check_every_byte(new_parser: NewParser, text: str, tokenizer: Tokenizer) -> None:
    """As it comes from a model: a token for each byte, in steps with a cut at every place, also
    within characters. `tokenizer` has a token for every byte.
    """
    whole = read(new_parser(), [text])
    ids = _byte_ids(text, tokenizer)
    for first in range(min(GAP, len(ids) + 1)):
        stream = IncrementalDetokenizer(tokenizer)
        pieces = [*map(stream.feed, _cut(ids, first)), stream.flush()]
        assert read(new_parser(), pieces) == whole, first


class AnswerParser:
    """The reader of an answer, reasoning and calls together, as if it were one parser."""

    def __init__(self, plan: ReadingPlan, prompt: str = "") -> None:
        self._reader = plan.new_reader(prompt)

    def feed(self, text: str) -> list[ParserEvent]:
        """See TextParser."""
        return self._read(AnswerPiece(index=0, text=text))

    def finish(self) -> list[ParserEvent]:
        """See TextParser."""
        return self._read(AnswerPiece(index=0, finish_reason=FinishReason.STOP))

    def _read(self, piece: AnswerPiece) -> list[ParserEvent]:
        return [event for event in self._reader.read(piece) if not isinstance(event, Finish)]


def check_nothing_lost(text: str, said: Said, *, tags: Sequence[str] = ()) -> None:
    """All that is said was written, in this order; without calls, all that was written is said.

    With the `tags` of reasoning, those may be gone, once each, and white space around them.
    """
    rest = iter(text)
    assert all(char in rest for char in said.content), "content that was not written"
    if said.calls:
        return
    if not tags:
        assert said.content == text
        return
    num_spaces = sum(map(str.isspace, text))
    num_said = len(said.content) + len(said.reasoning)
    assert num_said >= len(text) - sum(map(len, tags)) - num_spaces


def _cut(text: Any, first: int) -> list[Any]:
    """Its pieces, cut behind so many and then every GAP."""
    return [text[:first], *(text[at : at + GAP] for at in range(first, len(text), GAP))]


def _byte_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    by_bytes = _ids_by_bytes(tokenizer)
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@functools.cache
def _ids_by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    return {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}


def _add(answer: WholeAnswer, events: list[ParserEvent]) -> None:
    for event in events:
        text = getattr(event, "text", None)
        assert text != "", "an event without text"
        index = getattr(event, "index", None)
        answer.add([event])
        if index is not None:
            assert index == len(answer.calls) - 1, "calls overlap"
