"""The answer to a chat request: one object, or a chunk for every step of the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from services.router.openai.collect import collect, stop_reason
from services.router.openai.logprobs import (
    ChatLogprobs,
    PromptToken,
    chat_logprobs,
    label_of,
    prompt_logprobs,
)
from services.router.openai.responses import EventTemplate, Tally, UsageBody, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from services.router.generation import AnswerPiece, Timings
    from services.router.openai.collect import Answer
    from services.router.openai.schema_chat import ChatBody


class Delta(msgspec.Struct):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """A piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: str = "chat.completion.chunk"
    usage: UsageBody | UnsetType = UNSET
    timings: Timings | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Message(msgspec.Struct):
    """A whole message."""

    role: str
    content: str
    refusal: str | None = None


class Choice(msgspec.Struct):
    """A whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """All answers."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    timings: Timings | None
    object: str = "chat.completion"
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, PromptToken] | None] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatHead:
    """What is the same for every part of the reply."""

    id: str
    model: str
    role: str
    #: Put in front of every answer.
    echoed: str
    prompt_token_ids: tuple[int, ...]


class ChatReply:
    """Builds the reply to one request from the pieces of its answers."""

    def __init__(self, head: ChatHead, body: ChatBody) -> None:
        self._head = head
        self._created = int(time.time())
        self._n = body.n or 1
        self._wants_logprobs = bool(body.logprobs)
        self._wants_prompt_logprobs = body.prompt_logprobs is not None
        self._wants_token_ids = bool(body.return_token_ids)
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_running_usage = bool(options and options.continuous_usage_stats)
        self._label = label_of(as_token_ids=body.return_tokens_as_token_ids)
        self._tally = Tally(len(head.prompt_token_ids))
        #: Of the answers that have begun, what their further text is put into.
        self._templates: dict[int, EventTemplate] = {}
        self._has_plain_chunks = not (
            self._wants_logprobs or self._wants_token_ids or self._wants_running_usage
        )

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """The event for one piece. Each answer's first has the role."""
        del place  # a chat has one prompt
        self._tally.add(piece)
        template = self._templates.get(piece.index)
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
        chunk = self._chunk((choice,))
        if self._wants_token_ids:
            choice.token_ids = piece.token_ids
            if is_first_of_all:
                chunk.prompt_token_ids = self._head.prompt_token_ids
        if self._wants_running_usage:
            chunk.usage = self._tally.so_far()
        return chunk

    def last_event(self) -> bytes:
        """Usage and timings, if they were asked for; else nothing."""
        if not self._wants_usage:
            return b""
        chunk = self._chunk(())
        chunk.usage = self._tally.final()
        chunk.timings = self._tally.timings
        return event(chunk)

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> ChatCompletion:
        """All answers in one object."""
        head = self._head
        [collected] = await collect(parts, num_prompts=1, n=self._n, tally=self._tally)
        reply = ChatCompletion(
            id=head.id,
            created=self._created,
            model=head.model,
            choices=[self._choice(i, answer) for i, answer in enumerate(collected.answers)],
            usage=self._tally.final(),
            timings=self._tally.timings,
        )
        if self._wants_token_ids:
            reply.prompt_token_ids = head.prompt_token_ids
        if self._wants_prompt_logprobs and collected.prompt_details is not None:
            reply.prompt_logprobs = prompt_logprobs(collected.prompt_details)
        return reply

    def _choice(self, index: int, answer: Answer) -> Choice:
        text = self._head.echoed + "".join(answer.texts)
        choice = Choice(index, Message(self._head.role, text))
        choice.finish_reason = answer.finish_reason
        choice.stop_reason = answer.stop_reason
        if self._wants_logprobs:
            choice.logprobs = chat_logprobs(answer.details, self._label)
        if self._wants_token_ids:
            choice.token_ids = answer.token_ids
        return choice

    def _chunk(self, choices: tuple[ChunkChoice, ...]) -> ChatChunk:
        return ChatChunk(self._head.id, self._created, self._head.model, choices)
