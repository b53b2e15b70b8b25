"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.chat.tools import hold_to_calls, plan_reading
from services.router.openai.errors import FieldError
from services.router.openai.generating.endpoint import answer, encode
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.request_id import generation_ids, request_names, response_id
from services.router.openai.reading.answer_defaults import with_defaults
from services.router.openai.reading.as_chat import params_named
from services.router.openai.reading.messages import answer_role, echoed_text, encode_chat
from services.router.openai.reading.params import check_stream_options, read_params
from services.router.openai.reading.prompts import Prompt, check_prompt, shortened
from services.router.openai.reading.tools import read_tools
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.chat_reply import ChatHead, ChatReply
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.schema.chat import ChatBody
from services.router.parsers.budget import bound_thinking
from services.router.request.generation import GenerationRequest
from shared.generation.limits import check_num_tokens

if TYPE_CHECKING:
    from services.router.chat.tools import ToolUse
    from services.router.openai.backend import Backend
    from services.router.parsers.events import ChatReader
    from services.router.parsers.plan import ReadingPlan
    from shared.generation.params import GenerationParams

_PREFIX = "chatcmpl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """A chat's request to the pipeline, and how to parse its answers.

    Other APIs over chats build a ChatBody, call `ChatCompletions.prepare`, run `generation` and
    write the events that `new_reader()` makes of each piece.
    """

    generation: GenerationRequest
    plan: ReadingPlan
    #: Text of the prompt.
    prompt: str

    def new_reader(self) -> ChatReader:
        """Return a reader for the pieces of all answers."""
        return self.plan.new_reader(self.prompt)


class ChatCompletions:
    """The endpoint POST /v1/chat/completions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: Request) -> Response:
        """Return the next message of a conversation, whole or as a stream."""
        arrival_s = arrived_s(request)
        raw = await read_body(request, self._backend.limits)
        return await self.respond(request, raw, arrival_s)

    async def respond(self, request: Request, raw: bytes, arrival_s: float) -> Response:
        """Do as `create` with a body that has been read."""
        backend = self._backend
        body = await parse_body(request, ChatBody, raw, backend.unknown_fields)
        body = with_defaults(body, backend.answers)
        chat = await self.prepare(request, body, raw, arrival_s)
        tap = ClientTap()
        parts = stream_answers(backend.generator, [chat.generation], tap.outlet())
        return await answer(
            request, parts, self.reply(request, body, chat), stream=bool(body.stream), tap=tap
        )

    def reply(self, request: Request, body: ChatBody, chat: PreparedChat) -> ChatReply:
        """Return the writer of the reply to a prepared chat."""
        role = answer_role(body, self._backend.answers.response_role)
        head = ChatHead(
            id=response_id(request, _PREFIX),
            model=chat.generation.model,
            role=role,
            echoed=echoed_text(body, role, echo=body.echo),
            prompt_token_ids=chat.generation.shown_token_ids,
            prompt_text=chat.prompt if body.return_prompt_text else None,
        )
        return ChatReply(
            head,
            body,
            reader=None if chat.plan.is_plain else chat.new_reader(),
            reasons=chat.plan.reasoning is not None,
        )

    async def prepare(
        self, request: Request, body: ChatBody, raw: bytes, arrival_s: float
    ) -> PreparedChat:
        """Check `body`, render and tokenise it. `raw` is the HTTP body as it came.

        Raises:
            InvalidRequestError: a field is wrong; `param` names it.
        """
        backend = self._backend
        asked = backend.models.resolve(body.model)
        backend.require_answers()
        check_stream_options(body)
        max_tokens, max_tokens_param = _max_tokens(body)
        (prompt, params, plan), tokenize_ms = await encode(
            raw, lambda: self._read(body, max_tokens, max_tokens_param)
        )
        caller = backend.caller_of(request)
        [request_id] = generation_ids(request, _PREFIX, 1)
        generation = GenerationRequest(
            request_id=request_id,
            model=asked.name,
            adapter=asked.adapter,
            names=request_names(request, _PREFIX),
            prompt_token_ids=prompt.token_ids,
            embeds=prompt.embeds,
            params=params,
            priority=body.priority or 0,
            tenant=caller.tenant,
            cache_salt=caller.cache_salt(body.cache_salt),
            arrival_s=arrival_s,
            tokenize_ms=tokenize_ms,
            max_ttft_ms=body.max_ttft_ms,
            max_itl_ms=body.max_itl_ms,
        )
        return PreparedChat(generation=generation, plan=plan, prompt=prompt.text or "")

    def _read(
        self, body: ChatBody, max_tokens: int | None, max_tokens_param: str
    ) -> tuple[Prompt, GenerationParams, ReadingPlan]:
        """Return the prompt, the parameters, and how to parse the answers."""
        backend = self._backend
        use = read_tools(body, backend.limits)
        params, plan = self._read_params(body, use, max_tokens)
        prompt = self._encode(body, use)
        check_num_tokens(len(prompt.token_ids), backend.limits, param="messages")
        check_prompt(
            prompt.token_ids,
            backend.models,
            param="messages",
            embeds=prompt.embeds,
            max_tokens=max_tokens,
            max_tokens_param=max_tokens_param,
        )
        text = prompt.text or ""
        params = bound_thinking(params, backend.formats.reasoning, text, backend.tokenizer)
        plan, params = plan.hold(params, text, backend.tokenizer)
        return prompt, params, plan

    def _read_params(
        self, body: ChatBody, use: ToolUse, max_tokens: int | None
    ) -> tuple[GenerationParams, ReadingPlan]:
        """Return the parameters with what tools need, and how to parse the answers."""
        backend = self._backend
        with params_named({"logprobs": "top_logprobs"}):
            params = read_params(
                body, backend.limits, max_tokens=max_tokens, logprobs=_num_logprobs(body)
            )
        plan = plan_reading(
            use, backend.formats, include_reasoning=body.include_reasoning is not False
        )
        params = replace(params, shown_token_ids=plan.shown_token_ids(backend.tokenizer))
        return hold_to_calls(params, use, plan, backend.tokenizer), plan

    def _encode(self, body: ChatBody, use: ToolUse) -> Prompt:
        backend = self._backend
        special = bool(body.add_special_tokens)
        prompt = encode_chat(
            body,
            backend.template_of(body),
            backend.tokenizer,
            backend.limits,
            tools=use.offered,
            add_special_tokens=special,
            embeds=backend.embeds,
        )
        return shortened(prompt, body, backend.models, backend.tokenizer, has_head=special)


def _max_tokens(body: ChatBody) -> tuple[int | None, str]:
    """Return the limit and the name of its field. The newer name has precedence."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    value: int | None = getattr(body, name)
    if value == 0:
        raise FieldError(f"{name} must be at least 1, not 0", param=name)
    return value, name


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise FieldError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
