"""The reply to a completions request: one object, or a chunk per piece."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from services.router.openai.replies.collect import (
    Collected,
    CollectedAnswer,
    collect,
    num_details,
    stop_reason,
)
from services.router.openai.replies.hidden_states import HiddenStates, hidden_states
from services.router.openai.replies.logprobs import (
    CompletionLogprobs,
    CompletionLogprobsWriter,
    PromptToken,
    label_of,
    prompt_logprobs,
)
from services.router.openai.replies.responses import (
    FINGERPRINT,
    EventTemplate,
    Tally,
    UsageBody,
    event,
)
from shared.aside import aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from services.router.openai.schema.completion import CompletionBody
    from services.router.request.generation import AnswerPiece, TokenDetail
    from services.router.usage import Timings


class CompletionChoice(msgspec.Struct):
    """An answer, or a part of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    #: Null in whole answers that they are not asked for.
    token_ids: Sequence[int] | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET
    #: Null in a part without tokens.
    hidden_states: HiddenStates | UnsetType | None = UNSET
    prompt_logprobs: list[dict[int, PromptToken] | None] | UnsetType | None = UNSET
    #: In the answer's last part.
    weight_version: str | UnsetType = UNSET


class Completion(msgspec.Struct):
    """All answers, or an event of a stream."""

    id: str
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    object: str = "text_completion"
    #: Not in the middle of a stream.
    system_fingerprint: str | UnsetType = UNSET
    usage: UsageBody | UnsetType = UNSET
    timings: Timings | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoedPrompt:
    """A prompt, as it precedes its answers."""

    token_ids: tuple[int, ...]
    #: Empty unless the request asks for an echo.
    text: str = ""
    #: Text of the first token, which has no log probability.
    first_token: str = ""


class CompletionReply:
    """Builds the reply to one request from the pieces of its answers.

    Answer j to prompt i is the choice i * n + j.
    """

    def __init__(
        self, *, id: str, model: str, body: CompletionBody, prompts: Sequence[EchoedPrompt]
    ) -> None:
        self._id = id
        self._model = model
        self._created = int(time.time())
        self._prompts = prompts
        self._n = body.n or 1
        self._echo = bool(body.echo)
        self._wants_logprobs = body.logprobs is not None
        self._wants_prompt_logprobs = body.prompt_logprobs is not None
        self._wants_token_ids = bool(body.return_token_ids)
        self._wants_hidden_states = bool(body.return_hidden_states)
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_running_usage = bool(options and options.continuous_usage_stats)
        self._label = label_of(as_token_ids=body.return_tokens_as_token_ids)
        self._tally = Tally(sum(len(prompt.token_ids) for prompt in prompts))
        self._logprobs: dict[int, CompletionLogprobsWriter] = {}
        self._prompt_details: dict[int, tuple[TokenDetail | None, ...]] = {}
        #: By begun choice: the template of its further text events.
        self._templates: dict[int, EventTemplate] = {}
        self._has_plain_chunks = not (
            self._wants_logprobs
            or self._wants_token_ids
            or self._wants_hidden_states
            or self._wants_running_usage
        )

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """Return the event of one piece. The first event of each answer has the echoed prompt."""
        self._tally.add(piece)
        template = self._templates.get(place * self._n + piece.index)
        if template is not None and self._has_plain_chunks and piece.finish_reason is None:
            return template.fill(piece.text)
        return event(self._piece_chunk(place, piece))

    def _piece_chunk(self, place: int, piece: AnswerPiece) -> Completion:
        if piece.prompt_details is not None:
            self._prompt_details[place] = piece.prompt_details
        index = place * self._n + piece.index
        is_first = index not in self._logprobs
        choice = CompletionChoice(index, piece.text)
        if is_first:
            self._logprobs[index] = CompletionLogprobsWriter(self._label)
            plain = self._completion((CompletionChoice(index, EventTemplate.MARK),))
            self._templates[index] = EventTemplate(plain)
            choice.text = self._prompts[place].text + piece.text
        if self._wants_logprobs:
            choice.logprobs = self._write_logprobs(index, piece.details, with_prompt=is_first)
        if piece.finish_reason is not None:
            choice.finish_reason = piece.finish_reason.value
            choice.stop_reason = stop_reason(piece)
            choice.weight_version = piece.weight_version or UNSET
        if self._wants_token_ids:
            choice.token_ids = piece.token_ids
            if is_first:
                choice.prompt_token_ids = self._prompts[place].token_ids
        if self._wants_hidden_states:
            choice.hidden_states = hidden_states(piece.hidden_states)
        chunk = self._completion((choice,))
        if piece.finish_reason is not None and not self._wants_usage:
            chunk.system_fingerprint = FINGERPRINT
        if self._wants_running_usage:
            chunk.usage = self._tally.so_far()
        return chunk

    def last_event(self) -> bytes:
        """Return the event with usage and timings if they were requested; otherwise empty."""
        return event(self._with_totals(())) if self._wants_usage else b""

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> Completion:
        """Return all answers in one object."""
        num_prompts = len(self._prompts)
        prompts = await collect(parts, num_prompts=num_prompts, n=self._n, tally=self._tally)
        return await aside(num_details(prompts), lambda: self._whole(prompts))

    def _whole(self, prompts: Sequence[Collected]) -> Completion:
        choices = []
        for place, collected in enumerate(prompts):
            if collected.prompt_details is not None:
                self._prompt_details[place] = collected.prompt_details
            choices += [self._choice(place, i, a) for i, a in enumerate(collected.answers)]
            # Freed here, in a thread: many objects are freed slowly.
            collected.prompt_details = None
            self._prompt_details.pop(place, None)
        return self._with_totals(choices)

    def _choice(self, place: int, number: int, answer: CollectedAnswer) -> CompletionChoice:
        index = place * self._n + number
        prompt = self._prompts[place]
        choice = CompletionChoice(index, prompt.text + "".join(answer.texts))
        choice.finish_reason = answer.finish_reason
        choice.stop_reason = answer.stop_reason
        choice.weight_version = answer.weight_version or UNSET
        if self._wants_logprobs:
            self._logprobs[index] = CompletionLogprobsWriter(self._label)
            choice.logprobs = self._write_logprobs(index, answer.details, with_prompt=True)
            answer.details.clear()
        asked = self._wants_token_ids
        choice.token_ids = answer.token_ids if asked else None
        choice.prompt_token_ids = prompt.token_ids if asked else None
        if self._wants_hidden_states:
            choice.hidden_states = hidden_states(answer.hidden_states)
        choice.prompt_logprobs = None
        if self._wants_prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs(self._prompt_details.get(place, ()))
        return choice

    def _write_logprobs(
        self, index: int, details: Sequence[TokenDetail], *, with_prompt: bool
    ) -> CompletionLogprobs:
        place = index // self._n
        echoed = self._prompt_details.get(place, ()) if self._echo and with_prompt else ()
        first_token = self._prompts[place].first_token
        return self._logprobs[index].write((*echoed, *details), first_token)

    def _completion(self, choices: Sequence[CompletionChoice]) -> Completion:
        return Completion(self._id, self._created, self._model, choices)

    def _with_totals(self, choices: Sequence[CompletionChoice]) -> Completion:
        reply = self._completion(choices)
        reply.usage = self._tally.final()
        reply.timings = self._tally.timings
        reply.system_fingerprint = FINGERPRINT
        return reply
