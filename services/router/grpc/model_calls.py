"""Calls of one model over gRPC: texts become tokens, and the pipeline answers."""

from __future__ import annotations

import secrets
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from structlog.contextvars import bind_contextvars

from baton.v1 import router_pb2
from services.router.answer.best_of import chosen_answers
from services.router.answer.join import small_parts
from services.router.chat.prompt import render_chat
from services.router.grpc.answers import AnswerWriter
from services.router.grpc.chat import read_chat
from services.router.grpc.wire import params_from_wire, read_rows, resumed_from_wire
from services.router.parsers.budget import bound_thinking, end_of
from services.router.request.generation import GenerationRequest
from services.router.request.request_name import RULE, is_request_name
from shared.aside import aside
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.limits import (
    check_num_tokens,
    check_params,
    check_texts,
)
from shared.generation.truncation import read_truncation, special_head
from shared.request.answer import num_candidates
from shared.request.beam_search import require_no_constraints
from shared.request.prompt_embeds import known_tokens
from shared.telemetry.trace_context import INCOMING, Incoming, metadata_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any

    import grpc

    from services.router.admission.caller import Caller
    from services.router.admission.tenant import Tenant
    from services.router.openai.backend import Backend
    from services.router.request.generation import AnswerPiece
    from shared.generation.params import GenerationParams
    from shared.request.prompt_embeds import PromptEmbeds

    Context = grpc.aio.ServicerContext[Any, Any]

#: Writers for requests that ask for no parsing, and for answers without a format.
UNREAD = AnswerWriter(reading=router_pb2.READING_UNSPECIFIED)
PLAIN = AnswerWriter(reading=router_pb2.READING_PLAIN)


