"""POST /v1/chat/completions/derender and /v1/completions/derender: tokens as a reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from baton.v1 import common_pb2
from services.router.answer.stream import new_text
from services.router.answer.wire import token_detail
from services.router.chat.tools import plan_reading
from services.router.openai.errors import FieldError
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.request_id import response_id
from services.router.openai.reading.prompts import check_vocabulary
from services.router.openai.reading.tools import read_tools
from services.router.openai.replies.chat_reply import ChatHead, ChatReply
from services.router.openai.replies.completion_reply import CompletionReply, EchoedPrompt
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.tokens_api.derender_schema import (
    DerenderChatBody,
    DerenderCompletionBody,
)
from services.router.parsers.budget import end_of
from services.router.request.generation import AnswerPiece
from services.router.usage import Usage
from shared.aside import aside
from shared.generation.params import GenerationParams
from shared.request.answer import FinishReason
from shared.request.repetition import text_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from services.router.openai.backend import Backend
    from services.router.openai.schema.base import GenerationBody
    from services.router.openai.tokens_api.derender_schema import (
        Candidate,
        Position,
        TokenChoice,
        TokenReply,
    )

_PREFIXES = ("chatcmpl", "cmpl")


class DerenderEndpoints:
    """The endpoints that write replies and generate nothing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def chat(self, request: Request) -> Response:
        """Return the reply to a chat whose answers are given as tokens."""
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, DerenderChatBody, raw, backend.unknown_fields)
        model = backend.models.resolve(body.model).name
        chat = body.chat_request or ChatBody.model_validate(
            {"messages": [{"role": "user", "content": ""}]}
        )
        reply_of = body.generate_response
        prompt_ids = body.prompt_token_ids or reply_of.prompt_token_ids or []
        plan = plan_reading(
            read_tools(chat, backend.limits),
            backend.formats,
            include_reasoning=chat.include_reasoning is not False,
        )
        params = self._params(chat, shown=plan.shown_token_ids(backend.tokenizer))
        pieces = await aside(
            len(raw), lambda: self._pieces(reply_of, params, prompt_ids, body.prompt_tokens)
        )
        chat = chat.model_copy(update={"n": len(pieces)})
        reader = None if plan.is_plain else plan.new_reader(end_of(prompt_ids, backend.tokenizer))
        head = ChatHead(
            id=response_id(request, _PREFIXES[0]),
            model=model,
            role="assistant",
            echoed="",
            prompt_token_ids=tuple(prompt_ids),
        )
        reply = ChatReply(head, chat, reader=reader, reasons=plan.reasoning is not None)
        return json_response(await reply.whole(_parts([pieces])))

    async def completions(self, request: Request) -> Response:
        """Return the reply to prompts whose answers are given as tokens."""
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, DerenderCompletionBody, raw, backend.unknown_fields)
        model = backend.models.resolve(body.model).name
        asked = body.completion_request or CompletionBody(prompt="")
        replies = body.generate_responses
        counts = _one_each("prompt_tokens", body.prompt_tokens, len(replies))
        ids = _one_each("prompt_token_ids", body.prompt_token_ids, len(replies))
        params = self._params(asked)
        prompts = [ids[i] or replies[i].prompt_token_ids or [] for i in range(len(replies))]
        pieces = await aside(
            len(raw),
            lambda: [
                self._pieces(each, params, prompts[i], counts[i]) for i, each in enumerate(replies)
            ],
        )
        n = len(pieces[0])
        if any(len(answers) != n for answers in pieces):
            message = "generate_responses must all have the same number of choices"
            raise FieldError(message, param="generate_responses")
        reply = CompletionReply(
            id=response_id(request, _PREFIXES[1]),
            model=model,
            body=asked.model_copy(update={"n": n, "echo": False}),
            prompts=[EchoedPrompt(token_ids=tuple(prompt)) for prompt in prompts],
        )
        return json_response(await reply.whole(_parts(pieces)))

    def _params(
        self, body: GenerationBody, *, shown: frozenset[int] = frozenset()
    ) -> GenerationParams:
        """Return what decides on the text of tokens."""
        self._backend.tokenizer.require_text("generate_responses")
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        return GenerationParams(
            stop=tuple(stop),
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            min_tokens=body.min_tokens or 0,
            skip_special_tokens=body.skip_special_tokens is not False,
            spaces_between_special_tokens=body.spaces_between_special_tokens is not False,
            shown_token_ids=shown,
        )

    def _pieces(
        self,
        reply: TokenReply,
        params: GenerationParams,
        prompt_ids: Sequence[int],
        num_prompt_tokens: int | None,
    ) -> list[AnswerPiece]:
        """Return every answer as one piece; the last one has the usage."""
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(len(choices))):
            message = "the choices must be numbered from 0"
            raise FieldError(message, param="generate_response.choices")
        num_tokens = sum(len(choice.token_ids) for choice in choices)
        prompt = len(prompt_ids) if num_prompt_tokens is None else num_prompt_tokens
        usage = Usage(prompt_tokens=prompt, completion_tokens=num_tokens)
        return [
            self._piece(choice, params, prompt_ids, usage=usage if choice is choices[-1] else None)
            for choice in choices
        ]

    def _piece(
        self,
        choice: TokenChoice,
        params: GenerationParams,
        prompt_ids: Sequence[int],
        *,
        usage: Usage | None,
    ) -> AnswerPiece:
        backend = self._backend
        ids = choice.token_ids
        check_vocabulary(ids, backend.models, param="generate_response.choices")
        stop_id = self._stop_token(choice)
        text = new_text(backend.tokenizer, params, prompt_ids).feed(
            ids, final=True, stop_token_id=stop_id
        )
        reason: FinishReason = FinishReason(choice.finish_reason)
        end = text_end(text)
        content = None if choice.logprobs is None else choice.logprobs.content
        return AnswerPiece(
            index=choice.index,
            text=text.text,
            token_ids=tuple(ids[: text.num_tokens]),
            details=tuple(
                token_detail(backend.tokenizer, _position(each))
                for each in (content or [])[: text.num_tokens]
            ),
            finish_reason=reason if end is None else end[0],
            stop_string=end[1] if end is not None else _as_text(choice.stop_reason),
            stop_token_id=choice.stop_reason
            if end is None and isinstance(choice.stop_reason, int)
            else None,
            usage=usage,
        )

    def _stop_token(self, choice: TokenChoice) -> int | None:
        """Return the last token if it ended the answer. Other servers say nothing of end tokens."""
        last = choice.token_ids[-1] if choice.token_ids else None
        if choice.finish_reason != "stop" or last is None:
            return None
        ends = choice.stop_reason == last or (
            choice.stop_reason is None and last in self._backend.tokenizer.eos_token_ids
        )
        return last if ends else None


async def _parts(
    answers: Iterable[Iterable[AnswerPiece]],
) -> AsyncIterator[tuple[int, AnswerPiece]]:
    for place, pieces in enumerate(answers):
        for piece in pieces:
            yield place, piece


def _position(position: Position) -> common_pb2.PositionLogprobs:
    return common_pb2.PositionLogprobs(
        chosen=_candidate(position), top=[_candidate(each) for each in position.top_logprobs]
    )


def _candidate(token: Candidate) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=token.token_id, logprob=token.logprob, rank=token.rank or 0
    )


def _as_text(reason: str | int | None) -> str | None:
    return reason if isinstance(reason, str) else None


def _one_each(param: str, values: list[Any] | None, num: int) -> list[Any]:
    if values is None:
        return [None] * num
    if len(values) != num:
        message = f"{param} must hold one value per response, {num}, not {len(values)}"
        raise FieldError(message, param=param)
    return values
