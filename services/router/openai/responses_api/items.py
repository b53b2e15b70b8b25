"""Builds the items of a response, and the events of a stream about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from services.router.openai.replies.logprobs import chat_logprobs, label_of
from services.router.openai.responses_api import output as out
from services.router.parsers.events import (
    ContentDelta,
    CustomCallBegin,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.router.openai.replies.logprobs import ChatTokenLogprobs
    from services.router.parsers.events import ChatEvent
    from services.router.request.generation import TokenDetail

_LABEL = label_of(as_token_ids=False)
COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class ItemWriter:
    """Builds items. At most one is open at a time: another kind of content closes it."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        #: Finished items.
        self.items: list[out.Item] = []
        self._open: out.Item | None = None
        self._texts: list[str] = []
        #: Log probabilities of the open item, and of tokens whose text is not there yet.
        self._logprobs: list[ChatTokenLogprobs] = []
        self._pending: list[ChatTokenLogprobs] = []

    def note(self, details: Sequence[TokenDetail]) -> None:
        """Take the log probabilities of tokens, before the events of their text.

        Those of reasoning and of calls are left out; tokens without a text, such as marks, count to
        what follows them.
        """
        if details:
            self._pending += chat_logprobs(details, _LABEL).content

    def add(self, event: ChatEvent) -> Iterator[out.Event]:
        """Add one event of the answer; yield the events for the client."""
        match event:
            case ContentDelta(text=text):
                yield from self._add_text(text)
            case ReasoningDelta(text=text):
                yield from self._add_reasoning(text)
            case ToolCallBegin():
                self._pending = []
                yield from self.close(COMPLETED)
                yield self._begin(self._call(event))
            case ToolCallArguments(text=text) if self._open is not None:
                self._texts.append(text)
                self._pending = []
                is_custom = isinstance(self._open, out.CustomCallOutput)
                kind = out.InputDelta if is_custom else out.ArgumentsDelta
                yield kind(output_index=len(self.items), item_id=self._open.id, delta=text)

    def close(self, status: str) -> Iterator[out.Event]:
        """Finish the open item, if there is one, with this status; yield the events."""
        item, place, text = self._open, len(self.items), "".join(self._texts)
        if item is None:
            return
        if isinstance(item, out.CustomCallOutput):
            item.input = text
            yield out.InputDone(output_index=place, item_id=item.id, input=text)
        elif isinstance(item, out.CallOutput):
            item.arguments = text
            yield out.ArgumentsDone(
                output_index=place, item_id=item.id, name=item.name, arguments=text
            )
        elif isinstance(item, out.MessageOutput):
            part = out.OutputText(text, logprobs=self._logprobs)
            item.content = (part,)
            yield out.TextDone(
                output_index=place, item_id=item.id, text=text, logprobs=self._logprobs
            )
            yield out.PartDone(output_index=place, item_id=item.id, part=part)
        else:
            thought = out.ReasoningText(text)
            item.content = (thought,)
            yield out.ReasoningDone(output_index=place, item_id=item.id, text=text)
            yield out.PartDone(output_index=place, item_id=item.id, part=thought)
        item.status = status
        self._open = None
        self._texts, self._logprobs = [], []
        self.items.append(item)
        yield out.ItemDone(output_index=place, item=item)

    def ensure_message(self) -> Iterator[out.Event]:
        """Begin an empty message if the answer has no item."""
        if self._open is None and not self.items:
            yield from self._begin_message()

    def _add_text(self, text: str) -> Iterator[out.Event]:
        if not isinstance(self._open, out.MessageOutput):
            yield from self.close(COMPLETED)
            yield from self._begin_message()
        self._texts.append(text)
        found, self._pending = self._pending, []
        self._logprobs += found
        yield out.TextDelta(
            output_index=len(self.items), item_id=self._open_id(), delta=text, logprobs=found
        )

    def _begin_message(self) -> Iterator[out.Event]:
        item = out.MessageOutput(self._id("msg"), IN_PROGRESS, ())
        yield self._begin(item)
        place = len(self.items)
        yield out.PartAdded(output_index=place, item_id=item.id, part=out.OutputText(""))

    def _add_reasoning(self, text: str) -> Iterator[out.Event]:
        self._pending = []
        if not isinstance(self._open, out.ReasoningOutput):
            yield from self.close(COMPLETED)
            item = out.ReasoningOutput(self._id("rs"), IN_PROGRESS, ())
            yield self._begin(item)
            place = len(self.items)
            yield out.PartAdded(output_index=place, item_id=item.id, part=out.ReasoningText(""))
        self._texts.append(text)
        yield out.ReasoningDelta(output_index=len(self.items), item_id=self._open_id(), delta=text)

    def _begin(self, item: out.Item) -> out.Event:
        self._open = item
        # A copy: the item itself may be finished before the event has been encoded.
        return out.ItemAdded(output_index=len(self.items), item=msgspec.structs.replace(item))

    def _call(self, event: ToolCallBegin) -> out.Item:
        if isinstance(event, CustomCallBegin):
            return out.CustomCallOutput(self._id("ctc"), event.id, event.name, "", IN_PROGRESS)
        return out.CallOutput(self._id("fc"), event.id, event.name, "", IN_PROGRESS)

    def _open_id(self) -> str:
        return "" if self._open is None else self._open.id

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._request_id}_{len(self.items)}"