class ModelCalls:
    """What the Router service does for the requests of one caller to one model."""

    def __init__(
        self,
        backend: Backend,
        caller: Caller,
        *,
        rate_headers: Callable[[Tenant], Sequence[tuple[str, str]]],
        traced: bool,
    ) -> None:
        """Answer with `backend`; see RouterServicer."""
        self._traced = traced
        self._caller = caller
        self._generator = backend.generator
        self._tokenizer = backend.tokenizer
        self._chat_template = backend.chat_template
        self._models = backend.models
        self._formats = backend.formats
        self._rate_headers = rate_headers
        self._limits = backend.limits
        self._embeds = backend.embeds

    async def generate(
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Return the answers that continue a prompt."""
        arrival_s = time.monotonic()
        ids, params, embeds = await aside(request.ByteSize(), lambda: self._read_prompt(request))
        return self._answer(request, ids, params, arrival_s, context, UNREAD, embeds)

    async def chat(
        self, request: router_pb2.ChatRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Return the answers to a conversation."""
        arrival_s = time.monotonic()
        ids, params, writer = await aside(request.ByteSize(), lambda: self._read_chat(request))
        return self._answer(request, ids, params, arrival_s, context, writer)

    def _read_prompt(
        self, request: router_pb2.GenerateRequest
    ) -> tuple[tuple[int, ...], GenerationParams, PromptEmbeds | None]:
        """Return the prompt's tokens, the parameters, and what is in place of tokens."""
        params = self._params(request.params)
        embeds, has_head = None, False
        match request.prompt.WhichOneof("content"):
            case "text":
                text, has_head = request.prompt.text, True
                check_texts([text], self._limits, param="prompt")
                ids = tuple(self._tokenizer.encode(text, add_special_tokens=True))
            case "tokens":
                ids = tuple(request.prompt.tokens.ids)
            case "embeds":
                embeds = self._rows(request)
                ids = embeds.whole_ids
            case _:
                message = "prompt must hold text, tokens or embeds"
                raise InvalidRequestError(message, param="prompt")
        if embeds is None:
            ids = self._shortened(request, ids, has_head=has_head)
        end = end_of(known_tokens(ids), self._tokenizer)
        params = bound_thinking(params, self._formats.reasoning, end, self._tokenizer)
        return ids, params, embeds

    def _read_chat(
        self, request: router_pb2.ChatRequest
    ) -> tuple[tuple[int, ...], GenerationParams, AnswerWriter]:
        """Return the prompt's tokens, the parameters, and the writer of answers."""
        chat = read_chat(
            request,
            self._params(request.params),
            formats=self._formats,
            tokenizer=self._tokenizer,
            limits=self._limits,
        )
        prompt, ids = render_chat(
            chat.conversation, self._chat_template, self._tokenizer, self._limits
        )
        if (kept := self._shortened(request, ids)) != ids:
            ids, prompt = kept, self._tokenizer.decode(kept, skip_special_tokens=False)
        params = bound_thinking(chat.params, self._formats.reasoning, prompt, self._tokenizer)
        plan, params = chat.plan.hold(params, prompt, self._tokenizer)
        writer = PLAIN if chat.is_read else UNREAD
        if not plan.is_plain:
            writer = AnswerWriter(reader=plan.new_reader(prompt), reading=router_pb2.READING_DELTAS)
        return ids, params, writer

    async def _answer(
        self,
        request: router_pb2.GenerateRequest | router_pb2.ChatRequest,
        ids: tuple[int, ...],
        params: GenerationParams,
        arrival_s: float,
        context: Context,
        writer: AnswerWriter,
        embeds: PromptEmbeds | None = None,
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        if request.request_id and not is_request_name(request.request_id):
            raise InvalidRequestError(f"request_id must have {RULE}", param="request_id")
        request_id = request.request_id or f"grpc-{secrets.token_hex(16)}"
        bind_contextvars(request_id=request_id)
        if self._traced:
            is_chat = isinstance(request, router_pb2.ChatRequest)
            headers = metadata_in(context.invocation_metadata() or ())
            INCOMING.set(Incoming(headers, "chat" if is_chat else "text_completion"))
        check_num_tokens(len(ids), self._limits, param="prompt")
        # Another router may be working on a request with the same id from its client.
        suffix = f"-{secrets.token_hex(4)}" if request.request_id else ""
        asked = self._models.resolve(request.model)
        generation = GenerationRequest(
            request_id=request_id + suffix,
            model=asked.name,
            adapter=asked.adapter,
            names=(request_id,),
            prompt_token_ids=ids,
            embeds=embeds,
            params=params,
            priority=request.priority,
            tenant=self._caller.tenant,
            cache_salt=self._caller.cache_salt(None),
            arrival_s=arrival_s,
            tokenize_ms=(time.monotonic() - arrival_s) * 1000,
            resumed=resumed_from_wire(request.resume_from),
        )
        writer.resume(generation, self._tokenizer)
        is_resumed = bool(generation.resumed)
        if is_resumed and params.num_sequences > params.n:
            message = "resume_from cannot be used with best_of, or with beam search"
            raise InvalidRequestError(message, param="resume_from")
        answers = chosen_answers(self._generator, generation)
        async with aclosing(answers) as pieces:
            async for piece in pieces:
                for part in small_parts(piece):
                    yield await _written(writer, request_id, part, resumed=is_resumed)
        # An error has metadata of its own, with the time until a retry makes sense.
        context.set_trailing_metadata(tuple(self._rate_headers(generation.tenant)))

    def _rows(self, request: router_pb2.GenerateRequest) -> PromptEmbeds:
        """Return the embeddings that are a request's prompt."""
        self._embeds.require()
        if request.HasField("truncate_prompt_tokens"):
            message = "truncate_prompt_tokens cannot be used with a prompt of embeds"
            raise UnsupportedError(message, param="truncate_prompt_tokens")
        return read_rows(request.prompt.embeds)

    def _shortened(
        self,
        request: router_pb2.GenerateRequest | router_pb2.ChatRequest,
        ids: tuple[int, ...],
        *,
        has_head: bool = False,
    ) -> tuple[int, ...]:
        """Return the tokens that the request's truncation keeps."""
        truncation = read_truncation(
            request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
            request.truncation_side if request.HasField("truncation_side") else None,
        )
        if truncation is None:
            return ids
        head = special_head(self._tokenizer) if has_head else ()
        return truncation.apply(ids, max_model_len=self._models.max_model_len, head=head)

    def _params(self, message: router_pb2.GenerationParams) -> GenerationParams:
        """Return the parameters, checked before any tokenising."""
        params = params_from_wire(message)
        check_params(params, self._limits)
        if params.beams is not None:
            require_no_constraints(params)
        return params


async def _written(
    writer: AnswerWriter, request_id: str, piece: AnswerPiece, *, resumed: bool
) -> router_pb2.GenerateResponse:
    """Return the message of a piece: a long one with a prompt's log probabilities."""
    write = partial(writer.write, request_id, piece, resumed=resumed)
    details = piece.prompt_details
    return await aside(num_candidates(details), write) if details else write()
