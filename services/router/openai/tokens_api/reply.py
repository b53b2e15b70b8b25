"""The reply to POST /inference/v1/generate: one object, or a chunk per piece."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from services.router.openai.replies.collect import collect, num_details, stop_reason
from services.router.openai.replies.hidden_states import hidden_states
from services.router.openai.replies.logprobs import chat_logprobs, label_of, prompt_logprobs
from services.router.openai.replies.responses import Tally, event
from services.router.openai.tokens_api.shapes import (
    Generated,
    GeneratedChoice,
    WeightVersion,
    token_logprobs,
)
from shared.aside import aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from services.router.openai.replies.collect import Collected
    from services.router.openai.replies.hidden_states import HiddenStates
    from services.router.openai.replies.logprobs import ChatLogprobs
    from services.router.openai.tokens_api.schema import GenerateBody
    from services.router.openai.tokens_api.shapes import TokenLogprobs
    from services.router.request.generation import AnswerPiece, TokenDetail


class GenerateReply:
    """Builds the reply to one request from the pieces of its answers."""

    def __init__(self, *, request_id: str, model: str, body: GenerateBody) -> None:
        self._request_id = request_id
        self._model = model
        self._created = int(time.time())
        self._mode = body.output_mode or "tokens"
        self._n = body.sampling_params.n or 1
        self._wants_logprobs = body.sampling_params.logprobs is not None
        self._wants_hidden_states = bool(body.sampling_params.return_hidden_states)
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_running_usage = bool(options and options.continuous_usage_stats)
        self._label = label_of(as_token_ids=body.sampling_params.return_tokens_as_token_ids)
        self._prompt_token_ids = body.token_ids if body.return_token_ids else None
        self._has_begun = False
        #: Of each answer so far.
        self._num_tokens: Counter[int] = Counter()
        self._tally = Tally(len(body.token_ids))

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """Return the event of one piece."""
        del place  # there is one prompt
        self._tally.add(piece)
        self._num_tokens[piece.index] += len(piece.token_ids)
        choice = GeneratedChoice(
            piece.index,
            piece.token_ids,
            logprobs=self._logprobs(piece.details),
            text=piece.text if self._mode == "text" else UNSET,
            hidden_states=self._hidden_states(piece.hidden_states),
        )
        if piece.finish_reason is not None:
            choice.finish_reason = piece.finish_reason.value
            choice.stop_reason = stop_reason(piece)
            choice.weight_version = piece.weight_version or UNSET
            num_tokens = self._num_tokens[piece.index]
            choice.weight_versions = _versions(piece.weight_version, num_tokens)
        chunk = self._generated((choice,))
        if not self._has_begun:
            self._has_begun = True
            chunk.prompt_token_ids = self._prompt_token_ids
        if self._wants_running_usage:
            chunk.usage = self._tally.so_far()
        return event(chunk)

    def last_event(self) -> bytes:
        """Return the event with the usage, if it was requested; otherwise empty."""
        if not self._wants_usage:
            return b""
        chunk = self._generated(())
        chunk.usage = self._tally.final()
        return event(chunk)

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> Generated:
        """Return all answers in one object."""
        found = await collect(parts, num_prompts=1, n=self._n, tally=self._tally)
        return await aside(num_details(found), lambda: self._whole(found[0]))

    def _whole(self, found: Collected) -> Generated:
        reply = self._generated(
            [
                GeneratedChoice(
                    index,
                    answer.token_ids,
                    answer.finish_reason,
                    answer.stop_reason,
                    self._logprobs(answer.details),
                    "".join(answer.texts) if self._mode == "text" else UNSET,
                    answer.weight_version or UNSET,
                    _versions(answer.weight_version, len(answer.token_ids)),
                    self._hidden_states(answer.hidden_states),
                )
                for index, answer in enumerate(found.answers)
            ]
        )
        reply.usage = self._tally.final()
        reply.prompt_token_ids = self._prompt_token_ids
        if found.prompt_details is not None:
            reply.prompt_logprobs = prompt_logprobs(found.prompt_details)
        # Freed here, in a thread: many objects are freed slowly.
        found.prompt_details = None
        for answer in found.answers:
            answer.details.clear()
        return reply

    def _logprobs(self, details: Sequence[TokenDetail]) -> TokenLogprobs | ChatLogprobs | None:
        if not self._wants_logprobs:
            return None
        if self._mode == "text":
            return chat_logprobs(details, self._label)
        return token_logprobs(details)

    def _hidden_states(self, rows: Sequence[bytes]) -> HiddenStates | UnsetType | None:
        return hidden_states(rows) if self._wants_hidden_states else UNSET

    def _generated(self, choices: Sequence[GeneratedChoice]) -> Generated:
        return Generated(self._request_id, self._model, self._created, choices, self._mode)


def _versions(version: str, num_tokens: int) -> tuple[WeightVersion] | None:
    """Workers of before versions have none."""
    return (WeightVersion(version, 0, num_tokens),) if version else None
