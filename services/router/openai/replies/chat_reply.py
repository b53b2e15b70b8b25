"""The reply to a chat request: one object, or a chunk per piece."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET

from services.router.chat.whole import WholeAnswer
from services.router.openai.replies.chat_shapes import (
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    Message,
    delta_of,
    message_of,
)
from services.router.openai.replies.collect import collect, num_details, stop_reason
from services.router.openai.replies.hidden_states import hidden_states
from services.router.openai.replies.logprobs import chat_logprobs, label_of, prompt_logprobs
from services.router.openai.replies.responses import FINGERPRINT, EventTemplate, Tally, event
from services.router.parsers.events import ContentDelta, Finish
from shared.aside import aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Sequence

    from services.router.openai.replies.collect import Collected, CollectedAnswer
    from services.router.openai.schema.chat import ChatBody
    from services.router.parsers.events import ChatReader
    from services.router.request.generation import AnswerPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatHead:
    """Fields that are the same in every part of the reply."""

    id: str
    model: str
    role: str
    #: Text before every answer.
    echoed: str
    prompt_token_ids: tuple[int, ...]
    #: None unless the client wants it.
    prompt_text: str | None = None


class ChatReply:
    """Builds the reply to one request from the pieces of its answers."""

    def __init__(
        self,
        head: ChatHead,
        body: ChatBody,
        *,
        reader: ChatReader | None = None,
        reasons: bool = False,
    ) -> None:
        """Begin a reply.

        Without a `reader`, all text is content. `reasons`: messages have a reasoning field, even if
        it is empty.
        """
        self._head = head
        self._reader = reader
        self._reasons = reasons
        self._created = int(time.time())
        self._n = body.n or 1
        self._wants_logprobs = bool(body.logprobs)
        self._wants_prompt_logprobs = body.prompt_logprobs is not None
        self._wants_token_ids = bool(body.return_token_ids)
        self._wants_hidden_states = bool(body.return_hidden_states)
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_running_usage = bool(options and options.continuous_usage_stats)
        self._label = label_of(as_token_ids=body.return_tokens_as_token_ids)
        self._tally = Tally(len(head.prompt_token_ids))
        #: By begun answer: the template of its further text events.
        self._templates: dict[int, EventTemplate] = {}
        self._has_plain_chunks = not (
            self._wants_logprobs
            or self._wants_token_ids
            or self._wants_hidden_states
            or self._wants_running_usage
        )

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """Return the server-sent event of one piece. The first of each answer carries the role."""
        del place  # a chat has one prompt
        self._tally.add(piece)
        template = self._templates.get(piece.index)
        if self._reader is not None:
            return self._parsed_event(piece, self._reader, template)
        if template is not None and self._has_plain_chunks and piece.finish_reason is None:
            return template.fill(piece.text)
        return event(self._piece_chunk(piece))

    def _piece_chunk(self, piece: AnswerPiece) -> ChatChunk:
        is_first_of_all = not self._templates
        delta = Delta(content=piece.text)
        if piece.index not in self._templates:
            plain = self._chunk((ChunkChoice(piece.index, Delta(content=EventTemplate.MARK)),))
            self._templates[piece.index] = EventTemplate(plain)
            delta = Delta(self._head.role, self._head.echoed + piece.text)
        choice = ChunkChoice(piece.index, delta)
        if self._wants_logprobs:
            choice.logprobs = chat_logprobs(piece.details, self._label)
        if piece.finish_reason is not None:
            choice.finish_reason = piece.finish_reason.value
            choice.stop_reason = stop_reason(piece)
            choice.weight_version = piece.weight_version or UNSET
        chunk = self._chunk((choice,))
        if piece.finish_reason is not None and not self._wants_usage:
            chunk.system_fingerprint = FINGERPRINT
        if is_first_of_all:
            self._show_prompt(chunk)
        if self._wants_token_ids:
            choice.token_ids = piece.token_ids
        if self._wants_hidden_states:
            choice.hidden_states = hidden_states(piece.hidden_states)
        if self._wants_running_usage:
            chunk.usage = self._tally.so_far()
        return chunk

    def _parsed_event(
        self, piece: AnswerPiece, reader: ChatReader, template: EventTemplate | None
    ) -> bytes:
        """Return the server-sent events for what the reader finds in a piece; may be empty."""
        events = reader.read(piece)
        if template is not None and self._has_plain_chunks and len(events) == 1:
            [only] = events
            if isinstance(only, ContentDelta):
                return template.fill(only.text)
        choices = [ChunkChoice(piece.index, delta_of(each)) for each in events]
        if events and isinstance(events[-1], Finish):
            choices[-1].finish_reason = events[-1].reason
            choices[-1].stop_reason = events[-1].stop_reason
            choices[-1].weight_version = piece.weight_version or UNSET
        is_first_of_all = not self._templates
        if template is None:
            self._begin(piece.index, choices)
        elif not choices and not self._has_plain_chunks:
            choices = [ChunkChoice(piece.index, Delta())]
        chunks = [self._chunk((choice,)) for choice in choices]
        if chunks:
            if choices[-1].finish_reason is not None and not self._wants_usage:
                chunks[-1].system_fingerprint = FINGERPRINT
            self._describe(piece, chunks, is_first_of_all=is_first_of_all)
        return b"".join(map(event, chunks))

    def _begin(self, index: int, choices: list[ChunkChoice]) -> None:
        """Add the first chunk of an answer, with its role; make the template for later text."""
        head = self._head
        plain = self._chunk((ChunkChoice(index, Delta(content=EventTemplate.MARK)),))
        self._templates[index] = EventTemplate(plain)
        if head.echoed or not choices:
            choices.insert(0, ChunkChoice(index, Delta(content=head.echoed or None)))
        first = choices[0].delta
        first.role = head.role
        if not isinstance(first.content, str):
            first.content = None

    def _describe(
        self, piece: AnswerPiece, chunks: list[ChatChunk], *, is_first_of_all: bool
    ) -> None:
        """Add the requested details of a piece to its first chunk, the usage to all chunks."""
        [choice] = chunks[0].choices
        if self._wants_logprobs:
            choice.logprobs = chat_logprobs(piece.details, self._label)
        if is_first_of_all:
            self._show_prompt(chunks[0])
        if self._wants_token_ids:
            choice.token_ids = piece.token_ids
        if self._wants_hidden_states:
            choice.hidden_states = hidden_states(piece.hidden_states)
        if self._wants_running_usage:
            for chunk in chunks:
                chunk.usage = self._tally.so_far()

    def last_event(self) -> bytes:
        """Return the event with usage and timings if they were requested; otherwise empty."""
        if not self._wants_usage:
            return b""
        chunk = self._chunk(())
        chunk.usage = self._tally.final()
        chunk.timings = self._tally.timings
        chunk.system_fingerprint = FINGERPRINT
        return event(chunk)

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> ChatCompletion:
        """Return all answers in one object."""
        answers = [WholeAnswer() for _ in range(self._n)]
        if self._reader is not None:
            parts = _read(parts, self._reader, answers)
        found = await collect(parts, num_prompts=1, n=self._n, tally=self._tally)
        return await aside(num_details(found), lambda: self._completion(found[0], answers))

    def _completion(self, collected: Collected, answers: Sequence[WholeAnswer]) -> ChatCompletion:
        head = self._head
        reply = ChatCompletion(
            id=head.id,
            created=self._created,
            model=head.model,
            choices=[
                self._choice(i, answer, answers[i]) for i, answer in enumerate(collected.answers)
            ],
            usage=self._tally.final(),
            timings=self._tally.timings,
        )
        self._show_prompt(reply)
        if self._wants_prompt_logprobs and collected.prompt_details is not None:
            reply.prompt_logprobs = prompt_logprobs(collected.prompt_details)
            collected.prompt_details = None
        return reply

    def _choice(self, index: int, answer: CollectedAnswer, parsed: WholeAnswer) -> Choice:
        head = self._head
        if self._reader is None:
            message = Message(head.role, head.echoed + "".join(answer.texts))
        else:
            message = message_of(parsed, head.role, echoed=head.echoed, reasons=self._reasons)
        choice = Choice(index, message)
        choice.finish_reason = answer.finish_reason
        if parsed.finish is not None:
            choice.finish_reason = parsed.finish.reason
        choice.stop_reason = answer.stop_reason
        choice.weight_version = answer.weight_version or UNSET
        if self._wants_logprobs:
            choice.logprobs = chat_logprobs(answer.details, self._label)
            # Freed here, in a thread: many objects are freed slowly.
            answer.details.clear()
        if self._wants_token_ids:
            choice.token_ids = answer.token_ids
        if self._wants_hidden_states:
            choice.hidden_states = hidden_states(answer.hidden_states)
        return choice

    def _show_prompt(self, reply: ChatCompletion | ChatChunk) -> None:
        """Add the prompt's tokens and text, if they were requested."""
        if self._head.prompt_text is not None:
            reply.prompt_text = self._head.prompt_text
        if self._wants_token_ids:
            reply.prompt_token_ids = self._head.prompt_token_ids

    def _chunk(self, choices: tuple[ChunkChoice, ...]) -> ChatChunk:
        return ChatChunk(self._head.id, self._created, self._head.model, choices)


async def _read(
    parts: AsyncIterable[tuple[int, AnswerPiece]], reader: ChatReader, answers: list[WholeAnswer]
) -> AsyncIterator[tuple[int, AnswerPiece]]:
    """Yield the parts unchanged, after adding their events to `answers`."""
    async for place, piece in parts:
        answers[piece.index].add(reader.read(piece))
        yield place, piece
