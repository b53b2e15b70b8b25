"""Readers of answers that say what a test tells them to, a list of events for each piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from services.router.parsers.events import (
    ChatEvent,
    ChatReader,
    ContentDelta,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from services.router.request.generation import AnswerPiece
from services.router.usage import Usage
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    Said = Sequence[Sequence[ChatEvent]]


class ScriptedReader:
    """Gives the events of one answer; the text of its pieces does not matter."""

    def __init__(self, said: Said) -> None:
        self._said = iter(said)

    def read(self, _piece: AnswerPiece) -> list[ChatEvent]:
        """See AnswerReader."""
        return list(next(self._said))


def reader_of(said: Said) -> ChatReader:
    """A reader of one answer that says this."""
    return ChatReader(lambda: ScriptedReader(said))


def pieces_of(said: Said, *, num_tokens: int = 1) -> Iterator[AnswerPiece]:
    """As many pieces as there are lists of events, each of so many tokens."""
    for i in range(len(said)):
        is_last = i == len(said) - 1
        yield AnswerPiece(
            index=0,
            text="x",
            token_ids=(5,) * num_tokens,
            finish_reason=FinishReason.STOP if is_last else None,
            usage=Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=num_tokens * len(said))
            if is_last
            else None,
        )


async def parts_of(said: Said) -> AsyncIterator[tuple[int, AnswerPiece]]:
    """The same, as the pipeline gives them."""
    for piece in pieces_of(said):
        yield 0, piece


_TEXTS = st.text(min_size=1, max_size=6)
_JSON = ('{"a": 1}', "{}", '{"b": {"c": "é"}}', "not json", "[1]")


@st.composite
def answers(draw: st.DrawFn) -> list[list[ChatEvent]]:
    """Any answer, in any number of pieces, some of which say nothing."""
    events: list[ChatEvent] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from("crt"), max_size=5)):
        if kind == "c":
            events += map(ContentDelta, draw(st.lists(_TEXTS, min_size=1, max_size=3)))
        elif kind == "r":
            events += map(ReasoningDelta, draw(st.lists(_TEXTS, min_size=1, max_size=3)))
        else:
            events.append(ToolCallBegin(num_calls, f"call_{num_calls}", draw(_TEXTS)))
            text = draw(st.sampled_from(_JSON))
            cut = draw(st.integers(0, len(text)))
            for part in filter(None, (text[:cut], text[cut:])):
                events.append(ToolCallArguments(num_calls, part))
            num_calls += 1
    reason = draw(st.sampled_from(["length", "tool_calls" if num_calls else "stop"]))
    events.append(Finish(reason))
    pieces: list[list[ChatEvent]] = [[]]
    for event in events:
        pieces[-1].append(event)
        pieces += [[] for _ in range(draw(st.integers(0, 2)))] if event is not events[-1] else []
    return pieces
